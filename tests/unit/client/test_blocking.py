"""The blocking front: what it adds to the asyncio one is a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import kappamq
from kappamq.client.loop_thread import LoopThread
from kappamq.errors import InvalidMessage, UsageError
from kappamq.wire.codes import RequestCode
from tests.unit.client.aio.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A fake cluster in a loop and thread of its own."""
    thread = LoopThread(lambda: FakeCluster(queues=1), name="fake cluster")
    yield thread.open()
    thread.close()


def test_send_and_read(cluster: FakeCluster) -> None:
    with kappamq.Producer(cluster.nameserver, group="g") as producer:
        receipt = producer.send(kappamq.Message("orders", b"0"))
        assert receipt.queue_offset == 0
        futures = [producer.send_soon(kappamq.Message("orders", b"%d" % n)) for n in range(1, 50)]
        producer.flush()
        assert [future.result().queue_offset for future in futures] == list(range(1, 50))
        receipts = producer.send_all(kappamq.Message("orders", b"%d" % n) for n in range(50, 60))
        assert [receipt.queue_offset for receipt in receipts] == list(range(50, 60))
        assert len(producer.send_batch([kappamq.Message("orders", b"x"), kappamq.Message("orders", b"y")])) == 2
        producer.send_one_way(kappamq.Message("orders", b"z"))
    with kappamq.LitePullConsumer(cluster.nameserver, group="g", topics=["orders"], start_from="first") as consumer:
        bodies = [message.body for message, _ in zip(consumer, range(50))]
    assert bodies == [b"%d" % n for n in range(50)]
    # The message that zip took for the 51st was handed out, too.
    assert cluster.broker.committed["g", "orders", 0] == 51


def test_a_message_that_raised_is_read_again(cluster: FakeCluster) -> None:
    for n in range(5):
        cluster.broker.store("orders", 0, b"%d" % n)

    def read() -> None:
        with kappamq.LitePullConsumer(cluster.nameserver, group="g", topics=["orders"], start_from="first") as consumer:
            for message in consumer:
                if message.body == b"3":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    assert cluster.broker.committed["g", "orders", 0] == 3


def test_handlers_run_and_run_returns(cluster: FakeCluster) -> None:
    cluster.broker.store("orders", 0, b"x")
    seen: list[bytes] = []
    with kappamq.PushConsumer(cluster.nameserver, group="g", start_from="first") as consumer:

        @consumer.on("orders")
        def handle(message: kappamq.ReceivedMessage) -> None:
            seen.append(message.body)
            consumer.stop()

        consumer.run()
    assert seen == [b"x"]
    assert cluster.broker.committed["g", "orders", 0] == 1


def test_cluster_calls(cluster: FakeCluster) -> None:
    cluster.broker.store("orders", 0, b"x")
    with kappamq.Cluster(cluster.nameserver) as calls:
        (queue,) = calls.queues_of("orders")
        assert (calls.min_offset(queue), calls.max_offset(queue)) == (0, 1)
        assert calls.committed_offset(queue, "g") is None
        calls.commit_offset(queue, "g", 1)
        assert calls.committed_offset(queue, "g") == 1
        raw = calls.pull_raw(queue, 0, group="g")
        assert (raw.status, raw.next_offset, raw.max_offset) == (kappamq.PullStatus.FOUND, 1, 1)
        assert raw.body == cluster.broker.records["orders", 0][0]


def test_errors_cross_the_thread(cluster: FakeCluster) -> None:
    producer = kappamq.Producer(cluster.nameserver, group="g")
    with pytest.raises(UsageError, match="not open"):
        producer.send(kappamq.Message("orders", b"x"))
    with producer:
        with pytest.raises(InvalidMessage):
            producer.send(kappamq.Message("orders", b""))
        with pytest.raises(InvalidMessage):
            producer.send_soon(kappamq.Message("orders", b"")).result()


def test_no_thread_is_left(cluster: FakeCluster) -> None:
    with kappamq.Producer(cluster.nameserver, group="g") as producer:
        producer.send(kappamq.Message("orders", b"x"))
        assert any("producer g" in thread.name for thread in threading.enumerate())
    assert not any("producer g" in thread.name for thread in threading.enumerate())


def test_a_front_that_cannot_start_raises() -> None:
    class Broken:
        async def __aenter__(self) -> None:
            await asyncio.sleep(0)
            raise UsageError("scripted")

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(UsageError, match="scripted"):
        LoopThread(Broken, name="broken").open()


def test_importing_the_package_is_light() -> None:
    import subprocess
    import sys

    code = "import sys, kappamq; print(sum(name.startswith('kappamq.') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_public_names_exist() -> None:
    for name in kappamq.__all__:
        assert getattr(kappamq, name) is not None


def test_transactions_end_with_their_block(cluster: FakeCluster) -> None:
    message = kappamq.Message("orders", b"x")
    with kappamq.Producer(cluster.nameserver, group="g") as producer:
        with producer.transaction(message):
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction(message):
            raise ZeroDivisionError
        with producer.transaction(message) as transaction:
            transaction.leave_undecided()
        with pytest.raises(KeyboardInterrupt), producer.transaction(message):
            raise KeyboardInterrupt
        producer.send(message)  # An answer on the same connection: what was sent one-way before has arrived.
    ends = cluster.broker.requests_of(RequestCode.END_TRANSACTION)
    assert [end.fields["commitOrRollback"] for end in ends] == ["8", "12", "0", "0"]

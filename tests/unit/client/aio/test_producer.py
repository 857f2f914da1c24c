"""The producer against brokers whose answers are scripted."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import pytest

from kappamq.client.aio.producer import Producer
from kappamq.client.core.receipts import SendStatus
from kappamq.client.settings import ProducerSettings
from kappamq.errors import (
    CallTimeout,
    InvalidMessage,
    NotPermitted,
    Refused,
    TooManyInFlight,
    TopicNotFound,
    UsageError,
)
from kappamq.model.message import Message, Queue, StoredMessage
from kappamq.model.properties import decode_properties
from kappamq.model.record import decode_record
from kappamq.net.connection import Connection
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from tests.unit.client.aio.fake_cluster import FakeCluster, close_connection, ignore

SEND = RequestCode.SEND_MESSAGE_V2


def stored(cluster: FakeCluster, topic: str = "orders") -> list[StoredMessage]:
    return [
        decode_record(record)
        for broker in cluster.brokers
        for (name, _), records in broker.records.items()
        if name == topic
        for record in records
    ]


def degraded(code: int) -> Callable[[Connection, Command], None]:
    def answer(connection: Connection, request: Command) -> None:
        connection.reply(request.reply(code, fields={"msgId": "AB", "queueId": "0", "queueOffset": "9"}))

    return answer


async def test_receipt_says_where_the_message_is() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        receipt = await producer.send(Message("orders", b"hello", tags="new", keys=["a", "b"], properties={"x": "1"}))
        assert receipt.is_ok
        assert receipt.queue.topic == "orders"
        assert receipt.queue.broker == "broker-a"
        assert receipt.queue_offset == 0
        (message,) = stored(cluster)
        assert message.message_id == receipt.message_id
        assert len(receipt.message_id) == 32
        assert (message.body, message.tags, message.keys) == (b"hello", "new", ("a", "b"))
        assert message.properties["x"] == "1"
        assert message.properties["WAIT"] == "true"


async def test_refusals_are_tried_on_other_brokers() -> None:
    async with FakeCluster("a", "b", "c") as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.queues_of("orders")
        for broker in cluster.brokers:
            broker.script(SEND, ResponseCode.NO_PERMISSION)
        with pytest.raises(NotPermitted, match=r"Send \[3\] times"):
            await producer.send(Message("orders", b"x"))
        assert [len(broker.requests_of(SEND)) for broker in cluster.brokers] == [1, 1, 1]
        assert (await producer.send(Message("orders", b"x"))).is_ok


async def test_no_permission_twice_then_success_takes_three_attempts() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(SEND, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
        assert (await producer.send(Message("orders", b"x"))).is_ok
        requests = cluster.broker.requests_of(SEND)
        assert len(requests) == 3
        assert len({decode_properties(request.fields["i"])["UNIQ_KEY"] for request in requests}) == 1


async def test_an_illegal_message_is_not_tried_again() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(SEND, ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(Refused) as caught:
            await producer.send(Message("orders", b"x"))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert len(cluster.broker.requests_of(SEND)) == 1


async def test_background_send_reports_a_refusal_at_once() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, ResponseCode.NO_PERMISSION)
        with pytest.raises(NotPermitted):
            await producer.send_soon(Message("orders", b"x"))
        assert len(cluster.broker.requests_of(SEND)) == 2


async def test_background_send_survives_a_lost_connection() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.queues_of("orders")
        for broker in cluster.brokers:
            broker.script(SEND, close_connection)
        receipts = await asyncio.gather(*(producer.send_soon(Message("orders", b"%d" % n)) for n in range(10)))
        assert all(receipt.is_ok for receipt in receipts)
        assert {message.body for message in stored(cluster)} >= {b"%d" % n for n in range(10)}


async def test_background_send_waits_out_an_overloaded_broker() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, ResponseCode.SYSTEM_BUSY)
        assert (await producer.send_soon(Message("orders", b"x"))).is_ok


@pytest.mark.parametrize(
    "status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_SLAVE_TIMEOUT]
)
async def test_less_safely_stored_is_a_result(status: SendStatus) -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(SEND, degraded(status.value))
        receipt = await producer.send(Message("orders", b"x"))
        assert receipt.status is status
        assert not receipt.is_ok
        assert receipt.queue_offset == 9


async def test_less_safely_stored_may_be_tried_elsewhere() -> None:
    settings = ProducerSettings(retry_degraded=True)
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g", settings=settings) as producer:
        for broker in cluster.brokers:
            broker.script(SEND, degraded(SendStatus.FLUSH_DISK_TIMEOUT.value))
        assert (await producer.send(Message("orders", b"x"))).is_ok


async def test_a_silent_broker_times_out() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(SEND, ignore, ignore, ignore)
        with pytest.raises(CallTimeout):
            await producer.send(Message("orders", b"x"), timeout=0.2)


async def test_a_chosen_queue_is_tried_once() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        queue = (await producer.queues_of("orders"))[-1]
        assert (await producer.send(Message("orders", b"x"), queue=queue)).queue == queue
        cluster.brokers[1].script(SEND, ResponseCode.SYSTEM_ERROR)
        with pytest.raises(Refused):
            await producer.send(Message("orders", b"x"), queue=queue)
        assert not cluster.brokers[0].requests_of(SEND)


async def test_a_sharding_key_always_takes_the_same_queue() -> None:
    async with FakeCluster("a", "b", queues=2) as cluster, Producer(cluster.nameserver, group="g") as producer:
        queues = await producer.queues_of("orders")
        receipts = [await producer.send(Message("orders", b"x"), sharding_key="order-1001") for _ in range(3)]
        assert {receipt.queue for receipt in receipts} == {queues[3]}
        soon = await producer.send_soon(Message("orders", b"x"), sharding_key="order-1002")
        assert soon.queue == queues[0]
        assert stored(cluster)[0].properties["__SHARDINGKEY"] in ("order-1001", "order-1002")


async def test_sends_with_a_key_keep_their_order_from_the_first_one_on() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        # Nothing is known of the topic yet, and large bodies are compressed in a thread: nobody overtakes all the same.
        bodies = [b"%03d" % n + (b"x" * 100_000 if n in (1, 60) else b"") for n in range(100)]
        futures = []
        for n, body in enumerate(bodies):
            futures.append(producer.send_soon(Message("orders", body), sharding_key="k"))
            if n in (2, 20, 70):
                await asyncio.sleep(0.001 * n / 10)
        receipts = await asyncio.gather(*futures)
        assert [receipt.queue_offset for receipt in receipts] == list(range(100))
        assert producer.inflight == 0
        cluster.broker.script(SEND, ResponseCode.SYSTEM_ERROR)
        with pytest.raises(Refused):
            await producer.send_soon(Message("orders", b"y" * 100_000), sharding_key="k")
    with pytest.raises(UsageError):
        producer.send_soon(Message("orders", b"z"), sharding_key="k")


async def test_a_send_that_waits_for_its_turn_fails_in_time() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.missing_topics = {"orders", "TBW102"}
        futures = [producer.send_soon(Message("orders", b"x"), sharding_key="k") for _ in range(2)]
        for outcome in await asyncio.gather(*futures, return_exceptions=True):
            assert isinstance(outcome, TopicNotFound)
        assert producer.inflight == 0


async def test_a_selector_sees_queues_message_and_argument() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        message = Message("orders", b"x")
        seen: list[object] = []

        def select(queues: object, given: Message, argument: int) -> Queue:
            seen.append((given, argument))
            return Queue("orders", "broker-a", argument)

        receipt = await producer.send(message, selector=select, argument=1)
        assert receipt.queue.queue_id == 1
        assert seen == [(message, 1)]
        with pytest.raises(UsageError, match="selector returned"):
            await producer.send(message, selector=lambda *_: None)  # type: ignore[arg-type]


async def test_batch_receipts_are_per_message() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        receipts = await producer.send_batch([Message("orders", b"%d" % n) for n in range(3)])
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [message.message_id for message in stored(cluster)] == [receipt.message_id for receipt in receipts]


async def test_a_batch_too_large_for_one_request_goes_in_several() -> None:
    settings = ProducerSettings(body_bytes_max=1000)
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g", settings=settings) as producer:
        receipts = await producer.send_batch([Message("orders", b"x" * 300) for _ in range(5)])
        assert len(receipts) == 5
        assert len(cluster.broker.requests_of(RequestCode.SEND_BATCH_MESSAGE)) > 1


async def test_large_bodies_are_compressed_and_batches_are_not() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"x" * 4096))
        await producer.send_soon(Message("orders", b"y" * 100_000))
        requests = cluster.broker.requests_of(SEND)
        assert [request.fields["f"] for request in requests] == [str(0x301)] * 2
        assert zlib.decompress(requests[1].body) == b"y" * 100_000
        await producer.send(Message("orders", b"x" * 4095))
        assert cluster.broker.requests_of(SEND)[-1].fields["f"] == "0"


async def test_one_way_send_asks_for_no_answer() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send_one_way(Message("orders", b"x"))
        await producer.send(Message("orders", b"y"))
        assert cluster.broker.requests_of(SEND)[0].is_one_way
        assert {message.body for message in stored(cluster)} == {b"x", b"y"}


async def test_delays_become_properties() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"x"), delay_level=3)
        await producer.send(Message("orders", b"x"), deliver_at=123456)
        await producer.send(Message("orders", b"x"), delay=1.5)
        found = [decode_properties(request.fields["i"]) for request in cluster.broker.requests_of(SEND)]
        assert found[0]["DELAY"] == "3"
        assert found[1]["TIMER_DELIVER_MS"] == "123456"
        assert found[2]["TIMER_DELAY_MS"] == "1500"
        with pytest.raises(UsageError, match="exclude each other"):
            await producer.send(Message("orders", b"x"), delay_level=3, delay=1)


async def test_what_no_broker_would_take_is_refused_here() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        for message in (
            Message("orders", b""),
            Message("SCHEDULE_TOPIC_XXXX", b"x"),
            Message("orders", b"x", properties={"KEYS": "k"}),
            Message("orders", b"x", properties={"a": ""}),
            Message("orders", b"x", tags="a\x01b"),
            Message("orders", b"x" * (4 * 1024 * 1024 + 1)),
            Message("orders", b"x", properties={"a": "b" * 33000}),
        ):
            with pytest.raises(InvalidMessage):
                await producer.send(message)
        assert not cluster.broker.requests_of(SEND)


async def test_new_topics_follow_the_template() -> None:
    async with FakeCluster(queues=8) as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.missing_topics.add("orders")
        assert (await producer.send(Message("orders", b"x"))).is_ok
        assert len(await producer.queues_of("orders")) == 4
        cluster.missing_topics |= {"TBW102", "other"}
        async with Producer(cluster.nameserver, group="g2") as second:
            with pytest.raises(TopicNotFound, match="create it first"):
                await second.send(Message("other", b"x"))


async def test_in_flight_is_limited() -> None:
    settings = ProducerSettings(inflight_max=2)
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g", settings=settings) as producer:
        futures = [producer.send_soon(Message("orders", b"x")) for _ in range(2)]
        with pytest.raises(TooManyInFlight):
            producer.send_soon(Message("orders", b"x"))
        await producer.room()
        futures.append(producer.send_soon(Message("orders", b"x")))
        await producer.flush()
        assert producer.inflight == 0
        assert all(future.result().is_ok for future in futures)


async def test_closing_waits_for_receipts_and_unregisters() -> None:
    async with FakeCluster() as cluster:
        async with Producer(cluster.nameserver, group="g") as producer:
            await producer.send(Message("orders", b"x"))
            future = producer.send_soon(Message("orders", b"x"))
        assert future.result().is_ok
        (request,) = cluster.broker.requests_of(RequestCode.UNREGISTER_CLIENT)
        assert request.fields["producerGroup"] == "g"
        with pytest.raises(UsageError, match="not open"):
            await producer.send(Message("orders", b"x"))


async def test_errors_of_the_block_reach_the_user_as_they_are() -> None:
    async with FakeCluster() as cluster:
        with pytest.raises(ZeroDivisionError):
            async with Producer(cluster.nameserver, group="g"):
                raise ZeroDivisionError


async def test_a_failing_broker_is_avoided_for_a_while() -> None:
    settings = ProducerSettings(latency_faults=True)
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g", settings=settings) as producer:
        await producer.queues_of("orders")
        bad, good = cluster.brokers
        bad.script(SEND, *[ResponseCode.SYSTEM_ERROR] * 5)
        for _ in range(20):
            assert (await producer.send(Message("orders", b"x"))).is_ok
        assert len(bad.requests_of(SEND)) == 1
        assert len(good.requests_of(SEND)) == 20


async def test_without_fault_tolerance_every_broker_gets_its_turn() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        for _ in range(8):
            await producer.send(Message("orders", b"x"))
        assert [len(broker.requests_of(SEND)) for broker in cluster.brokers] == [4, 4]

"""The push consumer against brokers in memory."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.aio.stacks import stacks
from kappamq.client.core.balancing import AverageByCircle
from kappamq.client.core.handling import Progress, RetryLater
from kappamq.client.core.process_queue import CacheLimits
from kappamq.client.settings import ClusterSettings, ConsumerSettings, PushSettings
from kappamq.errors import ConfigError, Refused, UsageError
from kappamq.model.message import StoredMessage
from kappamq.model.subscription import MessageModel
from kappamq.wire.bodies import encode_offset_table
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from tests.unit.client.aio.fake_cluster import FakeCluster, eventually

QUICK = ConsumerSettings(commit_interval_ms=50, retry_pull_ms=10)


def consumer_of(cluster: FakeCluster, **options: object) -> PushConsumer:
    given: dict[str, object] = {"start_from": "first", "settings": QUICK, "concurrency": 4, **options}
    return PushConsumer(cluster.nameserver, group="g", **given)  # type: ignore[arg-type]


async def test_every_message_reaches_the_handler_and_progress_is_committed() -> None:
    async with FakeCluster() as cluster:
        for n in range(10):
            cluster.broker.store("orders", n % 2, b"%d" % n)
        seen: list[bytes] = []
        async with consumer_of(cluster) as consumer:

            @consumer.on("orders")
            async def handle(message: StoredMessage) -> None:
                seen.append(message.body)

            await consumer.start()
            await eventually(lambda: len(seen) == 10)
            cluster.broker.store("orders", 0, b"later")
            await eventually(lambda: b"later" in seen)
        assert len(seen) == len(set(seen)) == 11
        assert cluster.broker.committed["g", "orders", 0] == 6
        assert cluster.broker.committed["g", "orders", 1] == 5
        assert not cluster.broker.members["g"]


async def test_plain_functions_run_in_threads() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.broker.store("orders", 0, b"x")
        threads: list[str] = []

        @consumer.on("orders")
        def handle(message: StoredMessage) -> None:
            threads.append(threading.current_thread().name)

        await consumer.start()
        await eventually(lambda: bool(threads))
        assert threads[0].startswith("kappamq g")


async def test_a_handler_that_raises_gets_its_message_sent_back() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.broker.store("orders", 0, b"bad")
        cluster.broker.store("orders", 0, b"later")
        cluster.broker.store("orders", 0, b"good")

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            if message.body == b"bad":
                raise ValueError("scripted")
            if message.body == b"later":
                raise RetryLater(delay_level=5)

        await consumer.start()
        await eventually(lambda: len(cluster.broker.sent_back) == 2)
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 3)
        levels = {request.log_offset: request.delay_level for request in cluster.broker.sent_back}
        assert sorted(levels.values()) == [0, 5]
        assert {request.retry_count_max for request in cluster.broker.sent_back} == {16}
        assert {request.origin_topic for request in cluster.broker.sent_back} == {"orders"}
        assert {request.cause for request in cluster.broker.sent_back} == {"ValueError: scripted", "RetryLater"}


async def test_an_ack_index_sends_back_the_rest_and_the_offset_passes_all() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        for n in range(4):
            cluster.broker.store("orders", 0, b"%d" % n)
        sizes: list[int] = []

        @consumer.on("orders", batch_size=4)
        async def handle(messages: list[StoredMessage]) -> int:
            sizes.append(len(messages))
            return 1

        await consumer.start()
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 4)
        assert sizes == [4]
        assert len(cluster.broker.sent_back) == 2


async def test_a_message_that_cannot_be_sent_back_is_copied_to_the_retry_topic() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.broker.store("orders", 0, b"x", "k\x01v\x02")
        cluster.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
        deliveries: list[tuple[str, int]] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            deliveries.append((message.topic, message.retry_count))
            if len(deliveries) == 1:
                raise RetryLater

        await consumer.start()
        # The fake broker does not wait for the delay: the copy comes back at once.
        await eventually(lambda: len(deliveries) == 2)
        assert deliveries == [("orders", 0), ("orders", 1)]
        (request,) = cluster.broker.requests_of(RequestCode.SEND_MESSAGE_V2)
        assert request.fields["b"] == "%RETRY%g"
        assert (request.fields["j"], request.fields["l"]) == ("1", "16")
        assert "DELAY\x013\x02" in request.fields["i"]
        assert "k\x01v\x02" in request.fields["i"]
        assert "KAPPA_CAUSE\x01RetryLater\x02" in request.fields["i"]


async def test_a_message_that_nobody_takes_back_is_handled_here_again() -> None:
    async with FakeCluster() as cluster:
        handling = PushSettings(local_retry_ms=20, concurrency=2)
        async with consumer_of(cluster, handling=handling, concurrency=None) as consumer:
            cluster.broker.store("orders", 0, b"x")
            cluster.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
            cluster.broker.script(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL)
            counts: list[int] = []

            @consumer.on("orders")
            async def handle(message: StoredMessage) -> None:
                counts.append(message.retry_count)
                if len(counts) == 1:
                    raise RetryLater

            await consumer.start()
            await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
            assert counts == [0, 1]


async def test_one_slow_message_holds_the_commit_but_not_the_others() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        for n in range(5):
            cluster.broker.store("orders", 0, b"%d" % n)
        go_on = asyncio.Event()
        seen: list[bytes] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            if message.body == b"1":
                await go_on.wait()
            seen.append(message.body)

        await consumer.start()
        await eventually(lambda: len(seen) == 4)
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
        go_on.set()
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 5)


async def test_overdue_messages_are_sent_back() -> None:
    handling = PushSettings(consume_timeout_ms=50, concurrency=2)
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, handling=handling, concurrency=None) as consumer:
        cluster.broker.store("orders", 0, b"x")
        go_on = asyncio.Event()

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            await go_on.wait()

        await consumer.start()
        await eventually(lambda: len(cluster.broker.sent_back) == 1)
        assert cluster.broker.sent_back[0].delay_level == 3
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
        go_on.set()


async def test_an_offset_out_of_range_restarts_at_the_corrected_one() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        cluster.broker.first_offset["orders", 0] = 100
        for n in range(3):
            cluster.broker.store("orders", 0, b"%d" % n)
        cluster.broker.committed["g", "orders", 0] = 5
        seen: list[int] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            seen.append(message.queue_offset)

        await consumer.start()
        await eventually(lambda: sorted(seen) == [100, 101, 102], seconds_max=3)
        await eventually(lambda: cluster.broker.committed["g", "orders", 0] == 103)


async def test_a_late_handler_does_not_overwrite_a_reset() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        for n in range(10):
            cluster.broker.store("orders", 0, b"%d" % n)
        go_on = asyncio.Event()
        starts: list[int] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            starts.append(message.queue_offset)
            if len(starts) <= 4:
                await go_on.wait()

        await consumer.start()
        await eventually(lambda: len(starts) == 4)
        queue = next(queue for queue in consumer.assignment() if queue.topic == "orders")
        body = encode_offset_table({queue: 8})
        fields = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"}
        connection = next(iter(cluster.broker.members["g"]))
        connection.send(Command(code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields=fields, body=body))
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 8, seconds_max=3)
        go_on.set()
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 10)
        assert starts[4:] == [8, 9]


async def test_tags_that_only_hash_alike_are_left_out_and_skipped_messages_are_committed() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        for tag in ("new", "old", "new", "old"):
            cluster.broker.store("orders", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        seen: list[bytes] = []

        @consumer.on("orders", "new || paid")
        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)

        await consumer.start()
        await eventually(lambda: len(seen) == 2)
        cluster.broker.store("orders", 0, b"old", "TAGS\x01old\x02")
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 5)
        assert seen == [b"new", b"new"]


async def test_flow_control_bounds_what_is_cached() -> None:
    settings = ConsumerSettings(commit_interval_ms=50, pull_batch=5, limits=CacheLimits(messages_max=10))
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, settings=settings) as consumer:
        for n in range(100):
            cluster.broker.store("orders", 0, b"%d" % n)
        go_on = asyncio.Event()
        seen: list[bytes] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            await go_on.wait()
            seen.append(message.body)

        await consumer.start()

        def pulls() -> int:
            requests = cluster.broker.requests_of(RequestCode.PULL_MESSAGE)
            return sum(request.fields["topic"] == "orders" for request in requests)

        await eventually(lambda: pulls() >= 3)
        await asyncio.sleep(0.1)
        assert pulls() == 3
        go_on.set()
        await eventually(lambda: len(seen) == 100)


async def test_the_retry_topic_is_found_soon_after_it_appears() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.missing_topics.add("%RETRY%g")

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None: ...

        await consumer.start()
        assert all(queue.topic == "orders" for queue in consumer.assignment())
        cluster.missing_topics.clear()
        await eventually(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment()), seconds_max=4)


async def test_members_share_the_queues_and_take_over() -> None:
    async with FakeCluster(queues=4) as cluster, consumer_of(cluster) as first:

        async def handle(message: StoredMessage) -> None: ...

        first.add_handler("orders", handle)
        await first.start()

        def count(consumer: PushConsumer) -> int:
            return sum(queue.topic == "orders" for queue in consumer.assignment())

        assert count(first) == 4
        async with consumer_of(cluster) as second:
            second.add_handler("orders", handle)
            await second.start()
            cluster.broker.notify_members("g")
            await eventually(lambda: (count(first), count(second)) == (2, 2))
        cluster.broker.notify_members("g")
        await eventually(lambda: count(first) == 4)


async def test_ordered_messages_wait_for_the_one_that_fails() -> None:
    handling = PushSettings(suspend_queue_ms=20, concurrency=4)
    async with FakeCluster(queues=2) as cluster:
        async with consumer_of(cluster, ordered=True, handling=handling, concurrency=None) as consumer:
            for n in range(5):
                cluster.broker.store("orders", 0, b"%d" % n)
            order: list[bytes] = []
            counts: list[int] = []

            @consumer.on("orders")
            async def handle(message: StoredMessage) -> None:
                if message.body == b"2":
                    counts.append(message.retry_count)
                    if message.retry_count < 2:
                        raise ValueError("scripted")
                order.append(message.body)

            await consumer.start()
            await eventually(lambda: len(order) == 5)
            assert order == [b"0", b"1", b"2", b"3", b"4"]
            assert counts == [0, 1, 2]
            assert cluster.broker.locks
        assert not cluster.broker.locks
        assert cluster.broker.committed["g", "orders", 0] == 5


async def test_an_ordered_message_that_fails_too_often_goes_to_the_dead_letters() -> None:
    handling = PushSettings(suspend_queue_ms=10, retries_max=1)
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, ordered=True, handling=handling) as consumer:
        cluster.broker.store("orders", 0, b"bad")
        cluster.broker.store("orders", 0, b"good")
        order: list[bytes] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            if message.body == b"bad" and message.retry_count < 2:
                raise ValueError("scripted")
            order.append(message.body)

        await consumer.start()
        await eventually(lambda: b"good" in order)
        (request,) = cluster.broker.requests_of(RequestCode.SEND_MESSAGE_V2)
        assert request.fields["b"] == "%RETRY%g"
        assert (request.fields["j"], request.fields["l"]) == ("2", "1")


async def test_an_ordered_queue_is_taken_only_with_its_lock() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, ordered=True) as consumer:
        cluster.broker.locks["g", "orders", 0] = "somebody else"
        cluster.broker.store("orders", 0, b"x")
        seen: list[bytes] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)

        await consumer.start()
        assert not any(queue.topic == "orders" for queue in consumer.assignment())
        del cluster.broker.locks["g", "orders", 0]
        await eventually(lambda: seen == [b"x"], seconds_max=5)


async def test_an_ordered_handler_may_commit_by_itself() -> None:
    handling = PushSettings(suspend_queue_ms=10)
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, ordered=True, handling=handling) as consumer:
        for n in range(7):
            cluster.broker.store("orders", 0, b"%d" % n)
        order: list[bytes] = []
        rolled_back = asyncio.Event()

        @consumer.on("orders", auto_commit=False)
        async def handle(message: StoredMessage) -> Progress | None:
            order.append(message.body)
            if message.body == b"2":
                return Progress.COMMIT
            if message.body == b"5" and not rolled_back.is_set():
                rolled_back.set()
                return Progress.ROLLBACK
            if message.body == b"4" and order.count(b"4") == 1:
                raise ValueError("scripted: only this one comes again, what was kept before it does not")
            return None

        await consumer.start()
        await eventually(lambda: order[-1:] == [b"6"])
        assert order == [b"0", b"1", b"2", b"3", b"4", b"4", b"5", b"3", b"4", b"5", b"6"]
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 3)
    # What was only kept is not committed at the end either.
    assert cluster.broker.committed["g", "orders", 0] == 3


@pytest.mark.parametrize(
    ("returned", "result"),
    [(None, "CR_SUCCESS"), (Progress.COMMIT, "CR_COMMIT"), (Progress.ROLLBACK, "CR_ROLLBACK")],
)
async def test_a_message_consumed_on_command_tells_what_the_handler_said(
    returned: Progress | None, result: str
) -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, ordered=True) as consumer:
        seen: list[StoredMessage] = []

        @consumer.on("orders", auto_commit=False)
        async def handle(message: StoredMessage) -> Progress | None:
            seen.append(message)
            return returned

        cluster.broker.store("orders", 0, b"x")
        await consumer.start()
        await eventually(lambda: bool(seen))
        answer = await consumer.consume_directly(seen[0])
        assert (answer["consumeResult"], answer["autoCommit"], answer["order"]) == (result, False, True)


async def test_only_ordered_consumers_commit_by_hand() -> None:
    async with FakeCluster() as cluster:
        with pytest.raises(UsageError, match="ordered=True"):
            consumer_of(cluster).add_handler("orders", print, auto_commit=False)


async def test_an_ordered_queue_whose_lock_lapsed_starts_again_at_what_was_committed() -> None:
    # The lock lapses as the broker does not answer; meanwhile somebody else has the queue and goes on to 5.
    handling = PushSettings(lock_interval_ms=30, lock_life_ms=200)
    settings = ConsumerSettings(commit_interval_ms=10, retry_pull_ms=10)
    async with FakeCluster(queues=1) as cluster:
        async with consumer_of(cluster, ordered=True, handling=handling, settings=settings) as consumer:
            cluster.broker.store("orders", 0, b"0")
            seen: list[bytes] = []

            @consumer.on("orders")
            async def handle(message: StoredMessage) -> None:
                seen.append(message.body)

            await consumer.start()
            await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
            locks = len(cluster.broker.requests_of(RequestCode.LOCK_BATCH_MQ))
            cluster.broker.script(RequestCode.LOCK_BATCH_MQ, *[ResponseCode.SYSTEM_ERROR] * 10)
            await eventually(lambda: len(cluster.broker.requests_of(RequestCode.LOCK_BATCH_MQ)) >= locks + 8)
            cluster.broker.committed["g", "orders", 0] = 5
            for n in range(1, 6):
                cluster.broker.store("orders", 0, b"%d" % n)
            await eventually(lambda: b"5" in seen)
        assert seen == [b"0", b"5"]
        assert cluster.broker.committed["g", "orders", 0] == 6


async def test_a_handler_whose_lock_somebody_else_took_neither_commits_nor_runs_twice() -> None:
    handling = PushSettings(lock_interval_ms=20)
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, ordered=True, handling=handling) as consumer:
        cluster.broker.store("orders", 0, b"x")
        running, most, go_on, begun = 0, 0, asyncio.Event(), asyncio.Event()

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            begun.set()
            await go_on.wait()
            running -= 1

        await consumer.start()
        await begun.wait()
        cluster.broker.locks["g", "orders", 0] = "somebody else"
        await eventually(lambda: not any(queue.topic == "orders" for queue in consumer.assignment()))
        del cluster.broker.locks["g", "orders", 0]
        consumer.on_members_changed()
        await asyncio.sleep(0.3)
        assert not any(queue.topic == "orders" for queue in consumer.assignment())
        begun.clear()
        go_on.set()
        await begun.wait()  # The queue is taken again only now, and the message comes again.
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
        assert most == 1


@pytest.mark.parametrize("is_setting", [False, True])
async def test_broadcasting_keeps_progress_in_a_file(tmp_path: Path, is_setting: bool) -> None:
    model = MessageModel.BROADCASTING
    settings = ConsumerSettings(offsets_directory=tmp_path)
    options = {"settings": replace(settings, model=model)} if is_setting else {"settings": settings, "model": model}
    async with FakeCluster() as cluster:
        for n in range(4):
            cluster.broker.store("orders", n % 2, b"%d" % n)
        seen: list[bytes] = []

        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)

        for expected in (4, 5):
            async with consumer_of(cluster, **options) as consumer:
                consumer.add_handler("orders", handle)
                await consumer.start()
                assert consumer.cluster.client_id.endswith("@DEFAULT")
                await eventually(lambda count=expected: len(seen) == count)  # type: ignore[misc]
            cluster.broker.store("orders", 0, b"next")
        assert not cluster.broker.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert not cluster.broker.requests_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        (path,) = tmp_path.glob("*/g/offsets.json")
        assert '{"brokerName":"broker-a","queueId":0,"topic":"orders"}:3' in path.read_text()


async def test_closing_waits_for_handlers_that_run() -> None:
    async with FakeCluster(queues=1) as cluster:
        cluster.broker.store("orders", 0, b"x")
        started, finished = asyncio.Event(), asyncio.Event()
        async with consumer_of(cluster) as consumer:

            @consumer.on("orders")
            async def handle(message: StoredMessage) -> None:
                started.set()
                await asyncio.sleep(0.1)
                finished.set()

            await consumer.start()
            await started.wait()
        assert finished.is_set()
        assert cluster.broker.committed["g", "orders", 0] == 1


async def test_run_returns_when_stopped_and_needs_a_handler() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(UsageError, match="no handler"):
            await consumer.run()
        cluster.broker.store("orders", 0, b"x")

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            consumer.stop()

        async with asyncio.timeout(30):
            await consumer.run()


async def test_operators_can_ask_a_running_consumer() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        cluster.broker.store("orders", 0, b"x")

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            if message.body == b"bad":
                raise ValueError("scripted")

        await consumer.start()
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
        connection = next(iter(cluster.broker.members["g"]))
        client_id = cluster.broker.members["g"][connection]
        fields = {"consumerGroup": "g", "clientId": client_id, "topic": "orders", "group": "g"}
        info = await connection.call(
            Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields), timeout_ms=3000
        )
        assert b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in info.body
        status = await connection.call(
            Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields=fields), timeout_ms=3000
        )
        assert b":1}" in status.body
        cluster.broker.store("other", 0, b"bad")
        record = cluster.broker.records["orders", 0][0]
        direct = await connection.call(
            Command(code=RequestCode.CONSUME_MESSAGE_DIRECTLY, fields=fields, body=record), timeout_ms=3000
        )
        assert b'"consumeResult":"CR_SUCCESS"' in direct.body
        unknown = await connection.call(Command(code=999), timeout_ms=3000)
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_restarted_broker_is_found_again() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        seen: list[bytes] = []

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)

        cluster.broker.store("orders", 0, b"before")
        await consumer.start()
        await eventually(lambda: seen == [b"before"])
        await eventually(lambda: cluster.broker.committed.get(("g", "orders", 0)) == 1)
        await cluster.broker.restart()
        cluster.broker.store("orders", 0, b"after")
        await eventually(lambda: seen == [b"before", b"after"])
        await eventually(lambda: len(cluster.broker.members["g"]) == 1)
        await eventually(lambda: cluster.broker.committed["g", "orders", 0] == 2)


async def test_heartbeats_do_not_wait_for_handlers() -> None:
    settings = ClusterSettings(heartbeat_interval_ms=20)
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster, cluster_settings=settings) as consumer:
        cluster.broker.store("orders", 0, b"x")
        started, go_on = threading.Event(), threading.Event()

        @consumer.on("orders")
        def handle(message: StoredMessage) -> None:
            started.set()
            assert go_on.wait(60)

        await consumer.start()
        await eventually(started.is_set)
        beats = len(cluster.broker.requests_of(RequestCode.HEART_BEAT))
        await eventually(lambda: len(cluster.broker.requests_of(RequestCode.HEART_BEAT)) >= beats + 5)
        go_on.set()


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_number_of_handlers_can_be_changed_while_they_run(ordered: bool) -> None:
    async with FakeCluster(queues=8) as cluster, consumer_of(cluster, ordered=ordered, concurrency=2) as consumer:
        running, go_on = 0, asyncio.Semaphore(0)

        @consumer.on("orders")
        async def handle(message: StoredMessage) -> None:
            nonlocal running
            running += 1
            await go_on.acquire()
            running -= 1

        for n in range(64):
            cluster.broker.store("orders", n % 8, b"%d" % n)
        await consumer.start()
        await eventually(lambda: running == 2)
        await consumer.set_concurrency(5)
        await eventually(lambda: running == 5)
        assert consumer.running_info()["properties"]["consumeThreadMax"] == "5"
        await consumer.set_concurrency(1)
        with pytest.raises(ConfigError, match="concurrency is 0"):
            await consumer.set_concurrency(0)
        assert (consumer.concurrency, running) == (1, 5)  # Those that run are not disturbed.
        if not ordered:  # An ordered queue keeps its turn for a while.
            for _ in range(4):
                go_on.release()
            await eventually(lambda: running == 1)
            go_on.release()
            await asyncio.sleep(0.05)
            assert running == 1
        for _ in range(64):
            go_on.release()


async def test_an_operator_sees_settings_pause_and_stacks() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:

        @consumer.on("orders")
        async def handle_orders(message: StoredMessage) -> None: ...

        await consumer.start()
        cluster.broker.store("orders", 0, b"x")
        await eventually(lambda: consumer.running_info()["mqTable"] != {})
        consumer.pause()
        assert consumer.is_paused
        shown = consumer.running_info()["properties"]
        assert (shown["pause"], shown["consumeThreadMin"], shown["consumerGroup"]) == ("true", "4", "g")
        consumer.resume()
        assert consumer.running_info()["properties"]["pause"] == "false"
        text = stacks()
        assert "MainThread" in text
        assert "pull orders 0" in text


async def test_any_strategy_may_share_the_queues() -> None:
    settings = ConsumerSettings(strategy=AverageByCircle())

    async def handle(message: StoredMessage) -> None: ...

    async with (
        FakeCluster(queues=4) as cluster,
        consumer_of(cluster, settings=settings, cluster_settings=ClusterSettings(instance="a")) as first,
        consumer_of(cluster, settings=settings, cluster_settings=ClusterSettings(instance="b")) as second,
    ):
        for consumer in (first, second):
            consumer.add_handler("orders", handle)
            await consumer.start()
        cluster.broker.notify_members("g")

        def ids(consumer: PushConsumer) -> set[int]:
            return {queue.queue_id for queue in consumer.assignment() if queue.topic == "orders"}

        await eventually(lambda: (ids(first), ids(second)) == ({0, 2}, {1, 3}))


async def test_sql_is_checked_by_a_broker_at_the_start() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        cluster.broker.script(RequestCode.CHECK_CLIENT_CONFIG, ResponseCode.SUBSCRIPTION_PARSE_FAILED)

        @consumer.on("orders", "a > 5", expression_type="SQL92")
        async def handle(message: StoredMessage) -> None: ...

        with pytest.raises(Refused) as caught:
            await consumer.start()
        assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

"""The lite pull consumer against brokers in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.settings import ConsumerSettings, LitePullSettings
from kappamq.errors import Refused, UsageError
from kappamq.model.message import Queue
from kappamq.model.subscription import MessageModel
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.client.aio.fake_cluster import FakeCluster, eventually

SLOW_COMMIT = ConsumerSettings(commit_interval_ms=60_000)


def consumer_of(cluster: FakeCluster, **options: object) -> LitePullConsumer:
    given: dict[str, object] = {"topics": ["orders"], "start_from": "first", "settings": SLOW_COMMIT, **options}
    return LitePullConsumer(cluster.nameserver, group="g", **given)  # type: ignore[arg-type]


def fill(cluster: FakeCluster, count: int, *, queue_id: int = 0, start: int = 0) -> None:
    for n in range(start, start + count):
        cluster.broker.store("orders", queue_id, b"%d" % n)


async def test_iteration_yields_messages_in_order_and_commits_at_the_end() -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 10)
        seen = []
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 7:
                    break
        assert seen == [b"%d" % n for n in range(7)]
        assert cluster.broker.committed["g", "orders", 0] == 7


async def test_a_message_whose_block_raised_is_read_again() -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 10)

        async def read() -> None:
            async with consumer_of(cluster) as consumer:
                async for message in consumer:
                    if message.body == b"4":
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await read()
        assert cluster.broker.committed["g", "orders", 0] == 4


async def test_a_polled_batch_is_committed_when_the_next_is_asked_for() -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 5)
        async with consumer_of(cluster) as consumer:
            assert len(await consumer.poll(messages_max=2)) == 2
            await consumer.commit({}, persist=False)
            assert await consumer.committed(Queue("orders", "broker-a", 0)) is None
            assert len(await consumer.poll()) == 3
            assert await consumer.committed(Queue("orders", "broker-a", 0)) == 2
            assert await consumer.poll(timeout=0.05) == []
            assert await consumer.committed(Queue("orders", "broker-a", 0)) == 5
        assert cluster.broker.committed["g", "orders", 0] == 5


async def test_without_auto_commit_only_commit_counts() -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 5)
        async with consumer_of(cluster, auto_commit=False) as consumer:
            await consumer.poll(messages_max=2)
            await consumer.commit()
            assert cluster.broker.committed["g", "orders", 0] == 2
            await consumer.poll()
        assert cluster.broker.committed["g", "orders", 0] == 2


async def test_progress_in_memory_is_lost_with_the_process_but_not_what_was_persisted() -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 5)
        consumer = consumer_of(cluster, auto_commit=False)
        async with consumer:
            await consumer.poll(messages_max=2)
            await consumer.commit(persist=True)
            await consumer.poll(messages_max=1)
            await consumer.commit(persist=False)
            assert cluster.broker.committed["g", "orders", 0] == 2
            assert await consumer.committed(Queue("orders", "broker-a", 0)) == 3


async def test_seek_drops_what_was_read_ahead() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 10)
        queue = Queue("orders", "broker-a", 0)
        assert (await consumer.poll(messages_max=3))[0].queue_offset == 0
        await consumer.seek(queue, 8)
        assert [message.queue_offset for message in await consumer.poll()] == [8, 9]
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll())[0].queue_offset == 0
        await consumer.seek_to_end(queue)
        assert await consumer.poll(timeout=0.05) == []
        with pytest.raises(UsageError, match="0 to 10"):
            await consumer.seek(queue, 11)
        with pytest.raises(UsageError, match="not assigned"):
            await consumer.seek(Queue("orders", "broker-a", 9), 0)


async def test_assigned_queues_are_read_without_the_group() -> None:
    queue = Queue("orders", "broker-a", 1)
    async with FakeCluster(queues=2) as cluster, consumer_of(cluster, topics=(), queues=[queue]) as consumer:
        fill(cluster, 2, queue_id=0)
        fill(cluster, 3, queue_id=1)
        assert consumer.assignment() == {queue}
        assert len(await consumer.poll()) == 3
        await consumer.assign([Queue("orders", "broker-a", 0)])
        assert len(await consumer.poll()) == 2
        with pytest.raises(UsageError):
            await consumer.subscribe("orders")
        assert not cluster.broker.requests_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)


async def test_paused_queues_are_not_pulled() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        queue = Queue("orders", "broker-a", 0)
        await eventually(lambda: bool(cluster.broker.requests_of(RequestCode.PULL_MESSAGE)))
        consumer.pause([queue])
        fill(cluster, 1)
        assert len(await consumer.poll()) == 1
        fill(cluster, 1, start=1)
        assert await consumer.poll(timeout=0.1) == []
        consumer.resume([queue])
        assert len(await consumer.poll()) == 1


async def test_the_cache_is_bounded() -> None:
    settings = ConsumerSettings(pull_batch=10)
    lite = LitePullSettings(cached_messages_max=30)
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 100)
        async with consumer_of(cluster, settings=settings, lite=lite) as consumer:
            await eventually(lambda: len(cluster.broker.requests_of(RequestCode.PULL_MESSAGE)) == 3)
            await asyncio.sleep(0.05)
            assert len(cluster.broker.requests_of(RequestCode.PULL_MESSAGE)) == 3
            count = 0
            while count < 100:
                count += len(await consumer.poll())


async def test_a_moved_offset_is_followed_at_once() -> None:
    async with FakeCluster(queues=1) as cluster:
        cluster.broker.first_offset["orders", 0] = 50
        fill(cluster, 2)
        cluster.broker.committed["g", "orders", 0] = 3
        async with consumer_of(cluster) as consumer:
            assert [message.queue_offset for message in await consumer.poll()] == [50, 51]


async def test_messages_given_back_come_first() -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 5)
        async with consumer_of(cluster) as consumer:
            messages = await consumer.poll()
            consumer.give_back(messages[2:])
        assert cluster.broker.committed["g", "orders", 0] == 2
        async with consumer_of(cluster) as consumer:
            assert (await consumer.poll())[0].queue_offset == 2


async def test_filtered_messages_count_as_consumed() -> None:
    async with FakeCluster(queues=1) as cluster:
        for tag in ("b", "b", "a", "b"):
            cluster.broker.store("orders", 0, b"x", f"TAGS\x01{tag}\x02")
        async with consumer_of(cluster, topics={"orders": "a"}) as consumer:
            assert [message.queue_offset for message in await consumer.poll()] == [2]
        assert cluster.broker.committed["g", "orders", 0] == 4


async def test_a_cancelled_poll_loses_nothing() -> None:
    async with FakeCluster(queues=1) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.poll(timeout=10)
        fill(cluster, 3)
        assert len(await consumer.poll()) >= 1


async def test_a_consumer_that_cannot_start_leaves_nothing_behind() -> None:
    async with FakeCluster() as cluster:
        cluster.broker.script(RequestCode.CHECK_CLIENT_CONFIG, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
        consumer = consumer_of(cluster, topics=())
        consumer._subscriptions.add("orders", "a > 5", "SQL92")
        with pytest.raises(Refused):
            await consumer.open()
        assert not cluster.broker.members["g"]
        assert not consumer.cluster.is_open


async def test_arguments_and_settings_are_both_heard(tmp_path: Path) -> None:
    async with FakeCluster(queues=1) as cluster:
        fill(cluster, 3)
        async with consumer_of(cluster, auto_commit=False, lite=LitePullSettings(cached_messages_max=5)) as consumer:
            assert len(await consumer.poll()) == 3
        async with consumer_of(cluster, lite=LitePullSettings(auto_commit=False)) as consumer:
            assert len(await consumer.poll()) == 3
        assert not cluster.broker.committed
        settings = ConsumerSettings(model=MessageModel.BROADCASTING, offsets_directory=tmp_path)
        async with consumer_of(cluster, settings=settings) as consumer:
            assert len(await consumer.poll()) == 3
        assert not cluster.broker.committed
        assert list(tmp_path.glob("*/g/offsets.json"))

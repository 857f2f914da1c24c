"""The pull consumer against brokers in memory: the caller alone decides where to read and what counts as consumed."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.aio.cluster import PullStatus
from kappamq.client.aio.pull_consumer import PullConsumer
from kappamq.errors import Refused, TopicNotFound
from kappamq.model.message import Queue
from kappamq.model.subscription import ConsumeType
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.client.aio.fake_cluster import FakeCluster

QUEUE = Queue("orders", "broker-a", 0)


def consumer_of(cluster: FakeCluster) -> PullConsumer:
    return PullConsumer(cluster.nameserver, group="g")


async def test_a_queue_is_read_in_steps_and_nothing_is_committed_by_itself() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        for n in range(5):
            cluster.broker.store("orders", 0, b"%d" % n)
        assert QUEUE in await consumer.queues_of("orders")
        first = await consumer.pull(QUEUE, 0, count_max=3)
        assert (first.status, [each.body for each in first.messages]) == (PullStatus.FOUND, [b"0", b"1", b"2"])
        assert (first.next_offset, first.min_offset, first.max_offset) == (3, 0, 5)
        rest = await consumer.pull(QUEUE, first.next_offset)
        assert ([each.body for each in rest.messages], rest.next_offset) == ([b"3", b"4"], 5)
        again = await consumer.pull(QUEUE, 0, count_max=1)
        assert [each.body for each in again.messages] == [b"0"]
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, 3)
        assert await consumer.committed(QUEUE) == 3
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 5)


async def test_the_end_of_a_queue_is_told_at_once_or_waited_at() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        await consumer.queues_of("orders")
        nothing = await consumer.pull(QUEUE, 0)
        assert (nothing.status, nothing.messages, nothing.next_offset) == (PullStatus.NOTHING_NEW, [], 0)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(consumer.pull(QUEUE, 0, wait=20))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            cluster.broker.store("orders", 0, b"late")
        assert [each.body for each in waiting.result().messages] == [b"late"]


async def test_a_filter_skips_and_an_offset_that_is_gone_says_where_to_go_on() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        await consumer.queues_of("orders")
        cluster.broker.first_offset["orders", 0] = 10
        for tag in ("a", "b", "a"):
            cluster.broker.store("orders", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        chosen = await consumer.pull(QUEUE, 10, expression="b")
        assert ([each.body for each in chosen.messages], chosen.next_offset) == ([b"b"], 13)
        none = await consumer.pull(QUEUE, 12, expression="b")
        assert (none.status, none.messages, none.next_offset) == (PullStatus.NOTHING_MATCHED, [], 13)
        moved = await consumer.pull(QUEUE, 3)
        assert (moved.status, moved.messages, moved.next_offset) == (PullStatus.OFFSET_MOVED, [], 10)
        beyond = await consumer.pull(QUEUE, 99)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_MOVED, 13)


async def test_a_message_is_sent_back_for_the_push_consumers_of_the_group() -> None:
    async with FakeCluster() as cluster, consumer_of(cluster) as consumer:
        await consumer.queues_of("orders")
        cluster.broker.store("orders", 0, b"x")
        [message] = (await consumer.pull(QUEUE, 0)).messages
        assert await consumer.send_back(message, delay_level=4)
        [back] = cluster.broker.sent_back
        assert (back.group, back.delay_level, back.log_offset, back.origin_topic) == (
            "g",
            4,
            message.log_offset,
            "orders",
        )
        cluster.broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, *[ResponseCode.MESSAGE_ILLEGAL] * 3)
        assert not await consumer.send_back(message)


async def test_failures_are_raised_and_the_group_is_left_at_the_end() -> None:
    async with FakeCluster() as cluster:
        async with consumer_of(cluster) as consumer:
            await consumer.queues_of("orders")
            assert cluster.broker.members["g"]
            cluster.broker.script(RequestCode.PULL_MESSAGE, ResponseCode.NO_PERMISSION)
            with pytest.raises(Refused):
                await consumer.pull(QUEUE, 0)
            cluster.missing_topics.add("nowhere")
            with pytest.raises(TopicNotFound):
                await consumer.queues_of("nowhere")
            assert consumer.membership().consume_type is ConsumeType.CONSUME_ACTIVELY
            assert consumer.status("orders") == {}
            cluster.broker.store("orders", 0, b"x")
            [message] = (await consumer.pull(QUEUE, 0)).messages
            with pytest.raises(Refused, match="no handler"):
                await consumer.consume_directly(message)
        assert not cluster.broker.members["g"]

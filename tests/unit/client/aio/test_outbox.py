"""Single sends that are written together, against brokers whose answers are scripted."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.aio.producer import Producer
from kappamq.client.core.receipts import SendReceipt
from kappamq.client.settings import ProducerSettings
from kappamq.errors import CallTimeout, InvalidMessage, Refused, TopicNotFound
from kappamq.model.message import Message
from kappamq.net.connection import Connection
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from tests.unit.client.aio.fake_cluster import FakeCluster, close_connection, eventually, ignore
from tests.unit.client.aio.test_producer import SEND, degraded, stored


def messages(count: int) -> list[Message]:
    return [Message("orders", b"%d" % number, keys=f"k{number}") for number in range(count)]


async def test_everybody_gets_the_receipt_of_his_own_message() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        await asyncio.gather(*(producer.send(message) for message in messages(4)))
        soon = [producer.send_soon(message) for message in messages(100)]
        awaited = await asyncio.gather(*(producer.send(message) for message in messages(100)))
        by_id = {message.message_id: message for message in stored(cluster)}
        for receipts in (awaited, await asyncio.gather(*soon)):
            assert [by_id[receipt.message_id].body for receipt in receipts] == [b"%d" % n for n in range(100)]
            assert all(by_id[r.message_id].queue_offset == r.queue_offset for r in receipts)
            assert {receipt.queue.broker for receipt in receipts} == {"a", "b"}
        assert producer.inflight == 0


async def test_one_that_is_refused_does_not_harm_the_others() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION)
        outcomes = await asyncio.gather(*(producer.send(each) for each in messages(5)), return_exceptions=True)
        assert isinstance(outcomes[0], Refused)
        assert all(isinstance(outcome, SendReceipt) and outcome.is_ok for outcome in outcomes[1:])
        assert len(cluster.broker.requests_of(SEND)) == 1 + 5 + 1
        cluster.broker.script(SEND, ResponseCode.MESSAGE_ILLEGAL, degraded(ResponseCode.FLUSH_DISK_TIMEOUT))
        outcomes = await asyncio.gather(*(producer.send_soon(each) for each in messages(3)), return_exceptions=True)
        assert isinstance(outcomes[0], Refused)
        assert [isinstance(outcome, SendReceipt) and outcome.is_ok for outcome in outcomes[1:]] == [False, True]
        assert producer.inflight == 0


async def test_what_is_wrong_with_a_message_reaches_its_caller_alone() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        good = producer.send_soon(Message("orders", b"good"))
        with pytest.raises(InvalidMessage):
            producer.send_soon(Message("orders", b"x", tags="a\x01b"))
        with pytest.raises(UnicodeEncodeError):
            producer.send_soon(Message("orders", b"x", tags="\ud800"))
        with pytest.raises(UnicodeEncodeError):
            await producer.send(Message("orders", b"x", tags="\ud800"))
        with pytest.raises(TypeError):
            producer.send_soon(Message("orders", "text"))  # type: ignore[arg-type]
        assert (await good).is_ok
        assert (await producer.send(Message("orders", b"x", tags="für"))).is_ok
        await producer.flush()
        assert [message.body for message in stored(cluster)].count(b"good") == 1


async def test_no_more_are_awaited_at_once_than_may_be_in_flight() -> None:
    held: list[tuple[Connection, Command]] = []

    def hold(connection: Connection, request: Command) -> None:
        held.append((connection, request))

    settings = ProducerSettings(inflight_max=3)
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g", settings=settings) as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, *[hold] * 10)
        tasks = [asyncio.get_running_loop().create_task(producer.send(message)) for message in messages(10)]
        for expected in (3, 3, 3, 1):
            await eventually(lambda: len(held) >= expected)  # noqa: B023 - awaited before it changes.
            await asyncio.sleep(0.02)
            assert len(held) == expected
            for connection, request in held:
                connection.reply(request.reply(fields={"msgId": "AB", "queueId": "0", "queueOffset": "9"}))
            held.clear()
        assert [receipt.queue_offset for receipt in await asyncio.gather(*tasks)] == [9] * 10


async def test_a_cancelled_send_leaves_the_others_alone() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        tasks = [asyncio.get_running_loop().create_task(producer.send(message)) for message in messages(3)]
        futures = [producer.send_soon(message) for message in messages(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        futures[1].cancel()
        outcomes = await asyncio.gather(*tasks, *futures, return_exceptions=True)
        cancelled = [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes]
        assert cancelled == [False, True, False, False, True, False]
        await producer.flush()
        assert producer.inflight == 0


async def test_nobody_overtakes_in_a_queue() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        queue = (await producer.queues_of("orders"))[0]
        # Plain, compressed, one-way and with a flag: some are written by themselves.
        first = len(cluster.broker.records["orders", queue.queue_id])
        futures = [producer.send_soon(Message("orders", b"0"), queue=queue)]
        futures.append(producer.send_soon(Message("orders", b"1" * 5000), queue=queue))
        futures.append(producer.send_soon(Message("orders", b"2"), queue=queue))
        futures.append(producer.send_soon(Message("orders", b"3", flag=7), queue=queue))
        futures.append(producer.send_soon(Message("orders", b"4"), queue=queue))
        await producer.send_one_way(Message("orders", b"5"), queue=queue)
        futures.append(producer.send_soon(Message("orders", b"6"), queue=queue))
        last = producer.send(Message("orders", b"7" * 5000), queue=queue)
        receipts = [*await asyncio.gather(*futures), await last]
        assert [receipt.queue_offset - first for receipt in receipts] == [0, 1, 2, 3, 4, 6, 7]


async def test_each_has_its_own_time() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        queue = (await producer.send(Message("orders", b"first"))).queue
        cluster.broker.script(SEND, ignore)
        late = producer.send_soon(Message("orders", b"x"), queue=queue, timeout=0.05)
        good = producer.send_soon(Message("orders", b"x"), queue=queue)
        assert (await good).is_ok
        with pytest.raises(CallTimeout):
            await late
        assert producer.inflight == 0


async def test_a_lost_connection_is_made_up_for() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        await asyncio.gather(*(producer.send(message) for message in messages(4)))
        for broker in cluster.brokers:
            broker.script(SEND, close_connection)
        receipts = await asyncio.gather(*(producer.send(message) for message in messages(20)))
        assert {receipt.message_id for receipt in receipts} <= {message.message_id for message in stored(cluster)}


async def test_many_first_sends_ask_for_the_route_once() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        first, *others = (asyncio.get_running_loop().create_task(producer.send(each)) for each in messages(20))
        await asyncio.sleep(0)
        first.cancel()  # Whoever asked first may give up: the others want the answer all the same.
        soon = [producer.send_soon(message) for message in messages(20)]
        receipts = await asyncio.gather(*others, *soon)
        assert len({receipt.message_id for receipt in receipts}) == 39
        assert cluster.route_requests.count("orders") == 1


async def test_many_first_sends_to_a_topic_that_does_not_exist() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.missing_topics = {"orders", "TBW102"}
        outcomes = await asyncio.gather(*(producer.send(each) for each in messages(5)), return_exceptions=True)
        assert all(isinstance(outcome, TopicNotFound) for outcome in outcomes)
        assert cluster.route_requests.count("orders") == 1
        cluster.missing_topics = set()
        assert (await producer.send(Message("orders", b"x"))).is_ok

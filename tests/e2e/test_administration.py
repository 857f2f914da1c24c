"""Administration over the wire, against a whole cluster: what is changed is so at once, for everybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kappamq.errors import Refused, TopicNotFound
from kappamq.testing.cluster import run_cluster
from kappamq.wire.bodies import decode_route, decode_table
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    CreateTopicRequest,
    DeleteTopicRequest,
    DeleteTopicRouteRequest,
    PullRequest,
    ResetOffsetRequest,
    RouteRequest,
    SendRequest,
)
from tests.e2e.raw_client import RawClient, RawClients

HELD_MS = 25_000
"""A pull waits so long at the broker, unless something else answers it; less than the client waits for an answer."""
Scenario = Callable[[RawClient, RawClient], Awaitable[None]]
"""Given a client of the broker and one of the name server."""


def run(data: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with run_cluster(data=data) as cluster, RawClients() as clients:
            [address] = cluster.brokers.values()
            await scenario(clients.connect(address), clients.connect(cluster.nameservers[0]))

    asyncio.run(main())


async def change(broker: RawClient, text: str) -> None:
    reply = await broker.call(Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()))
    assert reply.code == 0, reply.remark


async def permission_of(nameserver: RawClient, topic: str) -> int:
    [queues] = decode_route((await nameserver.ask(RouteRequest(topic=topic))).body).queues
    return queues.permission


def pull(start: int = 0, *, wait_ms: int = 0, count: int = 32) -> PullRequest:
    return PullRequest(
        group="readers",
        topic="orders",
        queue_id=0,
        start=start,
        count_max=count,
        flags=PullRequest.SUBSCRIPTION | (PullRequest.SUSPEND if wait_ms else 0),
        suspend_ms=wait_ms,
        subscription="*",
    )


def test_a_topic_has_a_route_as_soon_as_it_is_created_and_none_once_deleted(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, nameserver: RawClient) -> None:
        for round_number in range(5):
            topic = f"orders-{round_number}"
            await broker.ask(CreateTopicRequest(topic=topic, read_queue_nums=2, write_queue_nums=2))
            assert await permission_of(nameserver, topic) == 6
            await broker.ask(DeleteTopicRequest(topic=topic))
            await nameserver.ask(DeleteTopicRouteRequest(topic=topic))
        await broker.ask(CreateTopicRequest(topic="last", read_queue_nums=1, write_queue_nums=1))
        for round_number in range(5):
            with pytest.raises(TopicNotFound):
                await nameserver.ask(RouteRequest(topic=f"orders-{round_number}"))

    run(tmp_path, scenario)


def test_the_size_of_messages_is_limited_as_last_set(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, _: RawClient) -> None:
        await change(broker, "maxMessageSize=1000")
        await broker.send("orders", b"x" * 1000)
        with pytest.raises(Refused, match="the maximum is 1000"):
            await broker.send("orders", b"x" * 1001)
        await change(broker, f"maxMessageSize={6 << 20}")
        await broker.send("orders", b"x" * (5 << 20))

    run(tmp_path, scenario)


def test_a_topic_has_a_route_as_soon_as_its_first_message_is_answered(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, nameserver: RawClient) -> None:
        for number in range(10):
            await broker.send(f"new-{number}", b"first")
            assert await permission_of(nameserver, f"new-{number}") == 6

    run(tmp_path, scenario)


def test_a_retry_topic_of_an_unknown_group_takes_messages(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, nameserver: RawClient) -> None:
        await broker.send("%RETRY%strangers", b"again")
        assert await permission_of(nameserver, "%RETRY%strangers") == 6

    run(tmp_path, scenario)


def test_a_deleted_topic_starts_again_at_offset_zero(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, _: RawClient) -> None:
        await broker.send("orders", b"old")
        await broker.ask(DeleteTopicRequest(topic="orders"))
        sent = await broker.send("orders", b"new")
        assert sent.queue_offset == 0
        assert [message.body for message in await broker.await_messages("orders")] == [b"new"]

    run(tmp_path, scenario)


def test_a_waiting_consumer_learns_of_a_reset_at_once(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, _: RawClient) -> None:
        for body in (b"one", b"two"):
            await broker.send("orders", body)
        await broker.await_messages("orders", 2)
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(broker.call(pull(2, wait_ms=HELD_MS)))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await broker.ask(ResetOffsetRequest(topic="orders", group="readers", timestamp=0))
        moved = waiting.result()
        assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert moved.fields["nextBeginOffset"] == "0"
        assert time.monotonic() - started < HELD_MS / 1000

    run(tmp_path, scenario)


def test_a_broker_without_write_permission_refuses_and_says_so_in_routes(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, nameserver: RawClient) -> None:
        await broker.ask(CreateTopicRequest(topic="orders", read_queue_nums=1, write_queue_nums=1))
        await change(broker, "brokerPermission=4")
        with pytest.raises(Refused) as refusal:
            await broker.send("orders", b"x")
        assert refusal.value.code == ResponseCode.NO_PERMISSION
        async with asyncio.timeout(30):
            while await permission_of(nameserver, "orders") != 4:
                await asyncio.sleep(0.01)
        await change(broker, "brokerPermission=6")
        await broker.send("orders", b"x")

    run(tmp_path, scenario)


def test_settings_take_effect_at_once(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, _: RawClient) -> None:
        for _number in range(4):
            await broker.send("orders", b"x", queue_id=0)
        await broker.await_messages("orders", 4)
        await change(broker, "maxTransferCountOnMessageInMemory=2\nlongPollingEnable=false\nshortPollingTimeMills=50")
        assert (await broker.call(pull())).fields["nextBeginOffset"] == "2"
        started = time.monotonic()
        assert (await broker.call(pull(4, wait_ms=HELD_MS))).code == ResponseCode.PULL_NOT_FOUND
        assert time.monotonic() - started < HELD_MS / 1000
        await change(broker, "autoCreateTopicEnable=false\nenablePropertyFilter=false\ntraceOn=false")
        with pytest.raises(TopicNotFound):
            await broker.send("new-topic", b"x")
        filtered = PullRequest(
            group="readers",
            topic="orders",
            queue_id=0,
            start=0,
            count_max=1,
            flags=PullRequest.SUBSCRIPTION,
            subscription="a > 1",
            expression_type="SQL92",
        )
        assert (await broker.call(filtered)).code == ResponseCode.SYSTEM_ERROR
        reply = await broker.call(SendRequest(producer_group="p", topic="orders", queue_id=0, born_at_ms=1), body=b"x")
        assert reply.fields["TRACE_ON"] == "false"
        await change(broker, "autoCreateTopicEnable=true")
        await broker.send("new-topic", b"x")

    run(tmp_path, scenario)


def test_a_group_is_not_created_where_that_is_turned_off(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, _: RawClient) -> None:
        await broker.send("orders", b"x")
        await change(broker, "autoCreateSubscriptionGroup=false")
        assert (await broker.call(pull())).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await broker.send_back(0, "readers")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        with pytest.raises(Refused, match="subscription group"):
            await broker.send("%RETRY%readers", b"x")

    run(tmp_path, scenario)


def test_figures_count_what_went_through(tmp_path: Path) -> None:
    async def scenario(broker: RawClient, _: RawClient) -> None:
        for _number in range(3):
            await broker.send("orders", b"x")
        await broker.await_messages("orders", 3)
        reply = await broker.call(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO))
        figures = decode_table(reply.body)
        assert (figures["msgPutTotalTodayNow"], figures["msgGetTotalTodayNow"]) == ("3", "3")
        assert "scheduleMessageOffset_18" in figures

    run(tmp_path, scenario)

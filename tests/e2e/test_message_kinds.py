"""Retries, dead letters, delays, transactions, requests and timers over the wire, against a whole cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from e2e.raw_client import RawClient, RawClients
from kappamq.broker.settings import BrokerSettings
from kappamq.testing.cluster import SMALL_STORE, run_cluster
from kappamq.wire.codes import ResponseCode

SETTINGS = BrokerSettings(name="template", store=SMALL_STORE)
Scenario = Callable[[RawClient], Awaitable[None]]


@asynccontextmanager
async def broker(data: Path, settings: BrokerSettings = SETTINGS) -> AsyncIterator[RawClient]:
    async with run_cluster(data=data, settings=settings) as cluster, RawClients() as clients:
        [address] = cluster.brokers.values()
        yield clients.connect(address)


def run(data: Path, scenario: Scenario, settings: BrokerSettings = SETTINGS) -> None:
    async def main() -> None:
        async with broker(data, settings) as client:
            await scenario(client)

    asyncio.run(main())


# ── Retries and dead letters ────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_sent_back_comes_again_and_then_dies(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        await client.heartbeat("c1", consumers=("workers",))
        sent = await client.send("orders", b"poison", TAGS="T", KEYS="k1")
        [first] = await client.await_messages("orders")
        back = await client.send_back(first.log_offset, "workers", delay_level=1, retry_count_max=1)
        assert back.code == ResponseCode.SUCCESS
        [again] = await client.await_messages("%RETRY%workers")
        assert again.stored_at_ms >= first.stored_at_ms + 1000
        assert (again.body, again.retry_count, again.tags) == (b"poison", 1, "T")
        assert again.properties["RETRY_TOPIC"] == "orders"
        assert again.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id
        assert (again.properties["DELAY"], again.properties["WAIT"]) == ("1", "false")
        assert again.born_at_ms == first.born_at_ms
        await client.send_back(
            again.log_offset, "workers", delay_level=1, retry_count_max=1, cause="ValueError: not a number\x02"
        )
        [dead] = await client.await_messages("%DLQ%workers")
        assert (dead.body, dead.retry_count, dead.queue_id) == (b"poison", 2, 0)
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == dead.properties["RETRY_TOPIC"] == "orders"
        assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == sent.offset_id
        assert dead.properties["KAPPA_CAUSE"] == "ValueError: not a number"

    run(tmp_path, scenario)


def test_the_default_retry_level_grows_with_the_failures(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        await client.heartbeat("c1", consumers=("workers",))
        await client.send("orders", b"x")
        [message] = await client.await_messages("orders")
        await client.send_back(message.log_offset, "workers")
        [waiting] = await client.await_messages("SCHEDULE_TOPIC_XXXX", queue_id=2)
        assert (waiting.properties["DELAY"], waiting.properties["REAL_TOPIC"]) == ("3", "%RETRY%workers")
        await client.send_back(waiting.log_offset, "workers")
        [longer] = await client.await_messages("SCHEDULE_TOPIC_XXXX", queue_id=3)
        assert (longer.properties["DELAY"], longer.retry_count) == ("4", 2)

    run(tmp_path, scenario)


def test_send_back_is_refused_for_strangers_and_lost_messages(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        await client.send("orders", b"x")
        unknown = await client.send_back(0, "nobody")
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await client.heartbeat("c1", consumers=("workers",))
        missing = await client.send_back(1 << 40, "workers")
        assert missing.code == ResponseCode.SYSTEM_ERROR
        assert "look message by offset failed" in (missing.remark or "")
        dead = await client.send_back(0, "workers", delay_level=-1)
        assert dead.code == ResponseCode.SUCCESS
        [message] = await client.await_messages("%DLQ%workers")
        assert message.retry_count == 1

    run(tmp_path, scenario)


# ── Delay levels ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_delayed_messages_come_in_time_and_survive_a_restart(tmp_path: Path) -> None:
    async def send(client: RawClient) -> None:
        before = time.time()
        await client.send("orders", b"slow", queue_id=1, DELAY="2")
        await client.send("orders", b"quick", queue_id=1, DELAY="1")
        [quick] = await client.await_messages("orders", queue_id=1)
        assert quick.body == b"quick"
        assert 1.0 <= quick.stored_at_ms / 1000 - before < 3.0
        assert quick.properties["REAL_TOPIC"] == "orders"
        assert quick.properties["DELAY"] == "1"

    async def receive(client: RawClient) -> None:
        quick, slow = await client.await_messages("orders", 2, queue_id=1)
        assert (quick.body, slow.body) == (b"quick", b"slow")
        assert slow.stored_at_ms - slow.born_at_ms >= 5000

    run(tmp_path, send)
    run(tmp_path, receive)


def test_many_delayed_messages_come_once_each_and_not_late(tmp_path: Path) -> None:
    count = 2000

    async def scenario(client: RawClient) -> None:
        await asyncio.gather(*(client.send("orders", b"%d" % n, DELAY="1") for n in range(count)))
        found = await client.await_messages("orders", count, seconds_max=30)
        assert sorted(int(each.body) for each in found) == list(range(count))
        waiting = {each.body: each for each in await client.await_messages("SCHEDULE_TOPIC_XXXX", count)}
        for each in found:
            due_ms = waiting[each.body].stored_at_ms + 1000
            assert due_ms <= each.stored_at_ms < due_ms + 1000

    run(tmp_path, scenario, replace(SETTINGS, auto_create_topics=True))

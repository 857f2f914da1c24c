"""Retries, dead letters, delays, transactions, requests and timers over the wire, against a whole cluster."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.errors import Refused
from kappamq.model.properties import decode_properties, encode_properties
from kappamq.model.record import decode_record
from kappamq.testing.cluster import SMALL_STORE, run_cluster
from kappamq.wire.bodies import encode_object
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    CheckTransactionRequest,
    LockQueuesRequest,
    PushReplyRequest,
    RecallRequest,
    ResumeCheckRequest,
    SendReply,
    SendRequest,
    decode_fields,
)
from tests.e2e.raw_client import RawClient, RawClients

SETTINGS = BrokerSettings(name="template", store=SMALL_STORE)
Scenario = Callable[[RawClient], Awaitable[None]]

LATE_MS_MAX = (
    10_000  # Other tests want the processors as well; how late they come at most is for `benchmarks lateness`.
)


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
        await client.send_back(again.log_offset, "workers", delay_level=-1)
        [_, untold] = await client.await_messages("%DLQ%workers", 2)
        assert re.fullmatch(r"the consumer at 127\.0\.0\.1:\d+ told no cause", untold.properties["KAPPA_CAUSE"])

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


def test_send_back_makes_its_group_and_is_refused_for_lost_messages(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        await client.send("orders", b"x")
        unnamed = await client.send_back(0, "no/name")
        assert unnamed.code == ResponseCode.INVALID_PARAMETER
        missing = await client.send_back(1 << 40, "workers")
        assert missing.code == ResponseCode.SYSTEM_ERROR
        assert "look message by offset failed" in (missing.remark or "")
        dead = await client.send_back(0, "workers", delay_level=-1)
        assert dead.code == ResponseCode.SUCCESS
        [message] = await client.await_messages("%DLQ%workers")
        assert message.retry_count == 1

    run(tmp_path, scenario)


async def send_to_retry(client: RawClient, retry_count: int, retry_count_max: int | None) -> str:
    """Send back as a client does when request 36 failed; the topic in which the message ends up."""
    before = await client.max_offset("%DLQ%workers") if await client.has_topic("%DLQ%workers") else 0
    request = SendRequest(
        producer_group="CLIENT_INNER_PRODUCER",
        topic="%RETRY%workers",
        queue_id=0,
        born_at_ms=1,
        properties=encode_properties({"DELAY": "3", "RETRY_TOPIC": "orders"}),
        retry_count=retry_count,
        retry_count_max=retry_count_max,
    )
    assert (await client.call(request, body=b"x")).code == ResponseCode.SUCCESS
    after = await client.max_offset("%DLQ%workers") if await client.has_topic("%DLQ%workers") else 0
    return "dead" if after > before else "retry"


def test_messages_sent_to_the_retry_topic_die_beyond_the_maximum(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        await client.heartbeat("c1", consumers=("workers",))
        assert await send_to_retry(client, 3, 3) == "retry"
        assert await send_to_retry(client, 16, None) == "retry"
        assert await send_to_retry(client, 4, 3) == "dead"
        assert await send_to_retry(client, 17, None) == "dead"
        [first, _] = await client.await_messages("%DLQ%workers", 2)
        assert (first.queue_id, first.properties["DELAY"], first.properties["DLQ_ORIGIN_TOPIC"]) == (0, "0", "orders")
        locks = {
            "consumerGroup": "workers",
            "clientId": "c1",
            "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}],
        }
        await client.ask(LockQueuesRequest(), body=encode_object(locks))
        assert await send_to_retry(client, 1, 16) == "dead"

    run(tmp_path, scenario)


# ── Delay levels ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_delayed_messages_come_in_time_and_survive_a_restart(tmp_path: Path) -> None:
    async def send(client: RawClient) -> None:
        before = time.time()
        await client.send("orders", b"slow", queue_id=1, DELAY="2")
        await client.send("orders", b"quick", queue_id=1, DELAY="1")
        [quick] = await client.await_messages("orders", queue_id=1)
        assert quick.body == b"quick"
        assert 1.0 <= quick.stored_at_ms / 1000 - before < 1.0 + LATE_MS_MAX / 1000
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
        found = await client.await_messages("orders", count)
        assert sorted(int(each.body) for each in found) == list(range(count))
        waiting = {each.body: each for each in await client.await_messages("SCHEDULE_TOPIC_XXXX", count)}
        for each in found:
            due_ms = waiting[each.body].stored_at_ms + 1000
            assert due_ms <= each.stored_at_ms < due_ms + LATE_MS_MAX

    run(tmp_path, scenario, replace(SETTINGS, auto_create_topics=True))


def test_waiting_messages_are_not_late_while_others_send(tmp_path: Path) -> None:
    count = 400

    async def scenario(client: RawClient) -> None:
        is_over = asyncio.Event()

        async def send_plainly() -> int:
            sent = 0
            while not is_over.is_set():
                await asyncio.gather(*(client.send("plain", b"x" * 128) for _ in range(32)))
                sent += 32
            return sent

        async with asyncio.TaskGroup() as tasks:
            plain = tasks.create_task(send_plainly())
            instant_ms = int(time.time() * 1000) + 3000
            timed = (client.send("timed", b"%d" % n, TIMER_DELIVER_MS=str(instant_ms + n % 500)) for n in range(count))
            delayed = (client.send("delayed", b"%d" % n, DELAY="1") for n in range(count))
            await asyncio.gather(*timed, *delayed)
            by_instant = await client.await_messages("timed", count)
            by_level = await client.await_messages("delayed", count)
            is_over.set()
        assert plain.result() > 0
        for each in by_instant:
            due_ms = -(-int(each.properties["TIMER_DELIVER_MS"]) // 1000) * 1000
            assert due_ms <= each.stored_at_ms <= due_ms + LATE_MS_MAX
        waiting = {each.body: each for each in await client.await_messages("SCHEDULE_TOPIC_XXXX", count)}
        for each in by_level:
            due_ms = waiting[each.body].stored_at_ms + 1000
            assert due_ms <= each.stored_at_ms <= due_ms + LATE_MS_MAX

    run(tmp_path, scenario)


# ── Transactions ────────────────────────────────────────────────────────────────────────────────────────────────────

COMMIT, ROLL_BACK = 8, 12
QUICK_CHECKS = replace(SETTINGS, transaction_timeout_ms=200, transaction_check_interval_ms=300)


async def send_half(client: RawClient, body: bytes, **properties: str) -> SendReply:
    marks = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": body.hex().upper()}
    return await client.send("orders", body, {**marks, **properties}, queue_id=2, flags=4)


def test_a_committed_message_appears_and_a_rolled_back_one_does_not(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        half = await send_half(client, b"paid")
        undone = await send_half(client, b"undone")
        assert (half.queue_id, half.queue_offset, undone.queue_offset) == (2, 0, 1)
        assert half.transaction_id == b"paid".hex().upper()
        assert await client.max_offset("orders", 2) == 0
        assert (await client.end(undone, 3)).code == ResponseCode.SYSTEM_ERROR
        assert (await client.end(undone, ROLL_BACK)).code == 0
        assert (await client.end(half, COMMIT)).code == 0
        [message] = await client.await_messages("orders", queue_id=2)
        assert (message.body, message.flags & 12) == (b"paid", COMMIT)
        assert message.prepared_offset == int(half.offset_id[-16:], 16)
        assert message.properties["TRAN_MSG"] == "true"
        assert message.properties["__transactionId__"] == half.transaction_id
        operations = await client.await_messages("RMQ_SYS_TRANS_OP_HALF_TOPIC", 2)
        assert [(each.body, each.tags) for each in operations] == [(b"1", "d"), (b"0", "d")]

    run(tmp_path, scenario)


def test_a_decision_counts_once(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        half = await send_half(client, b"paid")
        replies = await asyncio.gather(*(client.end(half, COMMIT) for _ in range(3)))
        assert ResponseCode.SUCCESS in [each.code for each in replies]
        assert (await client.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert (await client.end(half, ROLL_BACK)).code == ResponseCode.SYSTEM_ERROR
        await client.await_messages("orders", 1, queue_id=2)
        assert await client.max_offset("orders", 2) == 1

    run(tmp_path, scenario)


def test_decisions_of_strangers_are_refused(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        half = await send_half(client, b"paid")
        plain = await client.send("orders", b"plain")
        assert (await client.end(half, COMMIT, group="others")).code == ResponseCode.SYSTEM_ERROR
        assert (await client.end(half, COMMIT, queue_offset=7)).code == ResponseCode.SYSTEM_ERROR
        assert (await client.end(half, COMMIT, log_offset=1 << 40)).code == ResponseCode.SYSTEM_ERROR
        assert (await client.end(plain, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert await client.max_offset("orders", 2) == 0
        late = await send_half(client, b"late", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        await asyncio.sleep(0.3)
        assert (await client.end(late, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await client.end(late, COMMIT, from_check=True)).code == ResponseCode.SUCCESS

    run(tmp_path, scenario, QUICK_CHECKS)


def test_an_undecided_message_is_asked_about_also_after_a_restart(tmp_path: Path) -> None:
    halves: list[SendReply] = []

    async def leave_open(client: RawClient) -> None:
        halves.append(await send_half(client, b"open"))
        decided = await send_half(client, b"decided")
        await client.end(decided, COMMIT)

    async def ask(client: RawClient) -> None:
        await client.heartbeat("p1", producers=("producers",))
        for _ in range(2):
            async with asyncio.timeout(30):
                _, question = await client.asked.get()
            check = decode_fields(question.fields, CheckTransactionRequest)
            assert (check.half_queue_offset, check.transaction_id) == (0, b"open".hex().upper())
            message = decode_record(question.body)
            assert (message.topic, message.queue_id, message.body) == ("orders", 2, b"open")
            assert message.offset_id == halves[0].offset_id
        assert (await client.end(halves[0], COMMIT, from_check=True)).code == 0
        decided, opened = await client.await_messages("orders", 2, queue_id=2)
        assert (decided.body, opened.body) == (b"decided", b"open")
        while not client.asked.empty():
            client.asked.get_nowait()
        await asyncio.sleep(0.7)
        assert client.asked.empty()

    run(tmp_path, leave_open, QUICK_CHECKS)
    run(tmp_path, ask, QUICK_CHECKS)


def test_a_message_nobody_decides_is_given_up_and_can_be_resumed(tmp_path: Path) -> None:
    settings = replace(
        QUICK_CHECKS, transaction_timeout_ms=0, transaction_check_interval_ms=50, transaction_check_max=2
    )

    async def scenario(client: RawClient) -> None:
        half = await send_half(client, b"orphan")
        [given_up] = await client.await_messages("TRANS_CHECK_MAX_TIME_TOPIC")
        assert given_up.body == b"orphan"
        assert (await client.end(half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        await client.heartbeat("p1", producers=("producers",))
        await client.ask(ResumeCheckRequest(msg_id=given_up.offset_id))
        async with asyncio.timeout(30):
            _, question = await client.asked.get()
        check = decode_fields(question.fields, CheckTransactionRequest)
        assert check.half_queue_offset == 1

    run(tmp_path, scenario, settings)


# ── Requests and replies ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reply_reaches_the_client_that_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with run_cluster(data=tmp_path, settings=SETTINGS) as cluster, RawClients() as clients:
            [address] = cluster.brokers.values()
            asking, answering = clients.connect(address), clients.connect(address)
            await asking.heartbeat("asker", producers=("askers",))
            answer = asyncio.create_task(reply(answering, "asker"))  # noqa: TID251 - awaited below
            async with asyncio.timeout(30):
                connection, push = await asking.asked.get()
            assert push.body == b"pong"
            header = decode_fields(push.fields, PushReplyRequest)
            properties = decode_properties(header.properties)
            assert (properties["CORRELATION_ID"], properties["REPLY_TO_CLIENT"]) == ("c-1", "asker")
            assert int(properties["PUSH_REPLY_TIME"]) > 0
            connection.reply(push.reply(0))
            assert (await answer).code == ResponseCode.SUCCESS
            [stored] = await answering.await_messages("DefaultCluster_REPLY_TOPIC")
            assert stored.body == b"pong"
            lost = await reply(answering, "nobody")
            assert lost.code == ResponseCode.SYSTEM_ERROR

    asyncio.run(main())


async def reply(client: RawClient, client_id: str) -> Command:
    command = SendRequest(
        producer_group="answerers",
        topic="DefaultCluster_REPLY_TOPIC",
        queue_id=0,
        born_at_ms=1,
        properties=encode_properties(
            {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": client_id, "TTL": "3000", "MSG_TYPE": "reply"}
        ),
    ).command(body=b"pong")
    command.code = RequestCode.SEND_REPLY_MESSAGE_V2
    return await client.call(command)


# ── Any instant ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_timed_messages_come_at_their_second_and_survive_a_restart(tmp_path: Path) -> None:
    wanted: dict[bytes, int] = {}

    async def send(client: RawClient) -> None:
        now_ms = int(time.time() * 1000)
        await client.send("orders", b"ms", TIMER_DELAY_MS="1500")
        await client.send("orders", b"sec", TIMER_DELAY_SEC="2")
        later = await client.send("orders", b"instant", TIMER_DELIVER_MS=str(now_ms + 3000))
        await client.send("orders", b"past", TIMER_DELIVER_MS=str(now_ms - 5))
        assert later.recall_handle is not None
        wanted.update({b"past": now_ms, b"ms": now_ms + 1500, b"sec": now_ms + 2000, b"instant": now_ms + 3000})

    async def receive(client: RawClient) -> None:
        found = await client.await_messages("orders", 4)
        assert found[0].body == b"past"
        for each in found:
            assert each.stored_at_ms >= wanted[each.body]
            assert each.stored_at_ms < wanted[each.body] + 1000 + LATE_MS_MAX
            assert (each.body == b"past") == ("TIMER_OUT_MS" not in each.properties)
        assert found[1].properties["REAL_TOPIC"] == "orders"

    run(tmp_path, send)
    run(tmp_path, receive)
    run(tmp_path, receive)


def test_a_recalled_message_never_comes(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        gone = await client.send("orders", b"gone", UNIQ_KEY="A" * 32, TIMER_DELAY_SEC="4")
        await client.send("orders", b"kept", UNIQ_KEY="B" * 32, TIMER_DELAY_SEC="4")
        assert gone.recall_handle is not None
        reply = await client.call(
            RecallRequest(producer_group="producers", topic="orders", recall_handle=gone.recall_handle)
        )
        assert (reply.code, reply.fields["msgId"]) == (0, "A" * 32)
        [kept] = await client.await_messages("orders", 1)
        assert kept.body == b"kept"
        assert await client.pull("orders", 0, 1, wait_ms=1500) == []
        for topic, handle in (("orders", "nonsense"), ("orders", gone.recall_handle), ("other", gone.recall_handle)):
            late = await client.call(RecallRequest(producer_group="producers", topic=topic, recall_handle=handle))
            assert late.code in (ResponseCode.ILLEGAL_OPERATION, ResponseCode.TOPIC_NOT_EXIST)

    run(tmp_path, scenario)


def test_delays_out_of_range_are_refused(tmp_path: Path) -> None:
    async def scenario(client: RawClient) -> None:
        for name, value in (("TIMER_DELAY_SEC", "101"), ("TIMER_DELAY_MS", "soon"), ("DELAY", "abc")):
            with pytest.raises(Refused) as refused:
                await client.send("orders", b"x", {name: value})
            assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL

    run(tmp_path, scenario, replace(SETTINGS, timer_max_delay_seconds=100))

"""Many sends at once against brokers whose answers are scripted."""

from __future__ import annotations

import asyncio
import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.aio.producer import Producer
from kappamq.client.aio.runs import ROWS_PER_REQUEST_MAX, RUN_MAX, SendTemplate, split_rows
from kappamq.client.core.preparing import check_message, plain_properties, prepare
from kappamq.client.settings import ProducerSettings
from kappamq.errors import CallTimeout, InvalidMessage, KappaError, Refused, TooManyInFlight
from kappamq.kernel import encode_batch_rows, encode_sends
from kappamq.model.message import Message
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.exchange import REQUEST_ID_MAX, Exchange
from kappamq.wire.frame import FrameDecoder
from kappamq.wire.headers import SendRequest, encode_fields
from tests.unit.client.aio.fake_cluster import FakeCluster, close_connection, eventually, ignore
from tests.unit.client.aio.test_producer import SEND, degraded, stored

BATCH = RequestCode.SEND_BATCH_MESSAGE


def messages(count: int) -> list[Message]:
    return [Message("orders", b"%d" % number, keys=f"k{number}") for number in range(count)]


async def test_receipts_come_in_the_order_of_the_messages() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        count = 2 * RUN_MAX + 7
        receipts = await producer.send_all(iter(messages(count)))
        assert len({receipt.message_id for receipt in receipts}) == len(receipts) == count
        by_id = {message.message_id: message for message in stored(cluster)}
        assert [by_id[receipt.message_id].body for receipt in receipts] == [b"%d" % n for n in range(count)]
        assert all(by_id[r.message_id].queue_offset == r.queue_offset for r in receipts)
        assert {receipt.queue.broker for receipt in receipts} == {"a", "b"}
        assert producer.inflight == 0


async def test_nothing_to_send() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        assert await producer.send_all([]) == []


async def test_messages_that_are_not_plain_go_their_own_way() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.queues_of("orders")
        mixed = [
            Message("orders", b"plain"),
            Message("orders", b"y" * 100_000),
            Message("other", b"another topic"),
            Message("orders", b"with a property", properties={"colour": "red"}),
            Message("orders", b"to one queue", properties={"__SHARDINGKEY": "k"}),
        ]
        receipts = await producer.send_all(mixed)
        assert [receipt.queue.topic for receipt in receipts] == [message.topic for message in mixed]
        found = {message.message_id: message for topic in ("orders", "other") for message in stored(cluster, topic)}
        assert found[receipts[3].message_id].properties["colour"] == "red"


async def test_the_first_error_is_raised_when_all_outcomes_are_known() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, ResponseCode.NO_PERMISSION)
        with pytest.raises(Refused):
            await producer.send_all(messages(5))
        assert len(stored(cluster)) == 5
        with pytest.raises(InvalidMessage, match="separator"):
            await producer.send_all([*messages(2), Message("orders", b"x", tags="a\x02b"), *messages(2)])
        assert len(stored(cluster)) == 9
        with pytest.raises(InvalidMessage, match="brokers only"):
            await producer.send_all([Message("SCHEDULE_TOPIC_XXXX", b"x")])
        assert producer.inflight == 0


async def test_what_did_not_get_through_is_sent_again_with_its_id() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, ResponseCode.SYSTEM_BUSY, close_connection)
        receipts = await producer.send_all(messages(4))
        assert len(receipts) == 4
        assert {receipt.message_id for receipt in receipts} <= {message.message_id for message in stored(cluster)}
        assert producer.inflight == 0


async def test_replies_to_runs_and_to_single_sends_share_a_connection() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, ResponseCode.SYSTEM_BUSY, degraded(ResponseCode.FLUSH_DISK_TIMEOUT))
        many = asyncio.get_running_loop().create_task(producer.send_all(messages(50)))
        await asyncio.sleep(0)
        singles = [producer.send_soon(Message("orders", b"single %d" % number)) for number in range(5)]
        receipts = [*await many, *await asyncio.gather(*singles)]
        by_id = {message.message_id: message for message in stored(cluster)}
        wanted = [message.body for message in messages(50)] + [b"single %d" % number for number in range(5)]
        known = [by_id[receipt.message_id].body if receipt.is_ok else b"1" for receipt in receipts]
        assert known == wanted
        assert [receipt.is_ok for receipt in receipts].count(False) == 1
        assert producer.inflight == 0


async def test_no_answer_in_time() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        cluster.broker.script(SEND, *[ignore] * 8)
        with pytest.raises(CallTimeout):
            await producer.send_all(messages(2), timeout=0.05)
        assert producer.inflight == 0


async def test_no_more_in_flight_than_allowed() -> None:
    settings = ProducerSettings(inflight_max=3)
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g", settings=settings) as producer:
        await producer.send(Message("orders", b"first"))
        seen: list[int] = []
        task = asyncio.get_running_loop().create_task(producer.send_all(messages(40)))
        while not task.done():
            seen.append(producer.inflight)
            await asyncio.sleep(0)
        assert len(await task) == 40
        assert max(seen) <= 3


async def test_text_that_cannot_be_encoded_leaves_nothing_open() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        await producer.send(Message("orders", b"first"))
        with pytest.raises(UnicodeEncodeError):
            await producer.send_all([*messages(1), Message("orders", b"x", tags="\ud800")])
        await producer.flush()


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@given(
    st.builds(
        Message,
        st.just("orders"),
        st.binary(min_size=1, max_size=20),
        st.none() | TEXT,
        TEXT | st.lists(TEXT, max_size=3),
        wait_stored=st.booleans(),
    )
)
def test_a_plain_request_is_the_one_that_is_made_otherwise(message: Message) -> None:
    text = plain_properties(message, "ID")
    try:
        check_message(message, body_bytes_max=100)
    except KappaError:
        assert text is None
        return
    assert text == prepare(message, "ID").properties

    def command(born_at_ms: int, properties: str, request_id: int) -> Command:
        fields = encode_fields(
            SendRequest(
                producer_group="g", topic="orders", queue_id=3, born_at_ms=born_at_ms, properties=properties, broker="b"
            )
        )
        return Command(RequestCode.SEND_MESSAGE_V2, request_id, fields, message.body)

    template = SendTemplate(command(0, "", 0), born_at_name="g", properties_name="i")
    frame = encode_sends(
        column([text.encode()]),
        column([message.body]),
        start=0,
        count=1,
        templates=[template.around(b"1700000000000")],
        request_id=77,
    )
    assert decode_frames(frame) == [command(1_700_000_000_000, text, 77)]


def decode_frames(data: bytes) -> list[Command]:
    return FrameDecoder().feed(data)


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def column(values: list[bytes]) -> tuple[bytes, bytes]:
    ends = itertools.accumulate(map(len, values), initial=0)
    return b"".join([end.to_bytes(4, sys.byteorder) for end in ends]), b"".join(values)


def rows(count: int) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    texts = [f'UNIQ_KEY\x01ID{number}\x02WAIT\x01true\x02TAGS\x01"\\é\x02'.encode() for number in range(count)]
    return column(texts), column([b"%d" % number for number in range(count)])


async def test_rows_are_stored_in_all_queues() -> None:
    async with FakeCluster("a", "b") as cluster, Producer(cluster.nameserver, group="g") as producer:
        count = 2 * RUN_MAX + 7
        assert await producer.send_rows("orders", *rows(count), count) == []
        found = {message.message_id: message for message in stored(cluster)}
        assert {name: message.body for name, message in found.items()} == {f"ID{n}": b"%d" % n for n in range(count)}
        assert {message.tags for message in found.values()} == {'"\\é'}
        used = {
            (broker.name, queue) for broker in cluster.brokers for (_, queue), kept in broker.records.items() if kept
        }
        assert len(used) > 2
        assert producer.inflight == 0


async def test_rows_travel_in_few_requests() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        assert await producer.send_rows("orders", *rows(8 * ROWS_PER_REQUEST_MAX), 8 * ROWS_PER_REQUEST_MAX) == []
        assert len(stored(cluster)) == 8 * ROWS_PER_REQUEST_MAX
        assert len(cluster.broker.requests_of(RequestCode.SEND_BATCH_MESSAGE)) == 8


async def test_rows_that_are_not_acknowledged_are_named() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        queues = len(await producer.queues_of("orders"))
        count = 2 * queues
        cluster.broker.script(BATCH, ResponseCode.SYSTEM_BUSY)
        assert await producer.send_rows("orders", *rows(count), count) == [0, 1]
        cluster.broker.script(BATCH, ignore, degraded(ResponseCode.FLUSH_DISK_TIMEOUT))
        assert await producer.send_rows("orders", *rows(count), count, timeout=0.3) == [0, 1, 2, 3]
        cluster.broker.script(BATCH, close_connection)
        assert 0 in await producer.send_rows("orders", *rows(count), count)
        assert producer.inflight == 0
        assert await producer.send_rows("orders", *rows(count), count) == []


async def test_calls_that_overlap_wait_for_their_own_rows() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(BATCH, ignore)
        slow = asyncio.get_running_loop().create_task(producer.send_rows("orders", *rows(1), 1, timeout=2))
        await eventually(lambda: len(cluster.broker.requests_of(BATCH)) == 1)
        assert await producer.send_rows("orders", *rows(5), 5) == []
        assert not slow.done()
        assert await slow == [0]
        assert producer.inflight == 0


async def test_rows_that_are_retries_cannot_travel_together() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        assert await producer.send_rows("%RETRY%g", *rows(2), 2) == [0, 1]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 10), st.integers(1, 200))
def test_rows_are_split_by_number_and_size(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    texts, bodies = column([b"t" * size for size in sizes]), column([b"b" * size for size in reversed(sizes)])
    taken = list(split_rows(texts, bodies, len(sizes), rows_max=rows_max, bytes_max=bytes_max))
    assert [row for piece in taken for row in piece] == list(range(len(sizes)))
    for piece in taken:
        size = len(encode_batch_rows(texts, bodies, start=piece.start, count=len(piece)))
        assert len(piece) == 1 or (len(piece) <= rows_max and size <= bytes_max)


async def test_rows_for_a_topic_that_does_not_take_them() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        assert await producer.send_rows("SCHEDULE_TOPIC_XXXX", *rows(2), 2) == [0, 1]


def test_request_ids_of_many_follow_each_other() -> None:
    exchange: Exchange[str] = Exchange(inflight_max=10)
    first = exchange.open_many("rows", 4, deadline=1.0)
    assert [exchange.close(first + n) for n in range(4)] == ["rows"] * 4
    exchange._next_id = REQUEST_ID_MAX - 1
    exchange.open("last", deadline=1.0)
    assert exchange.open("one", deadline=1.0) == 1
    exchange._next_id = REQUEST_ID_MAX - 2
    assert exchange.open_many("rows", 4, deadline=1.0) == 2
    with pytest.raises(TooManyInFlight):
        exchange.open_many("rows", 5, deadline=1.0)
    assert exchange.inflight == 6

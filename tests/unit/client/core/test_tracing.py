"""Traces: their text, what they say about sends and deliveries, and how they wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kappamq.client.core.preparing import Prepared, prepare, prepare_batch
from kappamq.client.core.receipts import SendReceipt, SendStatus
from kappamq.client.core.tracing import (
    Decided,
    Delivered,
    Handled,
    MessageKind,
    Outcome,
    Published,
    Record,
    TraceBuffer,
    decode_records,
    delivered,
    encode_record,
    pack,
    published,
)
from kappamq.model.message import Message, Queue, StoredMessage
from kappamq.model.properties import encode_properties

ID = "C0A8010A303918B4AAC25EF340BB0005"
REQUEST = "C0A8010A303918B4AAC25EF340BB0006"
OFFSET_ID = "C0A8010A00002A9F0000000000100000"

PUBLISHED = Published(
    at_ms=1758277800123,
    region="DefaultRegion",
    group="pg_demo",
    topic="TopicTest",
    message_id=ID,
    tags="TagA",
    keys="order-1001",
    store_host="192.168.1.10:10911",
    body_bytes=16,
    cost_ms=3,
    kind=MessageKind.NORMAL,
    offset_id=OFFSET_ID,
    is_success=True,
)
DELIVERED = Delivered(
    at_ms=1758277800143,
    region="DefaultRegion",
    group="cg_demo",
    request_id=REQUEST,
    message_id=ID,
    retry_count=0,
    keys="order-1001",
)
HANDLED = Handled(
    request_id=REQUEST,
    message_id=ID,
    cost_ms=7,
    is_success=True,
    keys="order-1001",
    outcome=Outcome.SUCCESS,
    at_ms=1758277800151,
    group="cg_demo",
)
DECIDED = Decided(
    at_ms=1758277800132,
    region="DefaultRegion",
    group="pg_demo",
    topic="TopicTest",
    message_id=ID,
    tags="TagA",
    keys="order-1001",
    store_host="192.168.1.10:10911",
    kind=MessageKind.DECIDED,
    transaction_id=ID,
    state="COMMIT_MESSAGE",
    is_from_check=False,
)
EXAMPLES: list[tuple[Record, str]] = [
    (
        PUBLISHED,
        f"Pub^1758277800123^DefaultRegion^pg_demo^TopicTest^{ID}^TagA^order-1001^192.168.1.10:10911^16^3^0^"
        f"{OFFSET_ID}^true$",
    ),
    (DELIVERED, f"SubBefore^1758277800143^DefaultRegion^cg_demo^{REQUEST}^{ID}^0^order-1001$"),
    (HANDLED, f"SubAfter^{REQUEST}^{ID}^7^true^order-1001^0^1758277800151^cg_demo$"),
    (
        DECIDED,
        f"EndTransaction^1758277800132^DefaultRegion^pg_demo^TopicTest^{ID}^TagA^order-1001^192.168.1.10:10911^2^"
        f"{ID}^COMMIT_MESSAGE^false$",
    ),
]


def text_of(shown: str) -> str:
    return shown.replace("^", "\x01").replace("$", "\x02")


@pytest.mark.parametrize(("record", "shown"), EXAMPLES)
def test_records_have_the_text_that_other_clients_write(record: Record, shown: str) -> None:
    assert encode_record(record) == text_of(shown)
    assert decode_records(text_of(shown)) == [record]


def test_records_follow_each_other() -> None:
    text = "".join(encode_record(record) for record, _ in EXAMPLES)
    assert decode_records(text) == [record for record, _ in EXAMPLES]
    assert decode_records(text.removesuffix("\x02")) == [record for record, _ in EXAMPLES]


def test_missing_tags_and_keys_are_the_text_null() -> None:
    bare = replace(PUBLISHED, tags=None, keys=None)
    assert "\x01null\x01null\x01" in encode_record(bare)
    assert decode_records(encode_record(bare)) == [bare]


def test_separators_in_values_do_not_break_a_record() -> None:
    assert decode_records(encode_record(replace(PUBLISHED, group="a\x01b\x02c"))) == [replace(PUBLISHED, group="a b c")]


def test_older_and_shorter_forms_are_read() -> None:
    fields = encode_record(PUBLISHED).removesuffix("\x02").split("\x01")
    assert decode_records("\x01".join([*fields[:12], "true"])) == [replace(PUBLISHED, offset_id=None)]
    assert decode_records("\x01".join([*fields, "10.0.0.1"])) == [replace(PUBLISHED, client_host="10.0.0.1")]
    cloud = encode_record(HANDLED).removesuffix("\x02").split("\x01")[:7]
    assert decode_records("\x01".join(cloud)) == [replace(HANDLED, at_ms=None, group=None)]
    assert encode_record(replace(HANDLED, at_ms=None, group=None)) == "\x01".join(cloud) + "\x02"


@pytest.mark.parametrize("text", ["", "\x02\x02", "Recall\x01x\x02", "Pub\x01x", "Pub", "SubAfter\x01a\x01b\x01c\x01d"])
def test_what_is_no_record_is_left_out(text: str) -> None:
    assert decode_records(text) == []


def receipt_for(prepared: Prepared) -> SendReceipt:
    count = prepared.message_id.count(",") + 1
    ids = ",".join([OFFSET_ID] * count)
    return SendReceipt(SendStatus.OK, prepared.message_id, ids, Queue("t", "b", 0), 7, region="r1")


def trace(prepared: Prepared, receipt: SendReceipt) -> list[Published]:
    return published(prepared, receipt, group="g", store_host="h:1", started_at_ms=5, cost_ms=2)


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({}, MessageKind.NORMAL),
        ({"TRAN_MSG": "true"}, MessageKind.HALF),
        ({"DELAY": "3"}, MessageKind.DELAYED),
        ({"TIMER_DELAY_MS": "3"}, MessageKind.DELAYED),
    ],
)
def test_a_send_is_traced_with_its_kind(extra: dict[str, str], kind: MessageKind) -> None:
    prepared = prepare(Message("t", b"body", tags="x", keys=["a", "b"]), ID, extra=extra)
    [record] = trace(prepared, receipt_for(prepared))
    assert (record.topic, record.message_id, record.tags, record.keys) == ("t", ID, "x", "a b")
    assert (record.region, record.group, record.store_host, record.offset_id) == ("r1", "g", "h:1", OFFSET_ID)
    assert (record.at_ms, record.cost_ms, record.body_bytes, record.kind) == (5, 2, 4, kind)


def test_every_message_of_a_batch_is_traced() -> None:
    prepared = prepare_batch([Message("t", b"a", keys="k1"), Message("t", b"bc")], ["A", "B"], body_bytes_max=1000)
    records = trace(prepared, receipt_for(prepared))
    assert [(each.message_id, each.keys, each.body_bytes) for each in records] == [("A", "k1", 1), ("B", None, 2)]


def test_brokers_that_want_no_traces_get_none() -> None:
    prepared = prepare(Message("t", b"body"), ID)
    receipt = receipt_for(prepared)
    [record] = trace(prepared, SendReceipt(receipt.status, ID, OFFSET_ID, receipt.queue, 7))
    assert record.region == "DefaultRegion"
    off = SendReceipt(receipt.status, ID, OFFSET_ID, receipt.queue, 7, region="r1", is_traced=False)
    assert trace(prepared, off) == []


def test_deliveries_are_traced_where_the_broker_wants_it() -> None:
    def message(properties: dict[str, str]) -> StoredMessage:
        return StoredMessage("t", b"", 0, 0, 0, 0, 0, 0, b"", 0, b"", 2, 0, encode_properties(properties), 0, 0)

    messages = [
        message({"UNIQ_KEY": "A", "MSG_REGION": "r", "KEYS": "k"}),
        message({"UNIQ_KEY": "B"}),
        message({"UNIQ_KEY": "C", "MSG_REGION": "r", "TRACE_ON": "false"}),
    ]
    first, second = delivered(messages, group="g", request_id="R", at_ms=9)
    expected = Delivered(at_ms=9, region="r", group="g", request_id="R", message_id="A", retry_count=2, keys="k")
    assert first == ("t", expected)
    assert second == ("t", replace(expected, region="DefaultRegion", message_id="B", keys=None))


def test_a_full_buffer_drops_and_counts() -> None:
    buffer = TraceBuffer(records_max=2)
    for _ in range(5):
        buffer.add("t", PUBLISHED)
    assert (len(buffer), buffer.dropped) == (2, 3)
    [message] = buffer.take()
    assert decode_records(message.body.decode()) == [PUBLISHED, PUBLISHED]
    assert message.keys == (ID, "order-1001")
    assert (len(buffer), buffer.take()) == (0, [])


def test_a_trace_message_holds_one_topic() -> None:
    buffer = TraceBuffer()
    for topic, record in (("a", PUBLISHED), ("b", DELIVERED), ("a", HANDLED)):
        buffer.add(topic, record)
    assert [decode_records(each.body.decode()) for each in buffer.take()] == [[PUBLISHED, HANDLED], [DELIVERED]]


def test_large_traces_are_cut_by_size_and_by_keys() -> None:
    records = [replace(DELIVERED, message_id=f"{number:032}", keys=None) for number in range(10)]
    size = len(encode_record(records[0]))
    by_size = pack(records, characters_max=3 * size + 1)
    assert [len(each.keys) for each in by_size] == [3, 3, 3, 1]
    by_keys = pack(records, keys_characters_max=4 * 33)
    assert [len(each.keys) for each in by_keys] == [4, 4, 2]
    assert [record for each in by_keys for record in decode_records(each.body.decode())] == records
    assert len(pack(records[:1], characters_max=1)) == 1

"""Where messages go: delay levels, instants, half messages, and their way back."""

import pytest

from kappamq.broker.placing import (
    PlacingRules,
    as_half,
    delivery_of,
    is_half,
    place,
    timer_tick,
)
from kappamq.errors import InvalidMessage
from kappamq.model.message import Flags
from kappamq.model.properties import decode_properties, encode_properties
from kappamq.model.record import NewRecord, decode_record

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
NOW_MS = 1_700_000_000_400
RULES = PlacingRules(delay_levels=18, timer_enabled=True, timer_max_delay_seconds=100)


def record_with(flags: int = 0, topic: str = "orders", **properties: str) -> tuple[NewRecord, str]:
    text = encode_properties(properties)
    return NewRecord(topic, 3, b"body", text.encode(), 1, HOST, HOST, flags=flags), text


def placed(flags: int = 0, topic: str = "orders", rules: PlacingRules = RULES, **properties: str) -> NewRecord:
    record, text = record_with(flags, topic, **properties)
    return place(record, text, rules=rules, now_ms=NOW_MS)


def test_plain_messages_go_where_they_are_sent() -> None:
    record, text = record_with(KEYS="k")
    assert place(record, text, rules=RULES, now_ms=NOW_MS) is record


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("99", 18)])
def test_a_delay_level_leads_to_its_queue(asked: str, level: int) -> None:
    record = placed(DELAY=asked, TIMER_DELAY_SEC="5")
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    properties = decode_properties(record.properties.decode())
    assert properties == {"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "3"}


@pytest.mark.parametrize("asked", ["0", "-1"])
def test_no_delay_level_means_no_delay(asked: str) -> None:
    assert placed(DELAY=asked).topic == "orders"


def test_a_delay_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="not a number"):
        placed(DELAY="abc")
    with pytest.raises(InvalidMessage, match="TIMER_DELAY_MS"):
        placed(TIMER_DELAY_MS="soon")


def test_only_plain_and_committed_messages_are_delayed() -> None:
    assert placed(Flags.COMMITTED, DELAY="1").topic == "SCHEDULE_TOPIC_XXXX"
    assert placed(Flags.PREPARED, DELAY="1").topic == "orders"


@pytest.mark.parametrize(
    ("properties", "tick_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, 1_700_000_002_000),
        ({"TIMER_DELAY_MS": "1600"}, 1_700_000_001_000),
        ({"TIMER_DELIVER_MS": "1700000009000"}, 1_700_000_008_000),
        ({"TIMER_DELIVER_MS": "1700000009001"}, 1_700_000_009_000),
        ({"TIMER_DELIVER_MS": "1700000009001", "TIMER_DELAY_SEC": "1"}, 1_700_000_001_000),
    ],
)
def test_an_instant_leads_to_the_timer_topic(properties: dict[str, str], tick_ms: int) -> None:
    plain, text = record_with()
    record = place(plain, text + encode_properties(properties), rules=RULES, now_ms=NOW_MS)
    assert (record.topic, record.queue_id) == ("rmq_sys_wheel_timer", 0)
    found = decode_properties(record.properties.decode())
    assert found["TIMER_OUT_MS"] == str(tick_ms)
    assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("orders", "3")


def test_a_tick_is_the_second_before_the_instant_rounded_up() -> None:
    for deliver_at_ms in (1000, 1001, 1999, 2000):
        due_ms = timer_tick(deliver_at_ms) + 1000
        assert deliver_at_ms <= due_ms < deliver_at_ms + 1000


def test_instants_that_are_over_too_far_or_set_already() -> None:
    assert placed(TIMER_DELIVER_MS=str(NOW_MS)).topic == "orders"
    assert placed(TIMER_DELAY_SEC="5", TIMER_OUT_MS="1").topic == "orders"
    assert placed(TIMER_DELAY_SEC="100").topic == "rmq_sys_wheel_timer"
    with pytest.raises(InvalidMessage, match="too long"):
        placed(TIMER_DELAY_SEC="101")
    with pytest.raises(InvalidMessage, match="recalled"):
        placed(TIMER_DELIVER_MS="1", TIMER_DEL_UNIQKEY="orders+A")
    with pytest.raises(InvalidMessage, match="switched off"):
        placed(rules=PlacingRules(delay_levels=18, timer_enabled=False, timer_max_delay_seconds=1), TIMER_DELAY_SEC="1")


def test_half_messages() -> None:
    record, text = record_with(int(Flags.PREPARED | Flags.COMPRESSED), TRAN_MSG="true", UNIQ_KEY="A", DELAY="2")
    assert is_half(text, 0)
    half = as_half(record, text)
    assert (half.topic, half.queue_id, half.flags) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, Flags.COMPRESSED)
    properties = decode_properties(half.properties.decode())
    assert (properties["__transactionId__"], properties["REAL_TOPIC"]) == ("A", "orders")
    assert not is_half(text, 1)
    assert not is_half(encode_properties({"TRAN_MSG": "false"}), 0)
    assert not is_half(encode_properties({"KEYS": "TRAN_MSG"}), 0)


def test_a_delivery_names_the_waiting_record_and_keeps_its_properties() -> None:
    waiting = placed(DELAY="2", TAGS="T")
    bytes_ = waiting.encode(queue_offset=7, log_offset=4096, stored_at_ms=NOW_MS, append_crc=False)
    message = decode_record(bytes_)
    delivery = delivery_of(message)
    assert delivery is not None
    assert (delivery.topic, delivery.queue_id, delivery.prepared_offset) == ("orders", 3, 4096)
    assert delivery.properties == waiting.properties
    assert (delivery.body, delivery.born_at_ms) == (b"body", 1)


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "orders"}, {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}]
)
def test_a_message_without_an_address_is_not_delivered(properties: dict[str, str]) -> None:
    text = encode_properties(properties).encode()
    record = NewRecord("SCHEDULE_TOPIC_XXXX", 0, b"body", text, 1, HOST, HOST)
    message = decode_record(record.encode(queue_offset=0, log_offset=0, stored_at_ms=NOW_MS, append_crc=False))
    assert delivery_of(message) is None

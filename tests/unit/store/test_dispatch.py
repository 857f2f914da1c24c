"""What a record means for queues and index."""

import pytest

from kappamq.model.properties import java_hash
from kappamq.store.dispatch import LEVEL_CHANGE_MS_MAX, Arrival, derive, is_code_of
from kappamq.store.log_scan import RecordFacts
from kappamq.store.settings import DELAY_LEVELS_MS


def derived(text: str, *, topic: str = "orders", flags: int = 0) -> Arrival:
    return derive(RecordFacts(topic, 1, 2, flags, 1_000_000, text), 4096, 205, DELAY_LEVELS_MS)


def test_tag_and_keys() -> None:
    arrival = derived("TAGS\x01TagA\x02UNIQ_KEY\x01U1\x02KEYS\x01a  b\x02")
    assert arrival.tags_code == 2598919
    assert arrival.keys == ("U1", "a", "b")
    assert arrival.has_queue_entry
    assert (arrival.queue_offset, arrival.log_offset, arrival.size) == (2, 4096, 205)


@pytest.mark.parametrize(
    ("text", "code", "keys"),
    [
        ("", 0, ()),
        ("X\x01TAGS\x02", 0, ()),
        ("MYTAGS\x01no\x02XKEYS\x01no\x02", 0, ()),
        ("TAGS\x01", 0, ()),
        ("TAGS\x01a\x02TAGS\x01b\x02", java_hash("b"), ()),
        ("KEYS\x01k", 0, ("k",)),
        ("UNIQ_KEY\x01é😀\x02", 0, ("é😀",)),
    ],
)
def test_property_texts(text: str, code: int, keys: tuple[str, ...]) -> None:
    assert (derived(text).tags_code, derived(text).keys) == (code, keys)


@pytest.mark.parametrize(("level", "delay_ms"), [("1", 1000), ("3", 10_000), ("18", 7_200_000), ("99", 7_200_000)])
def test_code_of_a_delayed_record_is_its_delivery_time(level: str, delay_ms: int) -> None:
    arrival = derived(f"DELAY\x01{level}\x02TAGS\x01a\x02", topic="SCHEDULE_TOPIC_XXXX")
    assert arrival.tags_code == 1_000_000 + delay_ms


@pytest.mark.parametrize("text", ["TAGS\x01a\x02", "DELAY\x010\x02TAGS\x01a\x02", "DELAY\x01x\x02TAGS\x01a\x02"])
def test_schedule_record_without_a_level_keeps_its_tag_code(text: str) -> None:
    assert derived(text, topic="SCHEDULE_TOPIC_XXXX").tags_code == java_hash("a")


@pytest.mark.parametrize(
    ("topic", "code", "is_one"),
    [
        ("orders", 7, True),
        ("orders", 8, False),
        ("orders", -(1 << 31) - 1, True),
        ("SCHEDULE_TOPIC_XXXX", 8, True),
        ("SCHEDULE_TOPIC_XXXX", 8 + LEVEL_CHANGE_MS_MAX, False),
    ],
)
def test_a_delivery_time_may_come_from_other_levels_but_a_tag_code_is_exact(
    topic: str, code: int, is_one: bool
) -> None:
    assert is_code_of(topic, code, 7) is is_one


def test_transaction_types() -> None:
    assert derived("KEYS\x01k\x02", flags=0x8).has_queue_entry
    prepared = derived("KEYS\x01k\x02", flags=0x4)
    assert (prepared.has_queue_entry, prepared.keys) == (False, ("k",))
    rolled_back = derived("KEYS\x01k\x02", flags=0xC)
    assert (rolled_back.has_queue_entry, rolled_back.keys) == (False, ())

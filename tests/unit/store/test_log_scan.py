"""Records found in log bytes."""

from mmap import mmap
from random import Random
from typing import Any

import pytest

from kappamq.kernel import valid_size
from kappamq.kernel.verify_reference import belongs_to
from kappamq.model.record import NewRecord, decode_record, encode_blank
from kappamq.store.log_scan import (
    find_valid_record,
    is_blank_mark,
    is_in_place,
    read_facts,
    stored_at,
    valid_records,
    why_invalid,
)
from tests.faults.records import new_record

V6_HOST = bytes(16) + b"\x00\x00\x2a\x9f"


def encoded(record: NewRecord, log_offset: int, *, crc: bool = True) -> bytes:
    return record.encode(queue_offset=3, log_offset=log_offset, stored_at_ms=1_700_000_000_123, append_crc=crc)


def mapped(data: bytes) -> mmap:
    view = mmap(-1, max(4096, len(data)))
    view[: len(data)] = data
    return view


VARIANTS = [
    new_record(b"body", tags="A", keys="k1 k2", unique_id="u"),
    new_record(b"", topic="t" * 127),
    new_record(b"x" * 3000, topic="%RETRY%" + "g" * 121),
    NewRecord("v6", 1, b"body", b"A\x01B", 1, V6_HOST, V6_HOST, flag=7, retry_count=2, prepared_offset=9),
]


@pytest.mark.parametrize("record", VARIANTS)
@pytest.mark.parametrize("crc", [True, False])
def test_valid_record_is_recognised_and_read(record: NewRecord, crc: bool) -> None:
    data = encoded(record, 1000, crc=crc)
    assert valid_size(data, 0, len(data), 1000) == len(data)
    assert valid_size(data, 0, len(data) - 1, 1000) == 0
    assert valid_size(data, 0, len(data), 1001) == 0
    assert is_in_place(data, 0, log_offset=1000, size=len(data))
    message = decode_record(data)
    facts = read_facts(data, 0)
    assert facts[:5] == (record.topic, record.queue_id, 3, message.flags, 1_700_000_000_123)
    assert facts.properties_text == message.properties_text
    assert stored_at(data, 0) == 1_700_000_000_123
    place: dict[str, Any] = {"topic": record.topic.encode(), "queue_id": record.queue_id, "queue_offset": 3}
    assert belongs_to(data, 0, **place)
    for change in ({"topic": b"x" + place["topic"][1:]}, {"topic": place["topic"] + b"x"}, {"queue_id": 99}):
        assert not belongs_to(data, 0, **(place | change))
    assert not belongs_to(data, 0, **(place | {"queue_offset": 4}))


@pytest.mark.parametrize("record", VARIANTS)
def test_any_flipped_byte_is_noticed_with_the_appended_checksum(record: NewRecord) -> None:
    data = encoded(record, 1000)
    for at in range(0, len(data), 7 if len(data) > 1000 else 1):
        harmed = bytearray(data)
        harmed[at] ^= 0x11
        assert valid_size(bytes(harmed), 0, len(harmed), 1000, crc_from=0) == 0, at


def test_record_without_checksum_is_refused_where_all_have_one() -> None:
    data = encoded(VARIANTS[0], 1000, crc=False)
    assert valid_size(data, 0, len(data), 1000, crc_from=1001) == len(data)
    assert valid_size(data, 0, len(data), 1000, crc_from=1000) == 0


@pytest.mark.parametrize("seed", range(200))
def test_random_bytes_are_no_record(seed: int) -> None:
    data = Random(seed).randbytes(300)
    assert valid_size(data, 0, len(data), 0) == 0
    # With a plausible head the lengths inside decide; nothing may run out of the buffer.
    head = encoded(VARIANTS[0], 0)[:84]
    assert valid_size(head + data, 0, 84 + len(data), 0) == 0


def test_walk_and_search() -> None:
    first = encoded(VARIANTS[0], 4096)
    second = encoded(VARIANTS[3], 4096 + len(first))
    view = mapped(first + second)
    assert list(valid_records(view, 0, len(view), log_start=4096)) == [(0, len(first)), (len(first), len(second))]
    view[20:30] = b"\xff" * 10
    assert list(valid_records(view, 0, len(view), log_start=4096)) == []
    assert find_valid_record(view, 0, len(view), log_start=4096) == len(first)
    assert find_valid_record(view, len(first) + 1, len(view), log_start=4096) is None
    assert "checksum" in why_invalid(view, 0, log_offset=4096) or "belongs" in why_invalid(view, 0, log_offset=4096)


def test_blank_mark_must_cover_the_rest_of_the_segment() -> None:
    data = bytes(100) + encode_blank(200) + bytes(192)
    assert is_blank_mark(data, 100, 300)
    assert not is_blank_mark(data, 100, 299)
    assert not is_blank_mark(data, 0, 300)
    assert not is_blank_mark(data, 296, 300)

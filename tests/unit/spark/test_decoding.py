"""The fast decoder against decoding message by message."""

import zlib
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.client.core.receiving import decode_pull
from kappamq.errors import CorruptRecord, InvalidMessage, RemoteProtocolError
from kappamq.model.ids import pack_host
from kappamq.model.message import Flags
from kappamq.model.record import NewRecord
from kappamq.model.selector import Selector
from kappamq.spark.columns import COLUMNS, arrow_schema
from kappamq.spark.decoding import Wanted, batch_of_messages, count_records, decode_batch
from kappamq.wire.batch import BatchItem, encode_batch

V4 = pack_host("127.0.0.1", 10911)
V6 = pack_host("::1", 10911)


def record(number: int = 0, **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 3,
        "body": f"body {number}".encode(),
        "properties": f"KEYS\x01k{number}\x02UNIQ_KEY\x01id{number}\x02TAGS\x01t{number % 3}\x02".encode(),
        "born_at_ms": 1_700_000_000_000 + number,
        "born_host": V4,
        "store_host": V4,
        "retry_count": number % 2,
    }
    append_crc = changes.pop("append_crc", False)
    return NewRecord(**(values | changes)).encode(
        queue_offset=number, log_offset=1000 + number, stored_at_ms=1_700_000_001_000 + number, append_crc=append_crc
    )


def expect(buffer: bytes, columns: tuple[str, ...] = COLUMNS, selector: Selector | None = None) -> Any:
    messages = decode_pull(buffer, broker="broker-a")
    if selector is not None:
        messages = [message for message in messages if selector.matches(message.properties)]
    return batch_of_messages(messages, columns)


def same(buffer: bytes, columns: tuple[str, ...] = COLUMNS, selector: Selector | None = None) -> None:
    batch = decode_batch(buffer, Wanted(columns, "broker-a", selector=selector))
    assert batch.schema.equals(arrow_schema(columns), check_metadata=True)
    batch.validate(full=True)
    assert batch.to_pylist() == expect(buffer, columns, selector).to_pylist()


name = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=6)
piece = st.one_of(
    st.tuples(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "b"]), name).map(lambda pair: "\x01".join(pair)),
    st.text(st.sampled_from("ab\x01é"), max_size=5),
)
properties = st.builds(
    lambda pieces, closed: ("\x02".join(pieces) + ("\x02" if closed else "")).encode(),
    st.lists(piece, max_size=5),
    st.booleans(),
)
records = st.builds(
    record,
    st.integers(0, 2**40),
    topic=st.sampled_from(["orders", "%DLQ%g", "t" * 200]),
    body=st.binary(max_size=40),
    properties=properties,
    born_at_ms=st.integers(-(2**63), 2**63 - 1),
    born_host=st.sampled_from([V4, V6]),
    store_host=st.sampled_from([V4, V6]),
    append_crc=st.booleans(),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(records, max_size=8), st.sets(st.sampled_from(COLUMNS), min_size=1))
def test_equals_decoding_one_by_one(stored: list[bytes], chosen: set[str]) -> None:
    same(b"".join(stored))
    same(b"".join(stored), tuple(sorted(chosen)))


@settings(deadline=None, max_examples=150)
@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_damage_never_escapes_as_another_error(stored: list[bytes], data: st.DataObject) -> None:
    buffer = bytearray(b"".join(stored))
    for _ in range(data.draw(st.integers(1, 3))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    for row in stored:
        assert len(row) >= 91
    wanted = Wanted(("topic", "properties", "queueOffset", "storeTimestamp"), "broker-a")
    try:
        decode_batch(bytes(buffer), wanted)
    except (CorruptRecord, InvalidMessage, RemoteProtocolError):
        pass  # The last two: flags that now name a batch or a compressed body.


@pytest.mark.parametrize(
    ("method", "compressed"),
    [
        (0, zlib.compress(b"hello" * 100)),
        (Flags.ZLIB, zlib.compress(b"hello" * 100)),
        (Flags.LZ4, lz4.frame.compress(b"hello" * 100)),
        (Flags.ZSTD, zstandard.compress(b"hello" * 100)),
    ],
)
def test_bodies_are_decompressed(method: int, compressed: bytes) -> None:
    buffer = record(1) + record(2, body=compressed, flags=int(Flags.COMPRESSED) | int(method))
    same(buffer)
    assert decode_batch(buffer, Wanted(("body",), "b"))["body"].to_pylist() == [b"body 1", b"hello" * 100]


def test_inner_batches_become_rows() -> None:
    items = [BatchItem(f"part {n}".encode(), f"KEYS\x01k{n}\x02".encode(), 0) for n in range(3)]
    inner = record(7, body=encode_batch(items), flags=int(Flags.NEED_UNWRAP | Flags.INNER_BATCH))
    same(record(6) + inner)
    batch = decode_batch(inner, Wanted(("queueOffset", "body"), "b", start=8))
    assert batch.to_pylist() == [{"queueOffset": 8, "body": b"part 1"}, {"queueOffset": 9, "body": b"part 2"}]


def test_the_last_of_two_equal_properties_wins() -> None:
    buffer = record(1, properties=b"KEYS\x01one\x02KEYS\x01two\x02")
    assert decode_batch(buffer, Wanted(("keys",), "b"))["keys"].to_pylist() == ["two"]


def test_more_names_than_bits() -> None:
    many = b"".join(b"name%d\x01v\x02" % n for n in range(100))
    same(record(1, properties=many) + record(2, properties=many + b"name7\x01w\x02"))
    same(record(1, properties=many) + record(2, properties=many))


def test_range_of_offsets() -> None:
    buffer = b"".join(record(n) for n in range(10))
    assert decode_batch(buffer, Wanted(("queueOffset",), "b", 4, 7))["queueOffset"].to_pylist() == [4, 5, 6]
    assert decode_batch(buffer, Wanted(("queueOffset",), "b", 20, 30)).num_rows == 0


@pytest.mark.parametrize(("expression", "kind"), [("t1 || t2", None), ("none", None), ("KEYS = 'k4'", "SQL92")])
def test_filters(expression: str, kind: str | None) -> None:
    buffer = b"".join(record(n) for n in range(10))
    same(buffer, selector=Selector.parse(expression, kind))


def test_chosen_records_only() -> None:
    buffer = b"".join(record(n) for n in range(10))
    starts = np.cumsum([0, *(len(record(n)) for n in range(10))])
    assert count_records(buffer) == 10
    batch = decode_batch(buffer, Wanted(("queueOffset", "body"), "b"), starts[np.array([1, 5])])
    assert batch["queueOffset"].to_pylist() == [1, 5]


def test_nothing_decodes_to_an_empty_batch() -> None:
    batch = decode_batch(b"", Wanted(COLUMNS, "b"))
    assert batch.num_rows == 0
    assert batch.schema.equals(arrow_schema(COLUMNS))


@pytest.mark.parametrize("cut", [1, 50, 90])
def test_cut_short(cut: int) -> None:
    with pytest.raises(CorruptRecord, match=r"left|cut short"):
        decode_batch(record(1) + record(2)[:cut], Wanted(COLUMNS, "b"))


def test_text_that_is_not_utf8_names_the_record() -> None:
    buffer = record(1) + record(2, properties=b"a\x01\xff\x02")
    with pytest.raises(CorruptRecord, match=f"byte {len(record(1))}"):
        decode_batch(buffer, Wanted(("keys",), "b"))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 49, 300])
def test_values_of_any_length(length: int) -> None:
    """Short values are copied in other ways than long ones, and those at the end of the buffer in yet another."""
    properties = f"KEYS\x01{'k' * length}\x02{'n' * length}\x01{'v' * length}".encode()
    data = b"".join(record(number, body=b"b" * length, properties=properties) for number in range(3))
    expected = batch_of_messages(decode_pull(data, broker="b"), COLUMNS)
    assert decode_batch(data, Wanted(COLUMNS, "b")).equals(expected)


def test_many_small_records() -> None:
    """More than the guess that memory is taken for at first."""
    data = b"".join(record(number, body=b"", properties=b"") for number in range(3000))
    assert len(data) // 256 + 64 < 3000
    batch = decode_batch(data, Wanted(("queueOffset",), "b"))
    assert batch.column(0).to_pylist() == list(range(3000))


def test_batches_that_are_held_keep_their_values() -> None:
    """Memory of a batch is used again, but only when nobody holds any column of it."""
    packs = [b"".join(record(first + number) for number in range(500)) for first in range(0, 5000, 500)]
    expected = [batch_of_messages(decode_pull(pack, broker="b"), COLUMNS) for pack in packs]
    held = []
    for pack in packs:
        decode_batch(packs[0], Wanted(COLUMNS, "b"))
        held.append(decode_batch(pack, Wanted(COLUMNS, "b")))
    assert held == expected
    bodies = [batch.column("body") for batch in held]
    del held
    for pack in reversed(packs):
        decode_batch(pack, Wanted(COLUMNS, "b"))
    assert bodies == [batch.column("body") for batch in expected]

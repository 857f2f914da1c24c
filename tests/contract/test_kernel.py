"""Both kernels do the same, byte for byte: what the compiled one returns or raises is what the reference says."""

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.kernel import reference

compiled = pytest.importorskip("kappamq.kernel._compiled", reason="the compiled kernel is not built")

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec=None))
HOST = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


def outcome(function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str, Any]:
    """What a call returns, or the kind of error that it raises."""
    try:
        return "returned", function(*arguments, **named)
    except (OverflowError, TypeError, ValueError) as fault:
        return "raised", type(fault)


def test_both_kernels_are_of_one_interface() -> None:
    assert compiled.INTERFACE == reference.INTERFACE


@given(st.binary(max_size=400))
def test_crc31(data: bytes) -> None:
    assert compiled.crc31(data) == reference.crc31(data)
    assert compiled.crc31(memoryview(data)) == reference.crc31(memoryview(data))
    assert compiled.crc31(bytearray(data)) == reference.crc31(bytearray(data))


@given(TEXT, TEXT)
def test_java_hash(prefix: str, text: str) -> None:
    assert compiled.java_hash(text) == reference.java_hash(text)
    hashed = reference.java_hash(prefix)
    assert compiled.java_hash_extend(hashed, text) == reference.java_hash_extend(hashed, text)
    assert compiled.java_hash_extend(hashed, text) == reference.java_hash(prefix + text)


def test_java_hash_of_a_long_text_with_pairs() -> None:
    text = "Zürich 東京 🎈" * 300
    assert compiled.java_hash(text) == reference.java_hash(text)


@given(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=300),
            "topic": st.binary(max_size=300),
            "properties": st.binary(max_size=300) | st.just(b"a\x01b\x02"),
            "queue_id": I32,
            "flag": I32,
            "queue_offset": I64,
            "log_offset": I64,
            "flags": I32,
            "born_at_ms": I64,
            "born_host": HOST,
            "stored_at_ms": I64,
            "store_host": HOST,
            "retry_count": I32,
            "prepared_offset": I64,
            "append_crc": st.booleans(),
        }
    )
)
def test_encode_record(fields: dict[str, Any]) -> None:
    assert compiled.encode_record(**fields) == reference.encode_record(**fields)


RECORD: dict[str, Any] = {
    "body": b"body",
    "topic": b"topic",
    "properties": b"",
    "queue_id": 1,
    "flag": 2,
    "queue_offset": 3,
    "log_offset": 4,
    "flags": 5,
    "born_at_ms": 6,
    "born_host": bytes(8),
    "stored_at_ms": 7,
    "store_host": bytes(8),
    "retry_count": 8,
    "prepared_offset": 9,
    "append_crc": True,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue_id", 2**31),
        ("flag", -(2**31) - 1),
        ("flags", 2**40),
        ("queue_offset", 2**63),
        ("log_offset", -(2**63) - 1),
        ("topic", bytes(2**15)),
        ("properties", bytes(2**15 - 21)),
        ("properties", bytes(2**15)),
        ("properties", b"\x02" * (2**15 - 20)),
    ],
)
def test_encode_record_refuses_what_does_not_fit(name: str, value: object) -> None:
    fields = RECORD | {name: value}
    assert outcome(reference.encode_record, **fields) == ("raised", OverflowError)
    assert outcome(compiled.encode_record, **fields) == ("raised", OverflowError)


@pytest.mark.parametrize("properties", [b"\x02" * (2**15 - 21), bytes(2**15 - 22), b""])
def test_encode_record_takes_the_longest_properties(properties: bytes) -> None:
    fields = RECORD | {"properties": properties}
    assert compiled.encode_record(**fields) == reference.encode_record(**fields)


def frame(kind: int, header: bytes, body: bytes) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + bytes((kind,))
        + len(header).to_bytes(3, "big")
        + header
        + body
    )


FRAMES = st.lists(
    st.builds(frame, st.sampled_from((0, 0, 0, 1, 1, 2, 255)), st.binary(max_size=40), st.binary(max_size=40))
    | st.binary(max_size=12),
    max_size=6,
).map(b"".join)


@given(FRAMES, st.integers(0, 60), st.sampled_from((0, 8, 40, 70, 1 << 20)))
def test_split_frames(data: bytes, cut: int, frame_bytes_max: int) -> None:
    for buffer in (data, data[:-cut] if cut else data):
        for start in (0, cut):
            wanted = reference.split_frames(buffer, frame_bytes_max, start)
            assert compiled.split_frames(buffer, frame_bytes_max, start) == wanted


def test_no_function_starts_before_its_buffer() -> None:
    for kernel in (reference, compiled):
        with pytest.raises(ValueError):
            kernel.split_frames(b"", 100, -1)


@given(
    st.lists(st.tuples(st.integers(-2, 70), st.integers(-1, 20)), max_size=8),
    st.integers(-1, 2**62),
    st.integers(-1, 30),
    st.integers(0, 80),
)
def test_gather_records(entries: list[tuple[int, int]], start: int, lowest: int, bytes_max: int) -> None:
    log = bytes(range(64))
    units = b"".join([Struct(">qiq").pack(start + at, size, 5) for at, size in entries])
    arguments = {"start": start, "lowest": start + lowest, "bytes_max": bytes_max}
    assert compiled.gather_records(units, log, **arguments) == reference.gather_records(units, log, **arguments)


def test_gather_records_copies_adjacent_and_scattered_ones() -> None:
    log = bytes(range(64))
    for places, wanted in (((2, 7, 9), log[2:12]), ((9, 2, 40), log[9:12] + log[2:7] + log[40:43])):
        sizes = {2: 5, 7: 2, 9: 3, 40: 3}
        units = b"".join([Struct(">qiq").pack(1000 + at, sizes[at], 0) for at in places])
        for kernel in (reference, compiled):
            found = kernel.gather_records(units, log, start=1000, lowest=0, bytes_max=100)
            assert found == (wanted, 3, 1000 + places[0], 1000 + places[-1])
    for kernel in (reference, compiled):
        with pytest.raises(ValueError):
            kernel.gather_records(b"short", log, start=0, lowest=0, bytes_max=9)
        extreme = Struct(">qiq").pack(2**63 - 1, 2**31 - 1, 0)
        assert kernel.gather_records(extreme, log, start=0, lowest=0, bytes_max=9) is None

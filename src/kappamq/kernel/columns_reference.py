"""Records to values, in plain Python: the specification of what a compiled kernel must do.

The layout of a record is drawn in `reference.py`. `decode_columns` is for Arrow: what it returns are the buffers of its
arrays, in native byte order.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, TypeAlias, TypeVar

from kappamq.errors import CorruptRecord
from kappamq.kernel.reference import MAGIC_V1, MAGIC_V2

INTERFACE = 2
"""Number of this set of functions: a compiled one with another number was built from other sources."""

RECORD_BYTES_MIN = 91

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Made = TypeVar("Made")
Arrays: TypeAlias = "dict[str, tuple[Any, ...]]"

_HEAD = Struct(">iiiiiqqiq")
_TAIL = Struct(">iqi")
_I64 = Struct(">q")
_I16 = Struct(">h")
_BORN_V6 = 0x10
_STORE_V6 = 0x20


def decode_record(buffer: Buffer, at: int, make: Callable[..., Made], broker: str) -> Made:
    """`make(topic, body, queue_id, queue_offset, log_offset, flag, flags, born_at_ms, born_host, stored_at_ms,
    store_host, retry_count, prepared_offset, properties text, body_crc, size, broker)` of the record at `at`.

    Raises `CorruptRecord`. Lengths are checked against the record and the buffer; checksums are not.
    """
    try:
        return make(*_fields(buffer, at), broker)
    except (ValueError, IndexError) as fault:
        raise CorruptRecord(f"record at byte {at} cannot be decoded: {fault}", log_offset=at) from None
    except struct_error:
        raise CorruptRecord(f"record at byte {at} is cut short", log_offset=at) from None


def decode_records(buffer: Buffer, make: Callable[..., Made], broker: str) -> tuple[list[Made], int]:
    """What `decode_record` makes of each record of a pull reply, in order, and all their flags joined."""
    made: list[Made] = []
    joined = at = 0
    while at < len(buffer):
        made.append(decode_record(buffer, at, make, broker))
        size, _, _, _, _, _, _, flags, _ = _HEAD.unpack_from(buffer, at)
        joined |= flags
        at += size
    return made, joined


def decode_properties(text: str) -> dict[str, str]:
    """Properties of their text form; pieces without a name or without a value are dropped, later duplicates win."""
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, separator, value = piece.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def decode_columns(
    buffer: Buffer,  # noqa: ARG001 - the signature of its twin.
    columns: Sequence[str],  # noqa: ARG001
    *,
    starts: bytes | None,  # noqa: ARG001
    first: int | None,  # noqa: ARG001
    end: int | None,  # noqa: ARG001
    tags: Sequence[bytes] | None,  # noqa: ARG001
) -> tuple[int, int, Arrays] | None:
    """Columns of the records of `buffer`: of all, or of those at `starts` (packed i64), in order.

    Only records with a queue offset from `first` to before `end` count, and only those with one of the `tags`. Columns
    are named as Spark names them, and there is `flags`. Returns their number, their flags joined, and for each column
    the buffers of its array: validity bits, number of nulls, offsets where it has them, values. `properties` has row
    offsets, then offsets and values of the names, then those of the values. `None` leaves the work to the caller,
    record by record: where this function is not compiled, and where a record holds a batch, or a property twice.
    """
    return None


def _fields(buffer: Buffer, at: int) -> tuple[Any, ...]:
    if at < 0:
        raise ValueError("its position lies before the buffer")
    total, magic, body_crc, queue_id, flag, queue_offset, log_offset, flags, born_at_ms = _HEAD.unpack_from(buffer, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"unknown magic {magic & 0xFFFFFFFF:#x}")
    if total < RECORD_BYTES_MIN or at + total > len(buffer):
        raise ValueError(f"size {total} does not fit the {len(buffer) - at} bytes that are left")
    end = at + total
    position = at + 48
    born_host = bytes(buffer[position : position + (20 if flags & _BORN_V6 else 8)])
    position += len(born_host)
    (stored_at_ms,) = _I64.unpack_from(buffer, position)
    position += 8
    store_host = bytes(buffer[position : position + (20 if flags & _STORE_V6 else 8)])
    position += len(store_host)
    retry_count, prepared_offset, body_bytes = _TAIL.unpack_from(buffer, position)
    position += 16
    if not 0 <= body_bytes <= end - position:
        raise ValueError(f"body of {body_bytes} bytes does not fit the record")
    body = bytes(buffer[position : position + body_bytes])
    position += body_bytes
    if magic == MAGIC_V1:
        topic_bytes = buffer[position]
        position += 1
    else:
        (topic_bytes,) = _I16.unpack_from(buffer, position)
        position += 2
    if not 0 <= topic_bytes <= end - position:
        raise ValueError(f"topic of {topic_bytes} bytes does not fit the record")
    topic = str(buffer[position : position + topic_bytes], "utf-8")
    position += topic_bytes
    (properties_bytes,) = _I16.unpack_from(buffer, position)
    position += 2
    if properties_bytes < 0 or position + properties_bytes != end:
        raise ValueError(f"parts add up to {position + properties_bytes - at} bytes, not to {total}")
    return (
        topic,
        body,
        queue_id,
        queue_offset,
        log_offset,
        flag,
        flags,
        born_at_ms,
        born_host,
        stored_at_ms,
        store_host,
        retry_count,
        prepared_offset,
        str(buffer[position:end], "utf-8"),
        body_crc,
        total,
    )

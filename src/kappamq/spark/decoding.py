"""From records as they are stored or pulled to Arrow batches, a whole batch at a time.

The kernel takes the records apart and fills the buffers of the columns that are wanted; here they become arrays. What
it leaves to us (inner batches, a property given twice, everything where it is not compiled) and what an SQL filter has
to judge is decoded message by message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kappamq.client.compression import decompress
from kappamq.client.core.receiving import decode_pull
from kappamq.errors import CorruptRecord
from kappamq.kernel import decode_columns
from kappamq.model.message import Flags, StoredMessage
from kappamq.model.properties import Name
from kappamq.model.record import RECORD_BYTES_MIN
from kappamq.model.selector import Selector
from kappamq.spark.columns import ARROW_TYPES, arrow_schema

Ints = npt.NDArray[np.int64]

BUFFER_BYTES_MAX: Final = 1 << 30
"""Most bytes decoded at once: Arrow's offsets have 32 bits."""

_SIZE = Struct(">i").unpack_from
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999, outside of which neither SQL nor Python has timestamps."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants of the records of one broker: columns, a range of queue offsets, a filter."""

    columns: tuple[str, ...]
    broker: str
    start: int | None = None
    end: int | None = None
    selector: Selector | None = None

    @property
    def tags(self) -> list[bytes] | None:
        """Tags of which a record must have one; `None` when it need not."""
        if self.selector is None or self.selector.is_everything or self.selector.condition is not None:
            return None
        return [tag.encode() for tag in self.selector.tags]

    @property
    def has_condition(self) -> bool:
        return self.selector is not None and self.selector.condition is not None


def count_records(buffer: bytes | memoryview) -> int:
    """Number of records of a pull reply. Raises `CorruptRecord` when sizes do not add up."""
    count, at, end = 0, 0, len(buffer)
    while at < end:
        size = _SIZE(buffer, at)[0] if end - at >= 4 else 0
        if size < RECORD_BYTES_MIN or at + size > end:
            raise CorruptRecord(
                f"record at byte {at} has size {size}, but {end - at} bytes are left: fetch it again", log_offset=at
            )
        count += 1
        at += size
    return count


def decode_batch(buffer: bytes | memoryview, wanted: Wanted, starts: Ints | None = None) -> pa.RecordBatch:
    """Batch of the records at `starts` (by default all of `buffer`) that are wanted, in order.

    Raises `CorruptRecord` for bytes that are no record; checksums are not looked at.
    """
    if len(buffer) > BUFFER_BYTES_MAX:
        raise ValueError(f"{len(buffer)} bytes at once are too many: decode at most {BUFFER_BYTES_MAX}")
    found = None
    if not wanted.has_condition:
        packed = None if starts is None else starts.astype(np.int64).tobytes()
        names = (*wanted.columns, "flags") if "body" in wanted.columns else wanted.columns
        found = decode_columns(buffer, names, starts=packed, first=wanted.start, end=wanted.end, tags=wanted.tags)
    if found is None:
        return batch_of_messages(_decode_slowly(buffer, starts, wanted), wanted.columns)
    rows, flags, arrays = found
    columns = {name: _array(name, rows, arrays[name]) for name in wanted.columns if name != "broker"}
    if "body" in columns and flags & Flags.COMPRESSED:
        each = np.frombuffer(arrays["flags"][2], dtype=np.int32).tolist()
        bodies = [decompress(body, flag) for body, flag in zip(columns["body"].to_pylist(), each)]
        columns["body"] = pa.array(bodies, type=pa.binary())
    if "broker" in wanted.columns:
        columns["broker"] = pa.repeat(pa.scalar(wanted.broker, pa.string()), rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted.columns], schema=arrow_schema(wanted.columns))


def _array(name: str, rows: int, buffers: tuple[Any, ...]) -> pa.Array:
    kind = ARROW_TYPES[name]
    if name == "properties":
        row_offsets, name_offsets, names, value_offsets, values = (pa.py_buffer(buffer) for buffer in buffers)
        entries = name_offsets.size // 4 - 1
        return pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), rows + 1, [None, row_offsets]),
            pa.Array.from_buffers(pa.string(), entries, [None, name_offsets, names]),
            pa.Array.from_buffers(pa.string(), entries, [None, value_offsets, values]),
        )
    bits, nulls, *rest = buffers
    validity = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(kind, rows, [validity, *(pa.py_buffer(each) for each in rest)], nulls)


def _decode_slowly(buffer: bytes | memoryview, starts: Ints | None, wanted: Wanted) -> list[StoredMessage]:
    if starts is None:
        messages = decode_pull(buffer, broker=wanted.broker)
    else:
        messages = []
        for at in starts.tolist():
            size = _SIZE(buffer, at)[0] if 0 <= at <= len(buffer) - 4 else 0
            messages += decode_pull(buffer[at : at + max(size, 1)], broker=wanted.broker)
    return [message for message in messages if _is_wanted(message, wanted)]


def _is_wanted(message: StoredMessage, wanted: Wanted) -> bool:
    return (
        (wanted.start is None or message.queue_offset >= wanted.start)
        and (wanted.end is None or message.queue_offset < wanted.end)
        and (wanted.selector is None or wanted.selector.matches(message.properties))
    )


def batch_of_messages(messages: Sequence[StoredMessage], columns: Sequence[str]) -> pa.RecordBatch:
    """The same batch made of messages: the reference for the fast way."""
    rows: Mapping[str, list[Any]] = {
        "topic": [message.topic for message in messages],
        "broker": [message.broker for message in messages],
        "queueId": [message.queue_id for message in messages],
        "queueOffset": [message.queue_offset for message in messages],
        "storeTimestamp": [_microseconds(message.stored_at_ms) for message in messages],
        "bornTimestamp": [_microseconds(message.born_at_ms) for message in messages],
        "keys": [message.properties.get(Name.KEYS) for message in messages],
        "tags": [message.tags for message in messages],
        "messageId": [message.message_id for message in messages],
        "reconsumeTimes": [message.retry_count for message in messages],
        "properties": [list(message.properties.items()) for message in messages],
        "body": [message.body for message in messages],
    }
    arrays = [pa.array(rows[name], type=ARROW_TYPES[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _microseconds(milliseconds: int) -> int | None:
    return milliseconds * 1000 if _MS_MIN <= milliseconds <= _MS_MAX else None

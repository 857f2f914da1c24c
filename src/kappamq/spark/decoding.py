"""From records as they are stored or pulled to Arrow batches, a whole batch at a time.

The layout of a record is drawn in `kernel/reference.py`. Numbers are gathered by numpy, texts and bodies by Arrow: a
binary array whose offsets alternate between values and the gaps between them lies over the records without a copy, and
one `take` collects the values. What is rare (inner batches, a property given twice) is decoded message by message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kappamq.client.compression import decompress
from kappamq.client.core.receiving import decode_pull
from kappamq.errors import CorruptRecord
from kappamq.kernel.reference import MAGIC_V1, MAGIC_V2
from kappamq.model.message import Flags, StoredMessage
from kappamq.model.properties import Name
from kappamq.model.record import RECORD_BYTES_MIN, decode_record
from kappamq.model.selector import Selector
from kappamq.spark.columns import ARROW_TYPES, arrow_schema

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

BUFFER_BYTES_MAX: Final = 1 << 30
"""Most bytes decoded at once: Arrow's offsets have 32 bits."""

_HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("log_offset", ">i8"),
        ("flags", ">i4"),
        ("born_at_ms", ">i8"),
    ]
)
_I64: Final = np.dtype(">i8")
_TAIL: Final = np.dtype([("retry_count", ">i4"), ("prepared", ">i8"), ("body_bytes", ">i4")])
_I16: Final = np.dtype(">i2")
_INNER_BATCH: Final = int(Flags.NEED_UNWRAP | Flags.INNER_BATCH)
_SIZE = Struct(">i").unpack_from
_BITS_MAX: Final = 62
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999, outside of which neither SQL nor Python has timestamps."""
_TEXT_COLUMNS: Final = frozenset({"keys", "tags", "messageId", "properties"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants of the records of one broker: columns, a range of queue offsets, a filter."""

    columns: tuple[str, ...]
    broker: str
    start: int | None = None
    end: int | None = None
    selector: Selector | None = None

    @property
    def filters(self) -> bool:
        return self.selector is not None and not self.selector.is_everything


def find_records(buffer: bytes | memoryview) -> Ints:
    """Where the records of a pull reply begin, one after the other. Raises `CorruptRecord` when sizes do not add up."""
    starts: list[int] = []
    at, end = 0, len(buffer)
    while at < end:
        size = _SIZE(buffer, at)[0] if end - at >= 4 else 0
        if size < RECORD_BYTES_MIN or at + size > end:
            raise CorruptRecord(
                f"record at byte {at} has size {size}, but {end - at} bytes are left: fetch it again", log_offset=at
            )
        starts.append(at)
        at += size
    return np.array(starts, dtype=np.int64)


def decode_batch(buffer: bytes | memoryview, wanted: Wanted, starts: Ints | None = None) -> pa.RecordBatch:
    """Batch of the records at `starts` (by default all of `buffer`) that are wanted, in order.

    Raises `CorruptRecord` for bytes that are no record; checksums are not looked at.
    """
    if len(buffer) > BUFFER_BYTES_MAX:
        raise ValueError(f"{len(buffer)} bytes at once are too many: decode at most {BUFFER_BYTES_MAX}")
    if starts is None:
        starts = find_records(buffer)
    if not len(starts):
        return _empty(wanted.columns)
    records = _locate(buffer, starts, wanted)
    if not len(records.starts):
        return _empty(wanted.columns)
    if bool(np.any(records.head["flags"] & _INNER_BATCH == _INNER_BATCH)):
        return _decode_slowly(buffer, starts, wanted)
    texts = None
    if wanted.filters or _TEXT_COLUMNS & set(wanted.columns):
        texts = _Properties.of(buffer, records)
        if texts is None:
            return _decode_slowly(buffer, starts, wanted)
    if wanted.filters and texts is not None:
        assert wanted.selector is not None
        keep = texts.matching(wanted.selector)
        if not keep.all():
            if not keep.any():
                return _empty(wanted.columns)
            records = records.where(keep)
            texts = _Properties.of(buffer, records)
            assert texts is not None
    return pa.RecordBatch.from_arrays(
        [_column(name, buffer, records, texts, wanted.broker) for name in wanted.columns],
        schema=arrow_schema(wanted.columns),
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """Checked positions of the parts of each record."""

    starts: Ints
    head: Any
    stored_at_ms: Any
    tail: Any
    store_host_at: Ints
    body_at: Ints
    topic_at: Ints
    topic_bytes: Ints
    properties_at: Ints
    ends: Ints

    def where(self, keep: npt.NDArray[np.bool_]) -> "_Records":
        return _Records(*(getattr(self, name)[keep] for name in self.__slots__))


def _locate(buffer: bytes | memoryview, starts: Ints, wanted: Wanted) -> _Records:
    octets = np.frombuffer(buffer, dtype=np.uint8)
    _check(buffer, starts, (starts < 0) | (starts + RECORD_BYTES_MIN > len(octets)))
    head = _gather(octets, starts, _HEAD)
    size = head["size"].astype(np.int64)
    ends = starts + size
    _check(buffer, starts, (size < RECORD_BYTES_MIN) | (ends > len(octets)))
    _check(buffer, starts, (head["magic"] != MAGIC_V1) & (head["magic"] != MAGIC_V2))
    keep = np.ones(len(starts), dtype=np.bool_)
    if wanted.start is not None:
        # An inner batch that begins before the range may reach into it.
        keep &= (head["queue_offset"] >= wanted.start) | (head["flags"] & _INNER_BATCH == _INNER_BATCH)
    if wanted.end is not None:
        keep &= head["queue_offset"] < wanted.end
    if not keep.all():
        starts, head, ends = starts[keep], head[keep], ends[keep]
    if not len(starts):
        return _Records(starts, head, starts, starts, starts, starts, starts, starts, starts, ends)
    flags = head["flags"]
    stored_at = starts + 48 + np.where(flags & Flags.BORN_HOST_V6, 20, 8)
    store_host_at = stored_at + 8
    tail_at = store_host_at + np.where(flags & Flags.STORE_HOST_V6, 20, 8)
    body_at = tail_at + _TAIL.itemsize
    _check(buffer, starts, body_at > ends)
    tail = _gather(octets, tail_at, _TAIL)
    body_bytes = tail["body_bytes"].astype(np.int64)
    topic_size_at = body_at + body_bytes
    is_v1 = head["magic"] == MAGIC_V1
    topic_at = topic_size_at + np.where(is_v1, 1, 2)
    _check(buffer, starts, (body_bytes < 0) | (topic_at > ends))
    topic_bytes = octets[topic_size_at].astype(np.int64)
    if not is_v1.all():
        topic_bytes = np.where(is_v1, topic_bytes, (topic_bytes << 8) | octets[topic_at - 1])
    properties_at = topic_at + topic_bytes + 2
    _check(buffer, starts, properties_at > ends)
    properties_bytes = _gather(octets, properties_at - 2, _I16).astype(np.int64)
    _check(buffer, starts, (properties_bytes < 0) | (properties_at + properties_bytes != ends))
    return _Records(
        starts,
        head,
        _gather(octets, stored_at, _I64),
        tail,
        store_host_at,
        body_at,
        topic_at,
        topic_bytes,
        properties_at,
        ends,
    )


def _gather(octets: Octets, positions: Ints, kind: "np.dtype[Any]") -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(octets, kind.itemsize)
    return np.ascontiguousarray(windows[positions]).view(kind).reshape(len(positions))


def _check(buffer: bytes | memoryview, starts: Ints, is_bad: npt.NDArray[np.bool_]) -> None:
    """Raise for the first bad record what decoding it alone raises, which says what is wrong with it."""
    if is_bad.any():
        at = int(starts[int(np.argmax(is_bad))])
        decode_record(buffer, at)
        raise CorruptRecord(f"record at byte {at} cannot be decoded: its parts do not fit it", log_offset=at)


def _slices(buffer: Any, firsts: Ints, lasts: Ints, kind: pa.DataType) -> pa.Array:
    """Array of `buffer[first:last]` of ascending, separate ranges."""
    offsets = np.empty(2 * len(firsts), dtype=np.int32)
    offsets[0::2] = firsts
    offsets[1::2] = lasts
    data = buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
    values_and_gaps = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    return values_and_gaps.take(pa.array(np.arange(0, len(offsets) - 1, 2, dtype=np.int32)))


def _as_text(values: pa.Array, records: _Records) -> pa.Array:
    """The same bytes as text. Raises `CorruptRecord` when they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        for position, value in enumerate(values.to_pylist()):
            try:
                value.decode()
            except UnicodeDecodeError as fault:
                at = int(records.starts[position])
                raise CorruptRecord(f"record at byte {at} cannot be decoded: {fault}", log_offset=at) from None
        raise


class _Properties:
    """Properties of all records: `row_offsets[i]` to `row_offsets[i + 1]` are the entries of record i."""

    __slots__ = ("codes", "names", "row_offsets", "values")

    def __init__(self, row_offsets: Ints, names: pa.Array, values: pa.Array) -> None:
        self.row_offsets = row_offsets
        self.names = names.dictionary_encode()
        self.values = values
        self.codes: Ints = np.asarray(self.names.indices).astype(np.int64)

    @classmethod
    def of(cls, buffer: bytes | memoryview, records: _Records) -> "_Properties | None":
        """The properties, or `None` when a record has one of them twice."""
        texts = _as_text(_slices(buffer, records.properties_at, records.ends, pa.binary()), records)
        _, offsets_buffer, data = texts.buffers()
        bounds = np.frombuffer(offsets_buffer, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
        rows = bounds.astype(np.int64)
        octets = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        firsts, marks, lasts = _split_pieces(octets[: rows[-1]], rows)
        offsets = np.stack((firsts, marks, marks + 1, lasts), axis=1).reshape(-1).astype(np.int32)
        if not len(offsets):
            none = pa.array([], type=pa.string())
            return cls(np.zeros(len(rows), dtype=np.int64), none, none)
        pieces = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
        at = np.arange(0, len(offsets) - 1, 4, dtype=np.int32)
        found = cls(np.searchsorted(firsts, rows), pieces.take(pa.array(at)), pieces.take(pa.array(at + 2)))
        return None if found._has_duplicates() else found

    def _has_duplicates(self) -> bool:
        counts = np.diff(self.row_offsets)
        if len(self.names.dictionary) <= _BITS_MAX:
            # Adding up the bits of a record's names equals joining them unless one comes twice.
            bits = np.left_shift(np.int64(1), self.codes)
            heads = self.row_offsets[:-1][counts > 0]
            added = np.add.reduceat(bits, heads)
            return bool((added != np.bitwise_or.reduceat(bits, heads)).any())
        rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        return len(np.unique(rows * len(self.names.dictionary) + self.codes)) < len(self.codes)

    def value_of(self, name: str) -> pa.Array:
        """The values of one property, null where it is absent."""
        taken = np.full(len(self.row_offsets) - 1, -1, dtype=np.int64)
        code = pc.index(self.names.dictionary, pa.scalar(name, pa.string())).as_py()
        if code >= 0:
            entries = np.flatnonzero(self.codes == code)
            taken[np.searchsorted(self.row_offsets, entries, side="right") - 1] = entries
        return self.values.take(pa.array(taken, mask=taken < 0))

    def as_map(self) -> pa.Array:
        offsets = pa.array(self.row_offsets.astype(np.int32))
        return pa.MapArray.from_arrays(offsets, self.names.dictionary_decode(), self.values)

    def matching(self, selector: Selector) -> npt.NDArray[np.bool_]:
        if selector.condition is None:
            tags = pa.array(sorted(selector.tags), type=pa.string())
            return np.asarray(pc.is_in(self.value_of(Name.TAGS), value_set=tags), dtype=np.bool_)
        rows = self.as_map().to_pylist()
        return np.array([selector.matches(dict(row)) for row in rows], dtype=np.bool_)


def _split_pieces(octets: Octets, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Start, position of 0x01 and end of every piece that has a name and a value."""
    ends: Ints = np.flatnonzero(octets == 2)
    is_separator: Any = 1
    unclosed = _unclosed_rows(octets, rows)
    if len(unclosed):
        # RocketMQ: some versions leave out the last 0x02, so a piece ends where its record does.
        joined = np.concatenate((unclosed, ends))
        order = np.argsort(joined, kind="stable")
        is_separator = (order >= len(unclosed)).astype(np.int64)[:-1]
        ends = joined[order]
    if not len(ends):
        return ends, ends, ends
    firsts = np.zeros(len(ends), dtype=np.int64)
    firsts[1:] = ends[:-1] + is_separator
    marks: Ints = np.flatnonzero(octets == 1)
    if len(marks) != len(ends) or bool(((marks < firsts) | (marks >= ends)).any()):
        following = np.append(marks, len(octets))
        marks = following[np.searchsorted(marks, firsts)]
    keep = (marks > firsts) & (marks + 1 < ends)
    return (firsts, marks, ends) if keep.all() else (firsts[keep], marks[keep], ends[keep])


def _unclosed_rows(octets: Octets, rows: Ints) -> Ints:
    ends: Ints = rows[1:][np.diff(rows) > 0]
    unclosed: Ints = ends[octets[ends - 1] != 2]
    return unclosed


def _column(
    name: str, buffer: bytes | memoryview, records: _Records, texts: _Properties | None, broker: str
) -> pa.Array:
    head = records.head
    match name:
        case "topic":
            topics = _slices(buffer, records.topic_at, records.topic_at + records.topic_bytes, pa.binary())
            return _as_text(topics, records)
        case "broker":
            return pa.repeat(pa.scalar(broker, pa.string()), len(head))
        case "queueId":
            return pa.array(head["queue_id"].astype(np.int32))
        case "queueOffset":
            return pa.array(head["queue_offset"].astype(np.int64))
        case "storeTimestamp":
            return _times(records.stored_at_ms)
        case "bornTimestamp":
            return _times(head["born_at_ms"])
        case "reconsumeTimes":
            return pa.array(records.tail["retry_count"].astype(np.int32))
        case "body":
            return _bodies(buffer, records)
    assert texts is not None
    match name:
        case "keys":
            return texts.value_of(Name.KEYS)
        case "tags":
            return texts.value_of(Name.TAGS)
        case "messageId":
            return _message_ids(buffer, records, texts)
        case "properties":
            return texts.as_map()
    raise AssertionError(f"no column {name!r}")


def _times(milliseconds: Any) -> pa.Array:
    """Timestamps; null for those that no calendar holds, since a producer's clock may say anything."""
    values = milliseconds.astype(np.int64)
    is_bad = (values > _MS_MAX) | (values < _MS_MIN)
    return pa.array(
        np.where(is_bad, 0, values) * 1000,
        type=pa.timestamp("us", tz="UTC"),
        mask=is_bad if is_bad.any() else None,
    )


def _bodies(buffer: bytes | memoryview, records: _Records) -> pa.Array:
    bodies = _slices(buffer, records.body_at, records.body_at + records.tail["body_bytes"], pa.binary())
    flags = records.head["flags"]
    if not bool((flags & Flags.COMPRESSED).any()):
        return bodies
    return pa.array(
        [decompress(body, flag) for body, flag in zip(bodies.to_pylist(), flags.tolist())],
        type=pa.binary(),
    )


def _message_ids(buffer: bytes | memoryview, records: _Records, texts: _Properties) -> pa.Array:
    unique = texts.value_of(Name.UNIQUE_ID)
    if not unique.null_count:
        return unique
    missing = np.flatnonzero(np.asarray(unique.is_null()))
    ids: list[str | None] = [None] * len(unique)
    for row in missing.tolist():
        ids[row] = decode_record(buffer, int(records.starts[row])).offset_id
    return pc.coalesce(unique, pa.array(ids, type=pa.string()))


def _decode_slowly(buffer: bytes | memoryview, starts: Ints, wanted: Wanted) -> pa.RecordBatch:
    messages: list[StoredMessage] = []
    for at in starts.tolist():
        size = _SIZE(buffer, at)[0]
        messages += decode_pull(bytes(buffer[at : at + size]), broker=wanted.broker)
    return batch_of_messages([message for message in messages if _is_wanted(message, wanted)], wanted.columns)


def _is_wanted(message: StoredMessage, wanted: Wanted) -> bool:
    return (
        (wanted.start is None or message.queue_offset >= wanted.start)
        and (wanted.end is None or message.queue_offset < wanted.end)
        and (wanted.selector is None or wanted.selector.matches(message.properties))
    )


def batch_of_messages(messages: Sequence[StoredMessage], columns: Sequence[str]) -> pa.RecordBatch:
    """The same batch made message by message: the reference for the fast way."""
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


def _empty(columns: Sequence[str]) -> pa.RecordBatch:
    return batch_of_messages([], columns)

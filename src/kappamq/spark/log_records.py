"""What the records of a commit log imply: entries of consume queues, and keys of the index. One task reads one segment.

The rules are those by which a broker dispatches (`kappamq.store.dispatch`), which jobs do not import; tests compare the
results with what a broker wrote.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kappamq.errors import CorruptRecord, InvalidName, UsageError
from kappamq.kernel.reference import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME, MAGIC_V1, MAGIC_V2
from kappamq.model.config import QUEUES_MAX
from kappamq.model.message import TRANSACTION_MASK, Flags, StoredMessage
from kappamq.model.names import SCHEDULE_TOPIC, check_topic
from kappamq.model.properties import Name, java_hash, java_hash_extend, property_of, tags_code
from kappamq.model.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    RECORD_BYTES_MIN,
    decode_mark,
    decode_record,
    verify_record,
)
from kappamq.spark.store_marks import EVER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "segment bigint, logOffset bigint, size int, topic string, queueId int, queueOffset bigint, tagsCode bigint, "
    "storedAt bigint, keysBefore bigint, hashes array<int>, tagHash int, damage string, following bigint"
)
"""A record, or (with `damage`) a place where none is; `queueId` is null for records that are in no queue."""

DELAY_LEVELS_MS: Final = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""The usual delays; entries of delayed messages hold the time of their delivery."""
UNKNOWN_LEVEL_MS: Final = 1000
ROWS_AT_ONCE: Final = 20_000
NAMES_CACHED: Final = 65_536

_NO_ENTRY: Final = (int(Flags.PREPARED), int(Flags.ROLLED_BACK))
_FACTS: Final = frozenset({Name.TAGS, Name.KEYS, Name.UNIQUE_ID})
_MAGICS: Final = tuple(Struct(">i").pack(magic) for magic in (MAGIC_V1, MAGIC_V2))
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Row(NamedTuple):
    """One row of `SCHEMA`."""

    segment: int
    log_offset: int
    size: int = 0
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    tags_code: int | None = None
    stored_at_ms: int | None = None
    keys_before: int = 0
    hashes: Sequence[int] = ()
    tag_hash: int | None = None
    damage: str | None = None
    following: int | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """A place where the log has no valid record; `following` is the next valid one, if there is any."""

    log_offset: int
    text: str
    following: int | None


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delays in milliseconds of a list such as `1s 5m 2h`, a broker's `delay_levels`."""
    delays: list[int] = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise UsageError(f"delay level {word!r} is not a number and a unit: write for example '10s', '5m' or '2h'")
        delays.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    if not delays:
        raise UsageError("no delay level is given: write for example '1s 5s 10s'")
    return tuple(delays)


def key_hash(topic: str, key: str) -> int:
    """Hash under which the index keeps a key of a topic."""
    found = abs(java_hash_extend(_topic_hash(topic), key))
    return found if found < 1 << 31 else 0


@lru_cache(maxsize=NAMES_CACHED)
def _topic_hash(topic: str) -> int:
    return java_hash(topic + "#")


@lru_cache(maxsize=NAMES_CACHED)
def is_topic_name(topic: str) -> bool:
    """Whether a topic can have queues: its name becomes a directory."""
    try:
        check_topic(topic)
    except InvalidName:
        return False
    return True


def scan_segment(
    path: Path, *, delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS, crc_from: int = EVER
) -> Iterator[Row]:
    """Records of one segment in order, and the places between them that hold none.

    A segment that does not end with its last record or with the mark for the rest of it ends with such a place.
    """
    start, at, keys_before = int(path.name), 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        limit = len(mapped)
        while at < limit and not _is_blank_mark(mapped, at):
            try:
                message = _valid_record(mapped, at, log_offset=start + at, crc_from=crc_from)
            except CorruptRecord as fault:
                found = _find_record(mapped, at + 1, start=start, crc_from=crc_from)
                following = start + found if found is not None else None
                yield Row(start, start + at, damage=str(fault), following=following)
                if found is None:
                    return
                at = found
                continue
            row = _row_of(message, start, keys_before, delay_levels_ms)
            yield row
            at += row.size
            keys_before += len(row.hashes)


def _is_blank_mark(mapped: mmap.mmap, at: int) -> bool:
    return decode_mark(mapped[at : at + BLANK_BYTES], 0) == (len(mapped) - at, BLANK_MAGIC)


def _valid_record(mapped: mmap.mmap, at: int, *, log_offset: int, crc_from: int) -> StoredMessage:
    size, _magic = decode_mark(mapped[at : at + BLANK_BYTES], 0)
    if not RECORD_BYTES_MIN <= size <= len(mapped) - at:
        raise CorruptRecord(f"a record at log offset {log_offset} cannot have {size} bytes", log_offset=log_offset)
    window = mapped[at : at + size]
    verify_record(window, 0, log_offset=log_offset)
    if log_offset >= crc_from and not window[-CRC_PROPERTY_BYTES:].startswith(CRC_PROPERTY_NAME):
        raise CorruptRecord(f"record at log offset {log_offset} lacks its checksum", log_offset=log_offset)
    return decode_record(window)


def _find_record(mapped: mmap.mmap, at: int, *, start: int, crc_from: int) -> int | None:
    """Position of the first valid record at or behind `at`."""
    places = [mapped.find(magic, at + 4) for magic in _MAGICS]
    while any(place >= 0 for place in places):
        nearest = min(place for place in places if place >= 0)
        try:
            _valid_record(mapped, nearest - 4, log_offset=start + nearest - 4, crc_from=crc_from)
        except CorruptRecord:
            places = [
                mapped.find(magic, nearest + 1) if place == nearest else place
                for magic, place in zip(_MAGICS, places, strict=True)
            ]
        else:
            return nearest - 4
    return None


def _row_of(message: StoredMessage, start: int, keys_before: int, delay_levels_ms: tuple[int, ...]) -> Row:
    topic, text = message.topic, message.properties_text
    facts = _facts_of(text)
    tags = facts.get(Name.TAGS)
    kind = message.flags & TRANSACTION_MASK
    keys = () if kind == int(Flags.ROLLED_BACK) else _keys_of(facts)
    has_entry = kind not in _NO_ENTRY and 0 <= message.queue_id < QUEUES_MAX and is_topic_name(topic)
    code = tags_code(tags)
    if topic == SCHEDULE_TOPIC:
        code = _delivery_time(text, message.stored_at_ms, delay_levels_ms, otherwise=code)
    return Row(
        start,
        message.log_offset,
        message.size,
        topic,
        message.queue_id if has_entry else None,
        message.queue_offset,
        code,
        message.stored_at_ms,
        keys_before,
        [key_hash(topic, key) for key in keys],
        # RocketMQ: 5.5 also indexes the tag.
        key_hash(topic, f"T#{tags}") if tags else None,
    )


def _facts_of(text: str) -> dict[str, str]:
    """The properties that queues and index are made of; of several with one name the last that is not empty."""
    pieces = (piece.partition("\x01") for piece in text.split("\x02"))
    return {name: value for name, _separator, value in pieces if value and name in _FACTS}


def _keys_of(facts: dict[str, str]) -> tuple[str, ...]:
    unique_id = facts.get(Name.UNIQUE_ID)
    return ((unique_id,) if unique_id else ()) + tuple(filter(None, facts.get(Name.KEYS, "").split(" ")))


def _delivery_time(text: str, stored_at_ms: int, delay_levels_ms: tuple[int, ...], *, otherwise: int) -> int:
    level_text = property_of(text, Name.DELAY)
    if level_text is None or not level_text.lstrip("-").isdigit():
        return otherwise
    level = min(int(level_text), len(delay_levels_ms))
    if level <= 0:
        return otherwise
    return stored_at_ms + (delay_levels_ms[level - 1] if delay_levels_ms else UNKNOWN_LEVEL_MS)


def segment_paths(store: Path) -> list[Path]:
    """Files of a commit log in order. Raises `UsageError` when there are none."""
    directory = store / "commitlog"
    found = sorted(path for path in directory.glob("*") if len(path.name) == 20 and path.name.isdecimal())
    if not found:
        raise UsageError(f"{directory} has no segment: point at a store directory")
    return found


def scan_log(
    spark: "SparkSession",
    segments: Sequence[Path],
    *,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
    crc_from: int = EVER,
) -> "DataFrame":
    """Rows of all segments, one task for each."""
    paths = spark.createDataFrame([(str(path),) for path in segments], "path string")

    def scan(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for path in batch.column(0).to_pylist():
                yield from _arrow(scan_segment(Path(path), delay_levels_ms=delay_levels_ms, crc_from=crc_from))

    return paths.repartition(len(segments), "path").mapInArrow(scan, SCHEMA)


def _arrow(rows: Iterator[Row]) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    wide, short, text = pa.int64(), pa.int32(), pa.string()
    kinds = (wide, wide, short, text, short, wide, wide, wide, wide, pa.list_(short), short, text, wide)
    names = [piece.split()[0] for piece in SCHEMA.split(", ")]
    while some := list(islice(rows, ROWS_AT_ONCE)):
        columns = [pa.array(values, kind) for values, kind in zip(zip(*some, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names)


def live_entries(entries: Iterable[Any]) -> Iterator[Any]:
    """Entries of one queue without those of an earlier life of its topic: what is later in the log counts.

    Rows are topic, queue id, queue offset, log offset, … in the order of queue offsets, the newest of equal ones first.
    """
    newest = -1
    for row in entries:
        if row[3] > newest:
            newest = row[3]
            yield row


def judge_breaks(breaks: Iterable[Break], *, last_record: int, flushed: int, is_clean: bool) -> tuple[int, list[Break]]:
    """Where the log ends (`EVER`: with its last segment), and the breaks before that: damage.

    The rule of recovery: what was flushed must be there. Behind it, the first break is the end of a log that was not
    closed in order; in one that was, only a break that no record follows.
    """
    damage: list[Break] = []
    for each in sorted(breaks, key=lambda each: each.log_offset):
        is_last = each.following is None and last_record < each.log_offset
        if each.log_offset >= flushed and (is_last or not is_clean):
            return each.log_offset, damage
        damage.append(each)
        if is_last:
            return each.log_offset, damage
    return EVER, damage

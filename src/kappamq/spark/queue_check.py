"""Compare the entries of consume queues with what the log implies, one queue after the other."""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from kappamq.spark.log_records import live_entries
from kappamq.spark.store_files import BLANK_SIZE

FINDINGS_PER_QUEUE_MAX: Final = 20
"""Faults of one queue after which the rest of it is not looked at: a lost file would be one for each entry."""

_UNIT = Struct(">qiq")
# RocketMQ: codes below the range of 32 bits are addresses in consumequeue_ext.
_CODE_MIN: Final = -(1 << 31)

Unit = tuple[int, int, int]


class Finding(NamedTuple):
    """One thing that is wrong. `kind` is log, queue, index or checkpoint; `offset` a log offset."""

    kind: str
    file: str
    offset: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Which part of a log counts."""

    log_start: int
    complete_to: int
    """Behind this log offset entries may be missing, or be there."""
    is_clean: bool
    damage: tuple[tuple[int, int], ...] = ()
    """Stretches without valid records: what points there is not wrong, the log is."""

    queues: frozenset[tuple[str, int]] | None = None
    """Queues there must be: of another one only records are left, since its topic was deleted. `None`: not known."""

    def is_damaged(self, log_offset: int) -> bool:
        return any(start <= log_offset < end for start, end in self.damage)

    def has_damage_between(self, start: int, end: int) -> bool:
        return any(start <= at < end for at, _end in self.damage)


class QueueReader:
    """Entries of one queue by number, from its files."""

    def __init__(self, directory: Path) -> None:
        paths = [path for path in sorted(directory.glob("*")) if len(path.name) == 20 and path.name.isdecimal()]
        self._paths = {int(path.name) // _UNIT.size: path for path in paths}
        self._per_file = max((path.stat().st_size for path in paths), default=0) // _UNIT.size
        self._held: tuple[int, bytes | mmap.mmap] = (-1, b"")

    @property
    def first(self) -> int:
        return min(self._paths, default=0)

    def unit(self, queue_offset: int) -> Unit | None:
        """Entry of a number; `None` where the files have none."""
        if not self._per_file or queue_offset < 0:
            return None
        first = queue_offset - queue_offset % self._per_file
        if self._held[0] != first:
            path = self._paths.get(first)
            self._held = (first, _map(path) if path is not None else b"")
        at = (queue_offset - first) * _UNIT.size
        data = self._held[1]
        return _UNIT.unpack_from(data, at) if at + _UNIT.size <= len(data) else None


def _map(path: Path) -> bytes | mmap.mmap:
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def check_queues(entries: Iterable[Any], store: Path, extent: Extent) -> Iterator[Finding]:
    """What is wrong with whole queues, whose entries the log implies in this order (`rebuild.build`)."""
    for (topic, queue_id), rows in groupby(entries, lambda row: (row[0], row[1])):
        where = f"consumequeue/{topic}/{queue_id}"
        below = (row for row in live_entries(rows) if row[3] < extent.complete_to)
        if (store / where).is_dir():
            yield from islice(_check_queue(below, QueueReader(store / where), where, extent), FINDINGS_PER_QUEUE_MAX)
        elif (first := next(below, None)) is not None and (extent.queues is None or (topic, queue_id) in extent.queues):
            yield Finding("queue", where, first[3], "the log has records, but the queue is missing")


def _check_queue(rows: Iterable[Any], reader: QueueReader, where: str, extent: Extent) -> Iterator[Finding]:
    expected: int | None = None
    log_end = extent.log_start
    for _topic, _queue_id, offset, log_offset, size, code in rows:
        if expected is None:
            yield from _surplus(range(offset - 1, reader.first - 1, -1), reader, where, extent)
        elif offset > expected:
            if not extent.has_damage_between(log_end, log_offset):
                yield Finding("log", where, log_offset, f"record {offset} of the queue follows {expected - 1}")
            yield from _surplus(range(expected, offset), reader, where, extent)
        unit = reader.unit(offset)
        if not _agrees(unit, (log_offset, size, code)):
            said = f"is {unit}" if unit is not None else "is missing"
            yield Finding("queue", where, log_offset, f"entry {offset} {said}, the log says {(log_offset, size, code)}")
        expected, log_end = offset + 1, log_offset + size
    if expected is not None and extent.is_clean:
        yield from check_surplus(reader, where, extent, start=expected)


def _agrees(unit: Unit | None, wanted: Unit) -> bool:
    return unit == wanted or (unit is not None and unit[:2] == wanted[:2] and unit[2] < _CODE_MIN)


def check_surplus(reader: QueueReader, where: str, extent: Extent, *, start: int) -> Iterator[Finding]:
    """Entries from `start` on up to the first that is none: they name records that the log does not have."""
    offset = start
    while (unit := reader.unit(offset)) is not None and unit[1] > 0:
        yield from _surplus(range(offset, offset + 1), reader, where, extent)
        offset += 1


def _surplus(offsets: Iterable[int], reader: QueueReader, where: str, extent: Extent) -> Iterator[Finding]:
    """Entries that should not be there, up to the first whose record has expired."""
    for offset in offsets:
        unit = reader.unit(offset)
        if unit is None or unit[1] <= 0 or unit[0] < extent.log_start:
            return
        if unit[1] != BLANK_SIZE and not extent.is_damaged(unit[0]):
            yield Finding("queue", where, unit[0], f"entry {offset} is {unit}, but the log has no such record")

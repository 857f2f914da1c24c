"""A store directory as a reader sees it: segments of the commit log, consume queues, and what is proven to be on disk.

commitlog/<20 digits: log offset of the first byte>                       records, see `kernel/reference.py`
consumequeue/<topic>/<queue id>/<20 digits: first entry times 20>         entries: i64 log offset │ i32 size │ i64 tag
checkpoint         i64 store time of the last flushed record │ …          RocketMQ's
kappamq.flushed    8s session │ i64 flushed log offset │ u32 crc          ours; any version of it that survives is true

Everything is opened for reading only. A broker may be running on the directory.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kappamq.errors import CorruptRecord, UsageError
from kappamq.model.message import Flags
from kappamq.spark.planning import Bounds

ENTRY: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
BLANK_SIZE: Final = 0x7FFFFFFF
"""Size in entries that only fill the space before the first real one."""

_EVER: Final = 2**63 - 1
_FLUSHED = Struct(">8sqI")
_TIME = Struct(">q")
_NAME_DIGITS: Final = 20
_FLAGS_AT: Final = 36
_STORED_AT: Final = 56
_I32 = Struct(">i")

Entries = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the commit log."""

    start: int
    path: Path
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Proven:
    """What is on disk: records that end at or before `log_offset`, and those stored at or before `at_ms`."""

    log_offset: int
    at_ms: int


class StoreFiles:
    """One store directory."""

    def __init__(self, root: Path) -> None:
        if not (root / "commitlog").is_dir() or not (root / "consumequeue").is_dir():
            raise UsageError(
                f"{root} is not a store directory (it lacks commitlog or consumequeue): "
                "point storePath at RocketMQ's storePathRootDir or at KappaMQ's data directory"
            )
        self.root = root

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Files of the commit log, oldest first."""
        return tuple(Segment(int(path.name), path, path.stat().st_size) for path in _numbered(self.root / "commitlog"))

    def topics(self) -> list[str]:
        return sorted(path.name for path in (self.root / "consumequeue").iterdir() if path.is_dir())

    def queue_ids(self, topic: str) -> list[int]:
        directory = self.root / "consumequeue" / topic
        if not directory.is_dir():
            return []
        return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())

    def queue(self, topic: str, queue_id: int) -> "QueueFiles":
        files = list(_numbered(self.root / "consumequeue" / topic / str(queue_id)))
        return QueueFiles(self, files)

    @cached_property
    def proven(self) -> Proven:
        """What may be read. A directory without any checkpoint belongs to no broker: all of it may."""
        checkpoint = self.root / "checkpoint"
        if not checkpoint.exists():
            return Proven(_EVER, _EVER)
        head = checkpoint.read_bytes()[: _TIME.size]
        at_ms = _TIME.unpack(head)[0] if len(head) == _TIME.size else 0
        return Proven(self._flushed(), at_ms)

    def _flushed(self) -> int:
        try:
            data = (self.root / "kappamq.flushed").read_bytes()[: _FLUSHED.size]
        except FileNotFoundError:
            return 0
        if len(data) < _FLUSHED.size:
            return 0
        _, flushed, crc = _FLUSHED.unpack(data)
        return int(flushed) if crc == crc32(data[:16]) else 0

    def segment_at(self, log_offset: int) -> Segment:
        """The segment that holds a log offset. Raises `FileNotFoundError` when it is gone."""
        at = bisect_left(self.segments, log_offset + 1, key=lambda segment: segment.start) - 1
        if at < 0 or log_offset >= self.segments[at].end:
            raise FileNotFoundError(f"no segment of {self.root} holds log offset {log_offset}: it may have expired")
        return self.segments[at]

    def stored_at_ms(self, log_offset: int) -> int:
        """Store time of the record at a log offset."""
        segment = self.segment_at(log_offset)
        with segment.path.open("rb") as file:
            file.seek(log_offset - segment.start)
            record = file.read(91)
        if len(record) < 91:
            raise CorruptRecord(f"record at log offset {log_offset} is cut short", log_offset=log_offset)
        (flags,) = _I32.unpack_from(record, _FLAGS_AT)
        at = _STORED_AT + (12 if flags & Flags.BORN_HOST_V6 else 0)
        return int(_TIME.unpack_from(record, at)[0])


class QueueFiles:
    """One consume queue. Queue offsets count from the first file's name on."""

    def __init__(self, store: StoreFiles, files: list[Path]) -> None:
        self._store = store
        self._files = [(int(path.name) // ENTRY.itemsize, path) for path in files]

    def entries(self) -> Iterator[tuple[int, Entries]]:
        """First queue offset and the used entries of each file."""
        for first, path in self._files:
            if path.stat().st_size < ENTRY.itemsize:
                continue
            whole = np.memmap(path, dtype=ENTRY, mode="r", shape=(path.stat().st_size // ENTRY.itemsize,))
            unused = np.flatnonzero(whole["size"] == 0)
            yield first, whole[: unused[0]] if len(unused) else whole

    def bounds(self) -> Bounds:
        """From the first entry whose record is still in the log to the last whose record is proven to be on disk."""
        log_start = self._store.segments[0].start if self._store.segments else _EVER
        proven = self._store.proven
        start: int | None = None
        end = 0
        for first, entries in self.entries():
            log_offsets = entries["log_offset"].astype(np.int64)
            is_real = (entries["size"] != BLANK_SIZE) & (log_offsets >= log_start)
            if start is None and is_real.any():
                start = first + int(np.argmax(is_real))
            safe = np.flatnonzero(is_real & (log_offsets + entries["size"] <= proven.log_offset))
            by_offset = int(safe[-1]) + 1 if len(safe) else 0
            begin = max(by_offset, int(np.argmax(is_real)))
            by_time = self._first_after(log_offsets, begin, proven.at_ms) if is_real.any() else 0
            visible = max(by_offset, by_time)
            end = first + visible if visible else end
            if visible < len(entries):
                break
        if start is None:
            at = self._next_offset()
            return Bounds(at, at)
        return Bounds(start, max(start, end))

    def offset_at(self, at_ms: int) -> int:
        """Offset of the first record stored at or after a time; the end of the queue if there is none."""
        held = self.bounds()
        for first, entries in self.entries():
            log_offsets = entries["log_offset"].astype(np.int64)
            begin = max(held.start - first, 0)
            if begin >= len(log_offsets):
                continue
            found = self._first_after(log_offsets, begin, at_ms - 1)
            if found < len(log_offsets):
                return min(first + found, held.end)
        return held.end

    def _first_after(self, log_offsets: npt.NDArray[np.int64], begin: int, at_ms: int) -> int:
        """Index of the first record stored after a time: store times of a queue grow."""
        if at_ms >= _EVER:
            return len(log_offsets)

        def stored_at_ms(at: int) -> int:
            try:
                return self._store.stored_at_ms(int(log_offsets[at]))
            except (FileNotFoundError, CorruptRecord):
                return _EVER  # Garbage behind the end of a queue points anywhere.

        return bisect_left(range(len(log_offsets)), at_ms + 1, begin, key=stored_at_ms)

    def _next_offset(self) -> int:
        return max((first + len(entries) for first, entries in self.entries()), default=0)


def _numbered(directory: Path) -> Iterator[Path]:
    """Files of a log in order; leftovers with other names are passed over."""
    if directory.is_dir():
        for path in sorted(directory.iterdir()):
            if len(path.name) == _NAME_DIGITS and path.name.isdecimal():
                yield path

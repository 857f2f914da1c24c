"""The log: segments in order, one growing end.

Threads: the owner changes `segments` and then `written`, never the other way round; both are replaced, not mutated. A
reader takes `written` first and `segments` after it, and so always finds what it was promised.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from kappamq.errors import OffsetOutOfRange, StorageError
from kappamq.store.files import Data, FileSystem, make_directory_durably, storage_error
from kappamq.store.segment import Segment, segment_starts

SPARE_WANTED_RATIO: Final = 0.5
"""How full the last segment may be before the next one should be made."""
PAGES_AHEAD_BYTES: Final = 16 * 1024 * 1024
"""How much of the log behind its end has pages of memory already, at least, while it grows."""


class CommitLog:
    """All segments of the log, the last ones still empty perhaps."""

    def __init__(self, files: FileSystem, directory: Path, *, segment_bytes: int) -> None:
        self._files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: tuple[Segment, ...] = ()
        self.written = 0
        self.flushed = 0
        self.min_offset = 0
        self._spare: Segment | None = None
        self._pages_to = self._pages_due = 0

    def load(self, *, writable: bool = True) -> None:
        """Open what the directory holds. A short last file (from a crash while it was made) is extended."""
        starts = segment_starts(self._files.list_directory(self.directory), self.directory)
        for before, after in pairwise(starts):
            if after - before != self.segment_bytes:
                raise StorageError(
                    f"segment {after} of {self.directory} does not follow segment {before}: "
                    "restore the missing file, or set segment_bytes to what the store was made with"
                )
        opened: list[Segment] = []
        for start in starts:
            if start == starts[-1] and writable:
                self._extend(start)
            opened.append(Segment.open(self._files, self.directory, start, size=self.segment_bytes, writable=writable))
        self.segments = tuple(opened)
        self.min_offset = starts[0] if starts else 0
        self.written = self.flushed = self.min_offset

    def _extend(self, start: int) -> None:
        # A power cut, or a kill while a segment was made or cleared, can leave the last file short: what is missing is
        # zeros. Longer than configured means another configuration, and `Segment.open` refuses that.
        file = self._files.open(self.directory / f"{start:020d}")
        try:
            if file.size() < self.segment_bytes:
                file.resize(self.segment_bytes)
                file.sync()
        finally:
            file.close()

    def segment_at(self, log_offset: int) -> Segment | None:
        """The segment that holds `log_offset`, if any. [any thread]"""
        segments = self.segments
        if not segments:
            return None
        index = (log_offset - segments[0].start) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def read(self, log_offset: int, size: int) -> bytes:
        """Bytes of the log, within one segment and below `written`. [any thread]"""
        written = self.written
        segment = self.segment_at(log_offset)
        if segment is None or size < 0 or log_offset + size > min(written, segment.end):
            raise OffsetOutOfRange(
                f"log offset {log_offset} with {size} bytes lies outside of the log, "
                f"which goes from {self.min_offset} to {written}"
            )
        at = log_offset - segment.start
        return segment.map[at : at + size]

    def tail(self) -> Segment:
        """The segment that the next byte goes to; made if need be."""
        segment = self.segment_at(self.written)
        return segment if segment is not None else self.add_segment(self.written)

    def add_segment(self, start: int) -> Segment:
        """The segment that begins at `start`: an empty one that exists already, the spare one, or a new one."""
        known = self.segment_at(start)
        if known is not None:
            return known
        spare = self._spare
        if spare is not None and spare.start == start:
            segment = spare
        else:
            if not self.segments:
                make_directory_durably(self._files, self.directory)
            segment = Segment.create(self._files, self.directory, start, size=self.segment_bytes)
            if spare is not None:
                spare.close()  # It came too late.
        self._spare = None
        if not self.segments:
            self.min_offset = start
        self.segments = (*self.segments, segment)
        return segment

    @property
    def needs_segment(self) -> bool:
        """Whether the next segment should be made ahead of need."""
        segments = self.segments
        if self._spare is not None or not segments or segments[-1].start > self.written:
            return False
        return self.written - segments[-1].start >= self.segment_bytes * SPARE_WANTED_RATIO

    def prepare_segment(self) -> None:
        """Make the segment after the last one. [any thread, one at a time]

        Safe beside the owner: should the owner need the same file meanwhile, both open it and give it the same length;
        the spare one is then never used, as its start has passed.
        """
        segments = self.segments
        if segments and self._spare is None:
            self._spare = Segment.create(self._files, self.directory, segments[-1].end, size=self.segment_bytes)

    @property
    def needs_pages(self) -> bool:
        """Whether `prepare_pages` should run now, in a thread."""
        return self.written >= self._pages_due

    def prepare_pages(self) -> None:
        """Have the system give pages of memory to what comes behind the end of the log. [any thread, one at a time]

        Else the owner waits for each page while it writes: a virtual machine that has to get the memory from its host
        takes longer for that than for all else together. Reading what is not written yet costs no access to the disk.
        """
        written = self.written
        if self._pages_due:  # The first time nothing is done: perhaps there is not much to come.
            start = max(written, self._pages_to)
            self._pages_to = written + 2 * PAGES_AHEAD_BYTES
            for segment in (*self.segments, *([self._spare] if self._spare is not None else [])):
                first, end = max(start, segment.start), min(self._pages_to, segment.end)
                if first < end:
                    segment.preload([(first, end - first)])
        self._pages_due = written + PAGES_AHEAD_BYTES

    def write(self, parts: Sequence[tuple[Segment, int, Data]], *, end: int) -> None:
        """Write all parts, then move the end of the log; on an error the log is as before, and the error says why.

        What a failed write may have left behind the end is cleared, so that it can never be taken for records.
        """
        attempted: list[tuple[Segment, int]] = []
        try:
            for segment, log_offset, data in parts:
                attempted.append((segment, log_offset))
                segment.write(data, log_offset)
        except OSError as error:
            for segment, log_offset in attempted:
                segment.clear_from(log_offset)
            raise storage_error(f"writing the commit log at offset {attempted[-1][1]} failed", error) from error
        self.written = end

    def flush(self) -> int:
        """Make everything written so far durable; return where that ends. Raises `OSError`. [any thread]"""
        target = self.written
        for segment in self.segments:
            if segment.end > self.flushed and segment.start < target:
                segment.sync()
        return target

    def files_to_flush(self) -> tuple[list[int], int] | None:
        """The open files to sync, and where the log is durable then; `None` when they have no numbers."""
        target = self.written
        files = [
            segment.descriptor for segment in self.segments if segment.end > self.flushed and segment.start < target
        ]
        known = [file for file in files if file is not None]
        return (known, target) if len(known) == len(files) else None

    def cut(self, end: int) -> None:
        """Let the log end at `end`, durably: whatever lies behind it is cleared or deleted."""
        keep = tuple(segment for segment in self.segments if segment.start <= end)
        for segment in reversed(self.segments[len(keep) :]):
            segment.close()
            self._files.unlink(segment.path)
        if len(keep) != len(self.segments):
            self._files.sync_directory(self.directory)
        self.segments = keep
        for segment in keep:
            if segment.end > end and segment.data_end(end) is not None:
                segment.clear_from(end)
        self.written = self.flushed = end

    def drop_before(self, log_offset: int) -> list[Path]:
        """Forget segments that end at or below `log_offset`; returns their files, oldest first, to be deleted.

        Readers that hold one of them go on reading it.
        """
        gone = [segment for segment in self.segments if segment.end <= log_offset]
        self.segments = self.segments[len(gone) :]
        self.min_offset = self.segments[0].start
        for segment in gone:
            segment.close()
        return [segment.path for segment in gone]

    def close(self, *, remove_unused: bool) -> None:
        """Close all files; `remove_unused` deletes those made ahead of need, as a clean store of RocketMQ has none."""
        spare = [self._spare] if self._spare is not None else []
        known = {segment.start for segment in self.segments}
        unused = [segment for segment in self.segments if segment.start >= self.written and segment.start > 0]
        unused += [segment for segment in spare if segment.start not in known and segment.start >= self.written]
        for segment in (*self.segments, *spare):
            segment.close()
        if remove_unused and unused:
            for segment in unused:
                self._files.unlink(segment.path)
            self._files.sync_directory(self.directory)

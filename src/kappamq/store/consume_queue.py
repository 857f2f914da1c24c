"""Where the records of one queue lie in the log: 20 bytes per message, message k at byte k * 20 of the queue's files.

    0 log offset i64 │ 8 record size i32 │ 12 tags code i64

Files have a fixed length and are named by their first byte, like segments. A queue that does not begin with message 0
(older ones were deleted) fills its first file up with blank entries of size 0x7FFFFFFF.

The last entries of a queue are held in memory for a moment and written together: a write for each queue and turn would
cost more than the messages. While very many queues grow at once, each by little, the moment is up to ten seconds.

Threads: only the owner writes. `end` moves after the entries are in the file or held, so a reader that takes `end`
first finds all entries below it. Open maps are replaced, never changed, and stay usable for who has one; what is held
is read by one call that nothing interrupts.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from struct import Struct
from typing import Final

from kappamq.errors import StorageError
from kappamq.kernel import PullWindow, QueueTail
from kappamq.store.files import File, FileSystem
from kappamq.store.segment import PAGE_BYTES, segment_name, segment_starts
from kappamq.store.settings import UNIT_BYTES

UNIT: Final = Struct(">qiq")
BLANK_UNIT: Final = UNIT.pack(0, 0x7FFFFFFF, 0)
BLANK_SIZE: Final = 0x7FFFFFFF
OPEN_SHARE: Final = 6
"""One in this many of the process's open files may be a queue file to write, and as many again mapped ones."""
SYNCED_AT_ONCE: Final = 64
"""Files that are synced between two turns in the interpreter, which the owner needs: each takes it some 50 µs."""


class QueueFile:
    """One file of one queue, opened when needed."""

    __slots__ = ("is_dirty", "is_recent", "map", "path", "start", "writer")

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.start = start
        self.map: mmap | None = None
        self.writer: File | None = None
        self.is_dirty = False
        self.is_recent = False


class QueueFiles:
    """Opens the files of all consume queues and closes those not used lately: there may be tens of thousands."""

    def __init__(self, files: FileSystem, *, file_bytes: int, open_max: int) -> None:
        self.files = files
        self.file_bytes = file_bytes
        self._open_max = max(8, min(open_max, files.open_files_max() // OPEN_SHARE))
        self._mapped: deque[QueueFile] = deque()
        self._writing: deque[QueueFile] = deque()
        self.dirty: deque[QueueFile] = deque()
        self.new_directories: deque[Path] = deque()

    def map_of(self, file: QueueFile) -> mmap:
        """The file as memory. [any thread]"""
        mapped = file.map
        if mapped is None:
            opened = self.files.open(file.path, writable=False)
            try:
                if opened.size() < self.file_bytes:
                    raise StorageError(
                        f"{file.path} is shorter than {self.file_bytes} bytes: restart to rebuild it from the log"
                    )
                mapped = opened.map()
            finally:
                opened.close()
            file.map = mapped
            self._mapped.append(file)
            if len(self._mapped) > self._open_max:
                self._evict_map()
        file.is_recent = True
        return mapped

    def _evict_map(self) -> None:
        # Second chance: a file used since the last look goes to the back. Two threads here at once do no harm: each
        # takes another file off the deque.
        for _ in range(2 * len(self._mapped)):
            try:
                oldest = self._mapped.popleft()
            except IndexError:
                return
            if oldest.is_recent:
                oldest.is_recent = False
                self._mapped.append(oldest)
            else:
                oldest.map = None
                if len(self._mapped) <= self._open_max:
                    return

    def writer_of(self, file: QueueFile) -> File:
        """The file for writing; made with its full length when it does not exist. Owner only."""
        writer = file.writer
        if writer is None:
            writer = self.files.open(file.path, create=True)
            if writer.size() != self.file_bytes:
                writer.resize(self.file_bytes)
                self.new_directories.append(file.path.parent)
            file.writer = writer
            self._writing.append(file)
            if len(self._writing) > self._open_max:
                self._close_writer(self._writing.popleft())
        return writer

    def _close_writer(self, file: QueueFile) -> None:
        if file.writer is not None:
            file.writer.close()
            file.writer = None

    def mark_dirty(self, file: QueueFile) -> None:
        """Remember that the file must be synced; called after the write, so that a sync in between is not missed."""
        if not file.is_dirty:
            file.is_dirty = True
            self.dirty.append(file)

    def sync(self) -> None:
        """Make all entries written before the call durable. [one thread at a time, beside the owner]"""
        left = len(self.dirty)
        while left:
            some = [self.dirty.popleft() for _ in range(min(left, SYNCED_AT_ONCE))]
            left -= len(some)
            for file in some:
                file.is_dirty = False
            try:
                self.files.sync_files([file.path for file in some])
            except OSError:
                for file in some:
                    self.mark_dirty(file)
                raise
        for directory in {self.new_directories.popleft() for _ in range(len(self.new_directories))}:
            try:
                self.files.sync_directory(directory)
            except FileNotFoundError:
                continue

    def forget(self, file: QueueFile) -> None:
        """Close a file that is about to be deleted."""
        self._close_writer(file)
        if file in self._writing:
            self._writing.remove(file)

    def close(self) -> None:
        for file in self._writing:
            self._close_writer(file)
        self._writing.clear()
        self._mapped.clear()


class ConsumeQueue(QueueTail):
    """Entries of one queue: in its files, and at the end some that are held.

    It inherits what changes with every message, so that compiled code gets from a packed row to the queue in one step,
    and from there to its files.
    """

    __slots__ = (
        "_files",
        "_pool",
        "buffer",
        "directory",
        "has_short_tail",
        "is_sound",
        "min_offset",
        "queue_id",
        "topic",
        "warm_from",
        "windows",
    )

    def __init__(self, pool: QueueFiles, directory: Path, topic: str, queue_id: int) -> None:
        super().__init__()
        self._pool = pool
        self._files: dict[int, QueueFile] = {}
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.buffer: list[bytes] = []
        """Entries that the next `write_buffer` adds, one or more in each piece."""
        self.warm_from = 0
        """Entries from here on were written by this process."""
        self.windows: dict[int, PullWindow] = {}
        """Entries that can be handed out at once, see `hot_reads.py`; cleared when any of them change."""
        self.is_sound = True
        """No file is missing or short, except perhaps the last one."""
        self.has_short_tail = False

    def load(self) -> bool:
        """Find the files; `False` when one is missing between others, or too short. Where entries end is open yet."""
        files = self._pool.files
        file_bytes = self._pool.file_bytes
        starts = segment_starts(files.list_directory(self.directory), self.directory)
        self._files = {start: QueueFile(self.directory / segment_name(start), start) for start in starts}
        is_sound = all(after - before == file_bytes for before, after in pairwise(starts))
        for start, file in self._files.items():
            found = files.file_bytes(file.path)
            if found > file_bytes or start % file_bytes:
                raise StorageError(
                    f"{file.path} has {found} bytes, not {file_bytes}: "
                    "set queue_segment_bytes to what the store was made with"
                )
            if found < file_bytes and start == starts[-1]:
                self.has_short_tail = True
            else:
                is_sound = is_sound and found == file_bytes
        return is_sound

    def adopt(self, *, is_foreign: bool) -> None:
        """Have names, and with `is_foreign` entries too, synced by the next checkpoint: who wrote them may not have."""
        self._pool.new_directories.extend((self.directory, self.directory.parent, self.directory.parent.parent))
        if is_foreign:
            for file in self._files.values():
                self._pool.mark_dirty(file)

    def extend_tail(self) -> None:
        """Give the last file its full length: a crash while it was made or cut leaves it short, lacking only zeros."""
        if self.has_short_tail:
            self._pool.writer_of(self._files[max(self._files)])
            self.has_short_tail = False

    @property
    def first_stored(self) -> int:
        """Offset of the first entry that the files have room for."""
        return min(self._files, default=0) // UNIT_BYTES

    @property
    def stored_max(self) -> int:
        """Offset after the last entry that the files have room for."""
        return (max(self._files) + self._pool.file_bytes) // UNIT_BYTES if self._files else 0

    def settle(self, end: int, *, log_end: int) -> None:
        """Declare where the entries end, after recovery or a cut."""
        self.end = self.next = self.tail = self.warm_from = end
        self.log_end = log_end
        self.min_offset = min(self.min_offset, end)
        self.windows.clear()

    def units(self, start: int, count: int) -> bytes:
        """Raw entries from `start`, at most `count` and at most up to the end of their file. [any thread]"""
        first_held, held = self.held_part(start, count)
        if start >= first_held:
            return held
        stored = self._stored_units(start, min(count, first_held - start))
        # What is held goes on where the files end.
        is_next = held and start + len(stored) // UNIT_BYTES == first_held
        return stored + held if is_next else stored

    def _stored_units(self, start: int, count: int) -> bytes:
        at = start * UNIT_BYTES
        file_bytes = self._pool.file_bytes
        file_start = at - at % file_bytes
        file = self._files.get(file_start)
        if file is None:
            return b""
        at -= file_start
        file.is_recent = True
        try:
            view = file.map or self._pool.map_of(file)
        except FileNotFoundError:  # Deleted by retention since `_files` was looked at.
            return b""
        return view[at : min(at + count * UNIT_BYTES, file_bytes)]

    def preload(self, start: int, count: int) -> None:
        """Let the system read entries into memory, so that the map has them at once. [any thread]"""
        at = start * UNIT_BYTES
        file_start = at - at % self._pool.file_bytes
        file = self._files.get(file_start)
        if file is None or start >= self.first_held:
            return
        try:
            opened = self._pool.files.open(file.path, writable=False)
            try:
                opened.pread(count * UNIT_BYTES, at - file_start)
            finally:
                opened.close()
        except OSError:
            pass  # Deleted meanwhile, or the disk has a fault: the read that follows tells.

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Log offset, size and tags code of one entry; `None` where no file is. [any thread]"""
        data = self.units(queue_offset, 1)
        return UNIT.unpack(data) if data else None

    def all_units(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Entries of a range, over all files; stops early where a file is missing."""
        while start < end:
            data = self.units(start, end - start)
            if not data:
                return
            yield from UNIT.iter_unpack(data)
            start += len(data) // UNIT_BYTES

    def first_at(self, log_offset: int, start: int, end: int) -> int:
        """First entry in [start, end) whose record lies at or behind `log_offset`; `end` when there is none."""
        while start < end:
            middle = (start + end) // 2
            found = self.unit(middle)
            if found is None or found[0] < log_offset:
                start = middle + 1
            else:
                end = middle
        return start

    def write_buffer(self, *, may_hold: bool = False) -> None:
        """Add the buffered entries to the files, then make them visible. On an error none becomes visible.

        With `may_hold` a few stay in memory until there are more, or until `write_held`.
        """
        buffer = self.buffer
        if not buffer:
            return
        data = b"".join(buffer)
        last_offset, last_size, _code = UNIT.unpack(data[-UNIT_BYTES:])
        log_end = last_offset + last_size
        if not may_hold or not self.hold(data, log_end):
            held = self.held()
            self._write_at(self.first_held if held else self.end, held + data)
            self.drop_held()
            self.log_end = log_end
            self.end += len(data) // UNIT_BYTES
        buffer.clear()

    @property
    def written(self) -> int:
        """Offset behind the entries that are in the files. [any thread]"""
        end = self.end
        return min(end, self.first_held)

    def write_held(self) -> None:
        """Write the entries that are held in memory."""
        held = self.held()
        if held:
            self._write_at(self.first_held, held)
            self.drop_held()

    def _write_at(self, queue_offset: int, data: bytes) -> None:
        at = queue_offset * UNIT_BYTES
        if self.min_offset == queue_offset and at % self._pool.file_bytes and not self._files:
            self._fill_front(at)
        file_bytes = self._pool.file_bytes
        file_start = at - at % file_bytes
        if at + len(data) <= file_start + file_bytes:
            self._write(file_start, data, at - file_start)
        else:
            position = 0
            while position < len(data):
                file_start = at - at % file_bytes
                piece = data[position : position + file_start + file_bytes - at]
                self._write(file_start, piece, at - file_start)
                position += len(piece)
                at += len(piece)

    def _write(self, file_start: int, data: bytes, at: int) -> None:
        file = self._files.get(file_start)
        if file is None:
            if not self._files:
                # Synced with the next checkpoint: until then the log can bring the queue back.
                self._pool.new_directories.extend(self._pool.files.make_directory(self.directory))
            file = QueueFile(self.directory / segment_name(file_start), file_start)
            self._pool.writer_of(file)
            # Replaced, not changed: reader threads may be iterating.
            self._files = {**self._files, file_start: file}
        (file.writer or self._pool.writer_of(file)).pwrite(data, at)
        self._pool.mark_dirty(file)

    def _fill_front(self, at: int) -> None:
        file_start = at - at % self._pool.file_bytes
        self._write(file_start, BLANK_UNIT * ((at - file_start) // UNIT_BYTES), 0)

    def discard_buffer(self) -> None:
        """Forget buffered entries after a failed write; they will be derived again."""
        self.buffer.clear()
        self.tail = self.end

    def restart_at(self, queue_offset: int) -> None:
        """Let an empty queue begin at `queue_offset`."""
        self.min_offset = queue_offset
        self.settle(queue_offset, log_end=self.log_end)

    def cut(self, end: int, *, log_end: int) -> None:
        """Let the queue end at `end`: entries behind it are zeroed, files behind it deleted.

        RocketMQ takes everything up to the first zero entry for valid, so nothing may be left there.
        """
        self.write_held()
        at = end * UNIT_BYTES
        file_bytes = self._pool.file_bytes
        keep: dict[int, QueueFile] = {}
        for start, file in self._files.items():
            if start < at:
                keep[start] = file
            else:
                self._pool.forget(file)
                self._pool.files.unlink(file.path)
        self._files = keep
        file_start = at - at % file_bytes
        if file_start in keep:
            file = keep[file_start]
            writer = self._pool.writer_of(file)
            writer.resize(at - file_start)
            writer.resize(file_bytes)
            self._pool.mark_dirty(file)
        self.buffer.clear()
        self.settle(end, log_end=log_end)

    def has_data_behind(self) -> bool:
        """Whether anything but zeros lies behind the end, where RocketMQ would take it for entries."""
        if not self._files:
            return False
        at = self.end * UNIT_BYTES
        file_start = at - at % self._pool.file_bytes
        if max(self._files) > file_start:
            return True
        if file_start not in self._files:
            return False
        at -= file_start
        page_end = min(-(-at // PAGE_BYTES) * PAGE_BYTES, self._pool.file_bytes)
        file = self._files[file_start]
        if any(self._pool.map_of(file)[at:page_end]):
            return True
        opened = self._pool.files.open(file.path, writable=False)
        try:
            return page_end < self._pool.file_bytes and opened.next_data(page_end) is not None
        finally:
            opened.close()

    def destroy(self) -> None:
        """Delete all files."""
        self.is_deleted = True
        self.windows.clear()
        self.drop_held()
        for file in self._files.values():
            self._pool.forget(file)
            self._pool.files.unlink(file.path)
        self._files = {}
        self._pool.files.remove_directory(self.directory)

    def trim(self, min_log_offset: int) -> list[Path]:
        """Move the first offset up to the first record that still exists; returns files that are no longer needed."""
        stop = self.end
        self.windows.clear()
        self.min_offset = self.first_at(min_log_offset, max(self.min_offset, self.first_stored), stop)
        last = max(self._files, default=0)
        gone = [
            file
            for start, file in sorted(self._files.items())
            if start != last and (start + self._pool.file_bytes) // UNIT_BYTES <= self.min_offset
        ]
        if gone:
            self._files = {start: file for start, file in self._files.items() if file not in gone}
            for file in gone:
                self._pool.forget(file)
        return [file.path for file in gone]

    def next_file_offset(self, queue_offset: int) -> int:
        """First offset of the file after the one that would hold `queue_offset`."""
        units_per_file = self._pool.file_bytes // UNIT_BYTES
        return (queue_offset // units_per_file + 1) * units_per_file

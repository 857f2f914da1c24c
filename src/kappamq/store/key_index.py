"""Message key → log offset: hash files, each a header, a table of slots and a list of entries.

    header   0 first store time i64 │ 8 last store time i64 │ 16 first log offset i64 │ 24 last log offset i64 │
             32 slots in use i32 │ 36 number of the next entry i32 (the first entry is number 1)
    slot     40 + 4 * slot          i32 number of the newest entry of the chain, 0 for none
    entry    40 + 4 * slots + 20 * number
             0 hash i32 │ 4 log offset i64 │ 12 seconds since the first store time i32 │ 16 next older entry i32

The key is hashed as `topic#key`. Files are named by their local creation time in 17 digits. Entries follow the log, so
log offsets never go down within a file.

Files are written through maps, but only where disk space was reserved before: a full disk must not kill the process.
Without space the index falls behind (`indexed_to`) and catches up from the log later.

Threads: one writes at a time, entries before it links them into slots, so a reader never meets an entry that is not
there.
"""

import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from mmap import mmap
from pathlib import Path
from struct import Struct
from sys import byteorder
from typing import Final

from kappamq.clock import Clock
from kappamq.errors import StorageError
from kappamq.kernel import chain_keys, java_hash, java_hash_extend, link_heads
from kappamq.kernel.reference import KEY_ROW
from kappamq.store.dispatch import Arrival
from kappamq.store.files import FULL_DISK_ERRORS, File, FileSystem, make_directory_durably, storage_error

HEADER: Final = Struct(">qqqqii")
HEADER_BYTES: Final = HEADER.size
ENTRY: Final = Struct(">iqii")
ENTRY_BYTES: Final = ENTRY.size
SLOT_BYTES: Final = 4
NAME_DIGITS: Final = 17
RESERVE_BYTES: Final = 1 << 20
SPARE_NAME: Final = "index.next"
"""The next file, made ahead of need beside the directory: RocketMQ opens whatever lies within it."""
SPARE_SHARE: Final = 10
"""It is made when less than one in this many entries of the last file is free."""
TIME_DIFF_MAX: Final = 2**31 - 1
_I32 = Struct(">i")
_I64 = Struct(">q")


def key_hash(topic_hash: int, key: str) -> int:
    """Hash of a key; `topic_hash` is Java's hash of the topic and `#`."""
    found = abs(java_hash_extend(topic_hash, key))
    return found if found < 1 << 31 else 0


def _seconds(stored_at_ms: int, begin_ms: int) -> int:
    """How an entry says when its record was stored."""
    return max(0, min((stored_at_ms - begin_ms) // 1000, TIME_DIFF_MAX))


class IndexFile:
    """One hash file, open for reading and writing."""

    def __init__(self, path: Path, file: File, *, slots: int, entries: int) -> None:
        self.path = path
        self.name = path.name
        self._file = file
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._reserved_to = 0
        self.map: mmap = file.map(writable=True)
        self.begin_ms = self.end_ms = self.begin_log = self.end_log = 0
        self.slots_used = 0
        self.count = 1
        self.read_header(self.map[:HEADER_BYTES])

    @staticmethod
    def file_bytes(slots: int, entries: int) -> int:
        return HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES

    @classmethod
    def create(cls, files: FileSystem, path: Path, *, slots: int, entries: int) -> "IndexFile":
        """Make a file with its full length and reserved slots; leaves nothing behind when there is no space."""
        file = files.open(path, create=True)
        try:
            file.reserve(0, HEADER_BYTES + slots * SLOT_BYTES)
            # Slots are written all over the place through the map. Had the file system to convert reserved blocks while
            # it writes them back, whoever touches a page then would wait for it: written zeros spare that.
            file.pwrite(bytes(HEADER_BYTES + slots * SLOT_BYTES), 0)
            file.resize(cls.file_bytes(slots, entries))
            file.sync()
            files.sync_directory(path.parent)
            return cls(path, file, slots=slots, entries=entries)
        except BaseException:
            file.close()
            files.unlink(path)
            raise

    @classmethod
    def open(cls, files: FileSystem, path: Path, *, slots: int, entries: int) -> "IndexFile":
        """Open a file that must have the right length."""
        file = files.open(path)
        wanted = cls.file_bytes(slots, entries)
        found = file.size()
        if found != wanted:
            file.close()
            raise StorageError(f"{path} has {found} bytes, not {wanted}: it will be rebuilt from the log")
        return cls(path, file, slots=slots, entries=entries)

    def read_header(self, header: bytes) -> None:
        """Take over the fields of a header."""
        self.begin_ms, self.end_ms, self.begin_log, self.end_log, self.slots_used, count = HEADER.unpack(header)
        # RocketMQ: a fresh file on disk says 0 and means 1; entry 0 is never used.
        self.count = max(1, count)

    def header(self) -> bytes:
        return HEADER.pack(self.begin_ms, self.end_ms, self.begin_log, self.end_log, self.slots_used, self.count)

    def write_header(self) -> None:
        self.map[:HEADER_BYTES] = self.header()

    @property
    def room(self) -> int:
        return self._entries - self.count

    def reserve(self, entries: int) -> None:
        """Take disk space for that many more entries; raises `OSError` when there is none."""
        needed = self._entries_at + (self.count + entries) * ENTRY_BYTES
        if needed > self._reserved_to:
            if not self._reserved_to:
                # The file may come from another broker with holes in its slots.
                self._file.reserve(0, self._entries_at)
            start = self._entries_at + self.count * ENTRY_BYTES
            end = min(max(needed, start + RESERVE_BYTES), self._entries_at + self._entries * ENTRY_BYTES)
            self._file.reserve(start, end - start)
            self._reserved_to = end

    def put(self, items: Sequence[tuple[int, int, int]]) -> None:
        """Add (hash, log offset, store time) of reserved entries, in log order.

        The order of the writes keeps older keys reachable should the process be killed here and RocketMQ go on: entries
        first, then the count that covers them, then the slots, then the log offset up to which all is done.
        """
        view = self.map
        slots = self._slots
        number = self.count
        if number <= 1:
            _hash, self.begin_log, self.begin_ms = items[0]
        begin_ms = self.begin_ms
        heads: dict[int, int] = {}
        entries: list[bytes] = []
        pack = ENTRY.pack
        unpack_slot = _I32.unpack_from
        for hashed, log_offset, stored_at_ms in items:
            slot = hashed % slots
            older = heads.get(slot)
            if older is None:
                (older,) = unpack_slot(view, HEADER_BYTES + slot * SLOT_BYTES)
                if older <= 0 or older >= number:
                    older = 0
                    self.slots_used += 1
            seconds = (stored_at_ms - begin_ms) // 1000
            entries.append(pack(hashed, log_offset, min(seconds, TIME_DIFF_MAX) if seconds > 0 else 0, older))
            heads[slot] = number
            number += 1
        at = self._entries_at + self.count * ENTRY_BYTES
        view[at : at + len(entries) * ENTRY_BYTES] = b"".join(entries)
        self.count = number
        self.write_header()
        pack_slot = _I32.pack_into
        for slot, head in heads.items():
            pack_slot(view, HEADER_BYTES + slot * SLOT_BYTES, head)
        _hash, self.end_log, self.end_ms = items[-1]
        self.write_header()

    def put_packed(self, keys: bytes, *, begin_ms: int, seconds: int, end_ms: int) -> None:
        """Add packed keys (`KEY_ROW`) of reserved entries, so many seconds after the first store time of the file.

        The same order of writes. Nothing here keeps the interpreter while it waits for pages that are on their way to
        the disk.
        """
        if self.count <= 1:
            self.begin_log, self.begin_ms = KEY_ROW.unpack_from(keys)[1], begin_ms
        entries, heads, fresh = chain_keys(
            self.map, keys, at=HEADER_BYTES, slots=self._slots, number=self.count, seconds=seconds
        )
        self._file.pwrite(entries, self._entries_at + self.count * ENTRY_BYTES)
        self.slots_used += fresh
        self.count += len(keys) // KEY_ROW.size
        self._file.pwrite(self.header(), 0)
        link_heads(self.map, heads, at=HEADER_BYTES)
        self.end_log, self.end_ms = KEY_ROW.unpack_from(keys, len(keys) - KEY_ROW.size)[1], end_ms
        self._file.pwrite(self.header(), 0)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Hash, log offset, seconds and next older entry."""
        return ENTRY.unpack_from(self.map, self._entries_at + number * ENTRY_BYTES)

    def find(self, hashed: int, *, begin_ms: int, end_ms: int) -> Iterable[int]:
        """Log offsets under a hash, newest first. Stops where a chain makes no sense. [any thread]"""
        count = self.count
        (number,) = _I32.unpack_from(self.map, HEADER_BYTES + hashed % self._slots * SLOT_BYTES)
        while 0 < number < count:
            found, log_offset, seconds, older = self.entry(number)
            stored_ms = self.begin_ms + seconds * 1000
            # Seconds are cut off, so an entry may be up to one second younger than it looks.
            if seconds < 0 or stored_ms + 999 < begin_ms:
                return
            if found == hashed and stored_ms <= end_ms:
                yield log_offset
            if older >= number:
                return
            number = older

    def entries_below(self, log_offset: int, count: int) -> int:
        """Number of the first entry below `count` whose record lies at or behind `log_offset`."""
        start, end = 1, count
        while start < end:
            middle = (start + end) // 2
            if self.entry(middle)[1] < log_offset:
                start = middle + 1
            else:
                end = middle
        return start

    def roll_back(self, count: int, *, end_ms: int) -> None:
        """Keep the entries below `count` and nothing else; slots are derived from them anew.

        After a crash a slot may point to an entry that was lost, so slots are not believed. `end_ms` is the store time
        of the last record that stays.
        """
        size = HEADER_BYTES + self._slots * SLOT_BYTES
        self._file.reserve(0, size)
        start = self._entries_at + ENTRY_BYTES
        words = array("i", self.map[start : self._entries_at + count * ENTRY_BYTES])
        if byteorder == "little":
            words.byteswap()
        heads = array("i", bytes(self._slots * SLOT_BYTES))
        slots = self._slots
        for number, hashed in enumerate(words[::5], 1):
            heads[hashed % slots] = number
        self.slots_used = slots - heads.count(0)
        if byteorder == "little":
            heads.byteswap()
        self.map[HEADER_BYTES:size] = heads.tobytes()
        self.count = count
        if count > 1:
            self.end_log = self.entry(count - 1)[1]
            self.end_ms = end_ms
        else:
            self.begin_ms = self.end_ms = self.begin_log = self.end_log = 0
        self.write_header()
        entries_end = self._entries_at + count * ENTRY_BYTES
        self._file.resize(entries_end)
        self._file.resize(self.file_bytes(self._slots, self._entries))
        self._file.sync()
        self._reserved_to = 0

    def is_ordered(self, count: int, *, log_end: int) -> bool:
        """Whether the entries below `count` can be an index of the log below `log_end`: offsets never go down."""
        last = 0
        data = self.map[self._entries_at + ENTRY_BYTES : self._entries_at + count * ENTRY_BYTES]
        for hashed, log_offset, seconds, _older in ENTRY.iter_unpack(data):
            if log_offset < last or log_offset >= log_end or hashed < 0 or seconds < 0:
                return False
            last = log_offset
        return True

    def close(self) -> None:
        self._file.close()


class KeyIndex:
    """All index files, oldest first; the last one grows."""

    def __init__(self, files: FileSystem, directory: Path, *, slots: int, entries: int, clock: Clock) -> None:
        self._files_port = files
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._clock = clock
        self._topic_hashes: dict[str, int] = {}
        self.files: tuple[IndexFile, ...] = ()
        self.indexed_to = 0
        """Log offset below which all keys are indexed."""
        self._spare: IndexFile | None = None
        self._may_prepare = True
        self._spare_path = directory.parent / SPARE_NAME
        self._synced_name = ""
        """Files before this one were complete when they were synced last."""

    def names(self) -> list[str]:
        """Files on disk; raises `StorageError` for one that does not belong there."""
        names = self._files_port.list_directory(self._directory)
        for name in names:
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                raise StorageError(f"{self._directory / name} is not an index file (17 digits): move it away")
        return names

    def load(self) -> list[str]:
        """Open all files; those of a wrong length are deleted, and named in the answer: they must be rebuilt."""
        self._files_port.unlink(self._spare_path)
        opened: list[IndexFile] = []
        unusable: list[str] = []
        for name in self.names():
            path = self._directory / name
            try:
                opened.append(IndexFile.open(self._files_port, path, slots=self._slots, entries=self._entries))
            except StorageError:
                self._files_port.unlink(path)
                unusable.append(name)
        self.files = tuple(opened)
        return unusable

    def drop(self, gone: Iterable[IndexFile]) -> None:
        """Delete files."""
        doomed = list(gone)
        self.files = tuple(file for file in self.files if file not in doomed)
        for file in doomed:
            file.close()
            self._files_port.unlink(file.path)
        if doomed:
            self._files_port.sync_directory(self._directory)

    def put(self, arrivals: Sequence[Arrival]) -> bool:
        """Index the keys of records that follow `indexed_to`; `False` when there is no disk space: catch up later."""
        hashes = self._topic_hashes
        items: list[tuple[int, int, int]] = []
        for arrival in arrivals:
            keys = arrival.keys
            if keys:
                topic = arrival.topic
                topic_hash = hashes.get(topic)
                if topic_hash is None:
                    topic_hash = hashes[topic] = java_hash(topic + "#")
                log_offset = arrival.log_offset
                stored_at_ms = arrival.stored_at_ms
                for key in keys:
                    hashed = abs(java_hash_extend(topic_hash, key))
                    items.append((hashed if hashed < 0x80000000 else 0, log_offset, stored_at_ms))
        return not items or self._put_items(items)

    def put_packed(self, runs: Iterable[tuple[bytes, int]]) -> bool:
        """The same for runs of packed keys with their store times; what was stored within a second goes together."""
        left = deque(run for run in runs if run[0])
        try:
            while left:
                file = self.files[-1] if self.files and self.files[-1].room > 0 else self._add_file()
                begin_ms = file.begin_ms if file.count > 1 else left[0][1]
                seconds = _seconds(left[0][1], begin_ms)
                pieces: list[bytes] = []
                room = file.room * KEY_ROW.size
                while left and room and _seconds(left[0][1], begin_ms) == seconds:
                    keys, end_ms = left.popleft()
                    if len(keys) > room:
                        left.appendleft((keys[room:], end_ms))
                    pieces.append(keys[:room])
                    room -= len(pieces[-1])
                together = b"".join(pieces)
                file.reserve(len(together) // KEY_ROW.size)
                file.put_packed(together, begin_ms=begin_ms, seconds=seconds, end_ms=end_ms)
        except OSError as error:
            return self._gave_up(error)
        return True

    def _gave_up(self, error: OSError) -> bool:
        if error.errno not in FULL_DISK_ERRORS:
            raise storage_error(f"writing the key index in {self._directory} failed", error) from error
        # What of the batch went into earlier files stays there and is put again when space is back: `find` reports
        # each record once.
        return False

    def _put_items(self, items: list[tuple[int, int, int]]) -> bool:
        position = 0
        try:
            while position < len(items):
                file = self.files[-1] if self.files and self.files[-1].room > 0 else self._add_file()
                batch = items[position : position + file.room]
                file.reserve(len(batch))
                file.put(batch)
                position += len(batch)
        except OSError as error:
            return self._gave_up(error)
        return True

    @property
    def needs_spare(self) -> bool:
        """Whether `prepare_spare` should run now, in a thread."""
        return (
            self._may_prepare
            and self._spare is None
            and (not self.files or self.files[-1].room < self._entries // SPARE_SHARE)
        )

    def prepare_spare(self) -> None:
        """Make the next file ahead of need. Not tried again when it fails: it is made on demand then.
        [any thread, one at a time]
        """
        self._may_prepare = False
        self._files_port.unlink(self._spare_path)
        self._spare = IndexFile.create(self._files_port, self._spare_path, slots=self._slots, entries=self._entries)

    def _make_file(self) -> IndexFile:
        path = self._directory / self._new_name()
        spare = self._spare
        if spare is None:
            return IndexFile.create(self._files_port, path, slots=self._slots, entries=self._entries)
        try:
            self._files_port.rename(spare.path, path)
            self._files_port.sync_directory(self._directory)
        except OSError:
            spare.close()
            raise
        finally:
            self._spare = None  # Not before the name is free: the next one would be made, and this one lost, there.
        spare.path, spare.name = path, path.name
        return spare

    def _add_file(self) -> IndexFile:
        if not self.files:
            make_directory_durably(self._files_port, self._directory)
        last = self.files[-1] if self.files else None
        file = self._make_file()
        self._may_prepare = True
        if last is not None:
            # RocketMQ: a new file starts with the end values of the last one; its first entry replaces the begin ones.
            file.begin_ms = file.end_ms = last.end_ms
            file.begin_log = file.end_log = last.end_log
        file.write_header()
        self.files = (*self.files, file)
        return file

    def _new_name(self) -> str:
        now_ms = self._clock.now_ms()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        if not self.files or name > self.files[-1].name:
            return name
        # Created within the same millisecond, or the clock went back: names must still sort in order.
        return f"{int(self.files[-1].name) + 1:0{NAME_DIGITS}d}"

    def find(self, topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets that may hold a record of `topic` with this key, newest first, each once. [any thread]"""
        hashed = key_hash(java_hash(topic + "#"), key)
        found: dict[int, None] = {}
        for file in reversed(self.files):
            if file.count > 1 and file.end_ms >= begin_ms and file.begin_ms <= end_ms:
                for log_offset in file.find(hashed, begin_ms=begin_ms, end_ms=end_ms):
                    found[log_offset] = None
                    if len(found) >= limit:
                        return list(found)
            if file.count > 1 and file.begin_ms < begin_ms:
                break
        return list(found)

    def sync(self) -> None:
        """Make all entries written before the call durable. [one thread at a time, beside the owner]"""
        files = self.files
        for file in files:
            if file.name < self._synced_name:
                continue
            try:
                opened = self._files_port.open(file.path)
            except FileNotFoundError:  # Deleted meanwhile by retention.
                continue
            try:
                opened.sync()
            finally:
                opened.close()
        if files:
            self._synced_name = files[-1].name

    def close(self) -> None:
        for file in self.files:
            file.close()
        if self._spare is not None:
            self._spare.close()
            self._files_port.unlink(self._spare_path)

    def forget_before(self, log_offset: int) -> list[Path]:
        """Stop using files whose records are all gone, except the last; returns them, to be deleted."""
        gone = [file for file in self.files[:-1] if file.end_log < log_offset]
        self.files = tuple(file for file in self.files if file not in gone)
        for file in gone:
            file.close()
        return [file.path for file in gone]

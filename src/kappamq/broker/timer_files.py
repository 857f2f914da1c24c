"""Files that tell which timed messages are due when; byte for byte those of RocketMQ 5.x.

    timerwheel          1,209,600 slots (14 days of seconds) of 32 bytes; slot = (tick / 1000) mod slots
                        i64 tick / 1000, i64 first unit, i64 last unit, i32 count, i32 0
    timerlog/<start>    units of 52 bytes, each naming the previous one of its slot
                        i32 52, i64 previous or -1, i32 magic (1, |2 roll, |4 delete), i64 written at, i32 delay ms,
                        i64 log offset, i32 record size, i32 hash of the topic, i64 0
                        the rest of a file that is too short for another unit: i32 bytes left, i64 0, i32 blank magic
    config/timercheck   4096 bytes: i64 read time, i64 log position, i64 queue offset, i64 queue offset of the master,
                        i64 state version, i64 timestamp, i64 counter

Nothing here is needed to keep a message: all can be made again from the timer topic.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from kappamq.broker.placing import TIMER_PRECISION_MS
from kappamq.errors import StorageError
from kappamq.model.record import BLANK_MAGIC
from kappamq.store.files import File, FileSystem, make_directory_durably, read_whole, write_durably

SLOTS: Final = 7 * 86_400 * 2
LOG_FILE_BYTES: Final = 104_857_600
UNIT_BYTES: Final = 52
ROLL: Final = 2
DELETE: Final = 4

_SLOT = Struct(">qqqii")
_UNIT = Struct(">iqiqiqiiq")
_BLANK = Struct(">iqi")
_CHECK = Struct(">qqqqqqq")
_CHECK_BYTES: Final = 4096
_SLOTS_PER_READ: Final = 4096
_BLOCK_BYTES: Final = 1 << 16
"""Part of the timer log that is read at once: units of a slot lie close together, and a call for each is slow."""
_MAGICS: Final = frozenset({1, 1 | ROLL, 1 | DELETE, 1 | ROLL | DELETE})


class Slot(NamedTuple):
    """The units of one tick: a chain from the last to the first."""

    first: int
    last: int
    units: int


class Unit(NamedTuple):
    """One entry of the timer log."""

    previous: int
    magic: int
    written_at_ms: int
    delay_ms: int
    log_offset: int
    size: int
    topic_hash: int

    @property
    def tick_ms(self) -> int:
        """The slot that it belongs to."""
        return self.written_at_ms + self.delay_ms


class TimerWheel:
    """Slots by tick. A slot that says another time than asked for is empty."""

    def __init__(self, files: FileSystem, path: Path, *, slots: int = SLOTS) -> None:
        self.slots = slots
        self.is_new = not files.exists(path)
        self._file: File = files.open(path, create=True)
        if self._file.size() != slots * _SLOT.size:
            self.is_new = True
            self.reset()
            files.sync_directory(path.parent)

    def reset(self) -> None:
        """Empty all slots."""
        self._file.resize(0)
        self._file.resize(self.slots * _SLOT.size)
        self._file.sync()

    def slot(self, tick_ms: int) -> Slot | None:
        number = tick_ms // TIMER_PRECISION_MS
        time, first, last, count, _ = _SLOT.unpack(self._file.pread(_SLOT.size, number % self.slots * _SLOT.size))
        return Slot(first, last, count) if time == number and last >= 0 else None

    def put(self, tick_ms: int, slot: Slot) -> None:
        number = tick_ms // TIMER_PRECISION_MS
        self._file.pwrite(_SLOT.pack(number, *slot, 0), number % self.slots * _SLOT.size)

    def clear(self, tick_ms: int) -> None:
        """Empty a slot whose units are all dealt with."""
        self._file.pwrite(bytes(_SLOT.size), tick_ms // TIMER_PRECISION_MS % self.slots * _SLOT.size)

    def ticks_beyond(self, position: int) -> list[int]:
        """Ticks of slots that name units at or behind a position of the log."""
        ticks = []
        for at in range(0, self.slots, _SLOTS_PER_READ):
            data = self._file.pread(min(_SLOTS_PER_READ, self.slots - at) * _SLOT.size, at * _SLOT.size)
            if data.strip(b"\0"):
                ticks += [
                    time * TIMER_PRECISION_MS
                    for time, _, last, _, _ in _SLOT.iter_unpack(data)
                    if time and last >= position
                ]
        return ticks

    def next_filled(self, start_ms: int, end_ms: int) -> int | None:
        """The first tick from `start_ms` to before `end_ms` that has units."""
        number, end = start_ms // TIMER_PRECISION_MS, end_ms // TIMER_PRECISION_MS
        # Nothing is put further ahead than the wheel is long.
        end = min(end, number + self.slots)
        while number < end:
            at = number % self.slots
            count = min(_SLOTS_PER_READ, end - number, self.slots - at)
            data = self._file.pread(count * _SLOT.size, at * _SLOT.size)
            if data.strip(b"\0"):
                for step, (time, _, last, _, _) in enumerate(_SLOT.iter_unpack(data)):
                    if time == number + step and last >= 0:
                        return (number + step) * TIMER_PRECISION_MS
            number += count
        return None

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class TimerLog:
    """Units in the order of writing. `end` is where the next one goes, once `recover` has found it."""

    def __init__(self, files: FileSystem, directory: Path, *, file_bytes: int = LOG_FILE_BYTES) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        make_directory_durably(files, directory)
        self._open: dict[int, File] = {}
        for name in sorted(files.list_directory(directory)):
            if not name.isdecimal():
                raise StorageError(f"{directory} has a file {name!r} that does not belong there: move it away")
            self._open[int(name)] = files.open(directory / name)
        self._dirty: set[int] = set()
        self._block: tuple[int, bytes] = (-1, b"")
        """Where the block begins that was read last, and its bytes; forgotten with every change."""
        self.end = 0

    @property
    def start(self) -> int:
        """Position of the oldest unit that is kept."""
        return min(self._open, default=0)

    def reaches(self, position: int) -> bool:
        """Whether the log has the file that ends at or holds a position."""
        return (position - 1) // self._file_bytes * self._file_bytes in self._open

    def recover(self, position: int) -> Iterator[tuple[int, Unit]]:
        """The units from `position` on; the log ends behind the last of them."""
        position = max(position, self.start)
        while True:
            self.end = position
            found = self._read(position)
            if isinstance(found, Unit):
                yield position, found
                position += UNIT_BYTES
            elif found:
                position += found
            else:
                self._cut()
                return

    def _cut(self) -> None:
        """Clear what is behind the end: a crash may have left units there that nobody knows of."""
        self._block = (-1, b"")
        for start in [start for start in self._open if start > self.end]:
            self._open.pop(start).close()
            self._files.unlink(self._directory / f"{start:020}")
        file = self._open.get(self.end // self._file_bytes * self._file_bytes)
        if file is not None:
            file.resize(self.end % self._file_bytes)
            file.resize(self._file_bytes)
            file.sync()

    def unit(self, position: int) -> Unit | None:
        """The unit at a position; `None` when there is none."""
        found = self._read(position) if position >= 0 else 0
        return found if isinstance(found, Unit) else None

    def _read(self, position: int) -> "Unit | int":
        """A unit, or the number of unused bytes from here to the next file, or 0 where the log ends."""
        file = self._open.get(position // self._file_bytes * self._file_bytes)
        if file is None:
            return 0
        at = position % self._file_bytes
        data = self._bytes_at(file, position - at, at)
        if len(data) >= _BLANK.size:
            left, _, magic = _BLANK.unpack_from(data)
            if magic == BLANK_MAGIC and left == self._file_bytes - at:
                return int(left)
        if len(data) < UNIT_BYTES:
            return 0
        size, previous, magic, *rest, _ = _UNIT.unpack(data)
        if size != UNIT_BYTES or magic not in _MAGICS or not -1 <= previous < position:
            return 0
        return Unit(previous, magic, *rest)

    def _bytes_at(self, file: File, file_start: int, at: int) -> bytes:
        """The bytes of a unit; fewer at the end of the file."""
        block_at = at - at % _BLOCK_BYTES
        start, block = self._block
        if start != file_start + block_at:
            block = file.pread(min(_BLOCK_BYTES + UNIT_BYTES, self._file_bytes - block_at), block_at)
            self._block = (file_start + block_at, block)
        return block[at - block_at : at - block_at + UNIT_BYTES]

    def append(self, units: "list[Unit]") -> None:
        """Write units at `end`; places must have been taken with `positions`."""
        chunk = bytearray()
        for position, unit in zip(self.positions(len(units)), units):
            if position != self.end + len(chunk):
                self._write(bytes(chunk))
                chunk.clear()
                self._end_file()
            chunk += _UNIT.pack(UNIT_BYTES, *unit, 0)
        self._write(bytes(chunk))

    def positions(self, count: int) -> "array[int]":
        """Where the next units will go."""
        places = array("q")
        position = self.end
        for _ in range(count):
            left = self._file_bytes - position % self._file_bytes
            if left < UNIT_BYTES + _BLANK.size:
                position += left
            places.append(position)
            position += UNIT_BYTES
        return places

    def _end_file(self) -> None:
        left = self._file_bytes - self.end % self._file_bytes
        start = self.end // self._file_bytes * self._file_bytes
        self._block = (-1, b"")
        self._file_at(start).pwrite(_BLANK.pack(left, 0, BLANK_MAGIC), self.end - start)
        self._dirty.add(start)
        self.end += left

    def _write(self, data: bytes) -> None:
        if not data:
            return
        start = self.end // self._file_bytes * self._file_bytes
        self._block = (-1, b"")
        self._file_at(start).pwrite(data, self.end - start)
        self._dirty.add(start)
        self.end += len(data)

    def _file_at(self, start: int) -> File:
        file = self._open.get(start)
        if file is None:
            file = self._files.open(self._directory / f"{start:020}", create=True)
            file.resize(self._file_bytes)
            file.sync()
            self._files.sync_directory(self._directory)
            self._open[start] = file
        return file

    def drop_before(self, written_before_ms: int) -> None:
        """Delete files whose last unit was written before a time."""
        for start in sorted(self._open)[:-1]:
            last = (self._file_bytes - _BLANK.size) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
            unit = self.unit(start + last)
            if unit is None or unit.written_at_ms >= written_before_ms:
                return
            self._open.pop(start).close()
            self._dirty.discard(start)
            self._files.unlink(self._directory / f"{start:020}")

    def truncate(self) -> None:
        """Forget everything, files included."""
        self._block = (-1, b"")
        for start in list(self._open):
            self._open.pop(start).close()
            self._files.unlink(self._directory / f"{start:020}")
        self._dirty.clear()
        self.end = 0

    def sync(self) -> None:
        for start in list(self._dirty):
            self._dirty.discard(start)
            file = self._open.get(start)
            if file is not None:
                file.sync()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """Progress of timers: ticks below `read_ms` are delivered, units below `log_end` are on disk and in the wheel."""

    read_ms: int
    log_end: int
    queue_offset: int
    timestamp_ms: int = 0
    counter: int = 0

    @classmethod
    def load(cls, files: FileSystem, path: Path) -> "TimerCheck | None":
        data = read_whole(files, path)
        if data is None or len(data) < _CHECK.size:
            return None
        read_ms, log_end, queue_offset, master_offset, _, timestamp_ms, counter = _CHECK.unpack_from(data)
        if read_ms <= 0:
            return None
        # RocketMQ: a slave may be ahead of its master and must go back to where the master was.
        return cls(read_ms, log_end, min(queue_offset, master_offset), timestamp_ms, counter)

    def encode(self) -> bytes:
        """The 56 bytes, also sent to slaves."""
        return _CHECK.pack(
            self.read_ms, self.log_end, self.queue_offset, self.queue_offset, 0, self.timestamp_ms, self.counter
        )

    def save(self, files: FileSystem, path: Path) -> None:
        make_directory_durably(files, path.parent)
        write_durably(files, path, self.encode().ljust(_CHECK_BYTES, b"\0"))

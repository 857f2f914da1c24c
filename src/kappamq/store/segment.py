"""One file of a log: fixed length, written with `pwrite`, read through a map.

The name is the position of the first byte in the log, in 20 digits. The file has its full length from the start, so
that RocketMQ accepts it and so that no later change of the length can be lost; what is not written yet takes no space.
"""

from mmap import mmap
from pathlib import Path
from typing import Final

from kappamq.errors import StorageError
from kappamq.store.files import Data, File, FileSystem

NAME_DIGITS: Final = 20
PAGE_BYTES: Final = 4096
SCAN_BYTES: Final = 1 << 20
"""Piece of a file that is looked at in one go."""


def segment_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def segment_starts(names: list[str], directory: Path) -> list[int]:
    """Starts of the segments that a directory lists. Raises `StorageError` for a name that is none."""
    for name in names:
        if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
            raise StorageError(f"{directory / name} is not a segment (20 digits): move it out of the directory")
    return sorted(map(int, names))


class Segment:
    """An open segment.

    The map belongs to whoever reads: a segment that is closed and deleted stays readable through a reference taken
    before. Only the owner of the log writes, resizes and closes.
    """

    __slots__ = ("_file", "end", "map", "path", "start")

    def __init__(self, path: Path, start: int, file: File, *, size: int) -> None:
        self.path = path
        self.start = start
        self.end = start + size
        self.map: mmap = file.map()
        self._file = file

    @classmethod
    def create(cls, files: FileSystem, directory: Path, start: int, *, size: int) -> "Segment":
        """Make (or take over) a segment; on return its name and its length survive a power cut."""
        path = directory / segment_name(start)
        file = files.open(path, create=True)
        try:
            file.resize(size)
            file.sync()
            files.sync_directory(directory)
            return cls(path, start, file, size=size)
        except BaseException:
            file.close()
            raise

    @classmethod
    def open(cls, files: FileSystem, directory: Path, start: int, *, size: int, writable: bool = True) -> "Segment":
        """Open one that must have its full length already."""
        path = directory / segment_name(start)
        file = files.open(path, writable=writable)
        found = file.size()
        if found != size:
            file.close()
            raise StorageError(
                f"{path} has {found} bytes, not {size}: set segment_bytes to what the store was made with, "
                "or restore the file"
            )
        return cls(path, start, file, size=size)

    def write(self, data: Data, log_offset: int) -> None:
        self._file.pwrite(data, log_offset - self.start)

    def are_cached(self, runs: list[tuple[int, int]]) -> bool:
        """Whether ranges (log offset, bytes) are in memory, as far as can be told at once."""
        return self._file.are_cached([(log_offset - self.start, size) for log_offset, size in runs], self.map)

    def preload(self, runs: list[tuple[int, int]]) -> None:
        """Let the system read ranges (log offset, bytes) into memory, so that the map has them at once. [any thread]"""
        try:
            self._file.preload([(log_offset - self.start, size) for log_offset, size in runs])
        except OSError:
            pass  # Closed by retention meanwhile, or the disk has a fault: the read that follows tells.

    @property
    def descriptor(self) -> int | None:
        return self._file.descriptor

    def sync(self) -> None:
        self._file.sync()

    def data_end(self, log_offset: int) -> int | None:
        """Log offset behind the last byte from `log_offset` on that is not zero; `None` when all are zero.

        Looks only where the file system has data, so that gigabytes of nothing cost nothing.
        """
        found = None
        position = log_offset - self.start
        size = self.end - self.start
        while position < size:
            data = self._file.next_data(position)
            if data is None:
                break
            position = data + SCAN_BYTES
            # Not through the map: a tmpfs gives every hole that is looked at a page, and ends us when it has none left.
            chunk = self._file.pread(min(position, size) - data, data).rstrip(b"\0")
            if chunk:
                found = self.start + data + len(chunk)
        return found

    def next_data(self, log_offset: int) -> int | None:
        """Log offset from `log_offset` on before which only zeros lie."""
        found = self._file.next_data(log_offset - self.start) if log_offset < self.end else None
        return None if found is None else self.start + found

    def clear_from(self, log_offset: int) -> None:
        """Make all bytes from `log_offset` on zero, durably, freeing their space.

        Stale records behind the end of the log could otherwise line up with new ones and come back after a crash.
        """
        self._file.resize(log_offset - self.start)
        self._file.resize(self.end - self.start)
        self._file.sync()

    def close(self) -> None:
        self._file.close()

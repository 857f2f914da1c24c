"""The one way to the disk: a narrow port, so that tests can tear, forget, fill and break it; and the real one.

Errors come out as `OSError`; the callers know what they mean. `sync` makes the bytes and the length of a file survive
a power cut, `sync_directory` its name.
"""

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, ACCESS_WRITE, mmap
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from kappamq.errors import DiskFull, StorageError, StoreLocked

Data: TypeAlias = "bytes | bytearray | memoryview"

FULL_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
PASSING_ERRORS: Final = FULL_DISK_ERRORS | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors after which the same call may work a little later, without anything lost."""


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the disk below a path, in bytes; `usable` is what this process may still take."""

    used: int
    usable: int

    @property
    def used_ratio(self) -> float:
        total = self.used + self.usable
        return self.used / total if total else 1.0


class File(Protocol):
    """One open file."""

    def pwrite(self, data: Data, at: int) -> None:
        """Write all of `data`; on an error any part of it may have been written."""

    def pread(self, size: int, at: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def map(self, *, writable: bool = False) -> mmap:
        """The whole file as memory that shows later writes; stays usable after `close` and after unlinking."""

    def size(self) -> int: ...

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros that take no space."""

    def reserve(self, at: int, size: int) -> None:
        """Take disk space for a range now, so that writing there through a map cannot fail later."""

    def are_cached(self, runs: list[tuple[int, int]], view: mmap) -> bool:
        """Whether ranges (position, bytes) of a file with this map can be read without the disk; no where nobody can
        tell."""

    def preload(self, runs: list[tuple[int, int]]) -> None:
        """Have ranges (position, bytes) read into memory by the system, and return when they are there."""

    def next_data(self, at: int) -> int | None:
        """A position from `at` on before which only zeros lie; `None` when only zeros follow."""

    def sync(self) -> None: ...

    @property
    def descriptor(self) -> int | None:
        """Number of the open file, for who syncs it by other means; `None` where there is none."""

    def close(self) -> None: ...


PROBE_BYTES_MAX: Final = 256 * 1024
_PROBE: Final = bytearray(PROBE_BYTES_MAX)


class FileSystem(Protocol):
    """What the store needs from the operating system."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File: ...

    def lock(self, path: Path) -> File:
        """Open and lock a file until it is closed; raises `StoreLocked`."""

    def make_directory(self, path: Path) -> list[Path]:
        """Make a directory and its parents; returns the directories to sync for that to be durable."""

    def sync_directory(self, path: Path) -> None: ...

    def sync_files(self, paths: Sequence[Path]) -> None:
        """Sync one after the other; one that does not exist is no error. Those behind one that fails are not synced."""

    def list_directory(self, path: Path) -> list[str]:
        """Sorted names; none for a directory that does not exist."""

    def exists(self, path: Path) -> bool: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None:
        """Remove a file; one that does not exist is no error."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; one that does not exist is no error."""

    def modified_at_ms(self, path: Path) -> int: ...

    def file_bytes(self, path: Path) -> int: ...

    def space(self, path: Path) -> Space: ...

    def open_files_max(self) -> int: ...


def _preload_pieces(descriptor: int, runs: list[tuple[int, int]], piece_bytes: int) -> None:
    """What `_preloading.pyx` does, with a turn in the interpreter for each piece."""
    for at, size in runs:
        end = at + size
        while at < end:
            read = os.preadv(descriptor, [memoryview(_PROBE)[: min(end - at, piece_bytes)]], at)
            if not read:
                break
            at += read


def _are_cached_by_reading(descriptor: int, runs: list[tuple[int, int]], _view: mmap) -> bool:
    """Read them into a buffer that nobody looks at: 100 KB take 10 µs, waiting for the disk a thousand times that."""
    try:
        for start, size in runs:
            for at in range(start, start + size, PROBE_BYTES_MAX):
                piece = memoryview(_PROBE)[: min(start + size - at, PROBE_BYTES_MAX)]
                if os.preadv(descriptor, [piece], at, os.RWF_NOWAIT) != len(piece):
                    return False
    except (OSError, AttributeError):  # Not in memory; or this file system or this system cannot tell.
        return False
    return True


_Preload = Callable[[int, list[tuple[int, int]], int], None]
_AreCached = Callable[[int, list[tuple[int, int]], mmap], bool]


def _choose() -> tuple[_Preload, _AreCached]:
    if os.environ.get("KAPPAMQ_KERNEL") != "python":
        try:
            from kappamq.store import _preloading
        except ImportError:
            pass
        else:
            if _preloading.INTERFACE == _PRELOADING_INTERFACE:
                are_resident = _preloading.are_resident

                def are_cached(descriptor: int, runs: list[tuple[int, int]], view: mmap) -> bool:
                    # One byte is read as well: a system that cannot tell would take all pages for resident.
                    first = [(at, min(size, 1)) for at, size in runs[:1]]
                    return _are_cached_by_reading(descriptor, first, view) and are_resident(view, runs)

                return _preloading.preload, are_cached
    return _preload_pieces, _are_cached_by_reading


def _sync_one_by_one(paths: Sequence[Path]) -> None:
    """What `_syncing.pyx` does, with a turn in the interpreter for each file."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _choose_sync_files() -> Callable[[Sequence[Path]], None]:
    if os.environ.get("KAPPAMQ_KERNEL") != "python":
        try:
            from kappamq.store import _syncing
        except ImportError:
            pass
        else:
            if _syncing.INTERFACE == SYNCING_INTERFACE:
                return _syncing.sync_files
    return _sync_one_by_one


SYNCING_INTERFACE: Final = 2
_sync_files: Final = _choose_sync_files()
_PRELOADING_INTERFACE: Final = 2
_preload, _are_cached = _choose()


def storage_error(action: str, error: OSError) -> StorageError:
    """What an error of the operating system means for the store."""
    if error.errno in FULL_DISK_ERRORS:
        return DiskFull(f"{action}: {error.strerror}: free some space, writing then goes on by itself")
    return StorageError(f"{action}: {error}: check the disk and the kernel log")


def make_directory_durably(files: FileSystem, path: Path) -> None:
    """Make a directory and its parents so that they survive a power cut."""
    for changed in files.make_directory(path):
        files.sync_directory(changed)


def write_durably(files: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file so that after a crash either the old or the new content is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    file = files.open(temporary, create=True)
    try:
        file.resize(0)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def read_whole(files: FileSystem, path: Path) -> bytes | None:
    """Content of a small file; `None` when there is none."""
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_is_random", "_on_close")

    def __init__(self, descriptor: int, on_close: Callable[[], None] | None = None) -> None:
        self._descriptor = descriptor
        self._is_random = False
        self._on_close = on_close

    @property
    def descriptor(self) -> int | None:
        return self._descriptor

    def pwrite(self, data: Data, at: int) -> None:
        written = os.pwrite(self._descriptor, data, at)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], at + written)

    def pread(self, size: int, at: int) -> bytes:
        data = os.pread(self._descriptor, size, at)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    def map(self, *, writable: bool = False) -> mmap:
        return mmap(self._descriptor, 0, access=ACCESS_WRITE if writable else ACCESS_READ)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def resize(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def reserve(self, at: int, size: int) -> None:
        os.posix_fallocate(self._descriptor, at, size)

    def are_cached(self, runs: list[tuple[int, int]], view: mmap) -> bool:
        return _are_cached(self._descriptor, runs, view)

    def preload(self, runs: list[tuple[int, int]]) -> None:
        # Piece by piece and without the system's own read-ahead, which may be megabytes: a sync would wait behind it.
        # What is read goes where nobody looks; the system keeps it.
        if not self._is_random and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            self._is_random = True
        _preload(self._descriptor, runs, PROBE_BYTES_MAX)

    def next_data(self, at: int) -> int | None:
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # This file system cannot tell: every byte may be data.
                return at if at < self.size() else None
            raise

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            if self._on_close is not None:
                self._on_close()


class RealFileSystem:
    """The operating system's files."""

    # fcntl locks do not exclude a second holder within one process, and closing any descriptor of the file drops them:
    # this set is what keeps one process from opening a store twice.
    _locked: Final[set[str]] = set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return RealFile(os.open(path, flags, 0o644))

    def lock(self, path: Path) -> RealFile:
        real = os.path.realpath(path)
        if real in self._locked:
            raise StoreLocked(f"this process already uses the store of {path}: close the other one first")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # RocketMQ: Java's FileChannel.tryLock(0, 1) is a POSIX record lock on the first byte; flock is another one.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLocked(
                    f"another process holds {path}: stop the broker that uses this directory, or choose another one"
                ) from None
            raise
        self._locked.add(real)
        return RealFile(descriptor, lambda: self._locked.discard(real))

    def make_directory(self, path: Path) -> list[Path]:
        missing: list[Path] = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
        return [directory.parent for directory in missing]

    def sync_files(self, paths: Sequence[Path]) -> None:
        _sync_files(paths)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        try:
            path.rmdir()
        except FileNotFoundError:
            pass

    def modified_at_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def file_bytes(self, path: Path) -> int:
        return os.stat(path).st_size

    def space(self, path: Path) -> Space:
        found = os.statvfs(path)
        return Space(used=(found.f_blocks - found.f_bfree) * found.f_frsize, usable=found.f_bavail * found.f_frsize)

    def open_files_max(self) -> int:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else 1 << 20

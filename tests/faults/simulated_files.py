"""A file system in memory that remembers what was synced, and can then forget the rest, tear it, fill up or break.

`kill` is the end of a process: everything written stays. `power_cut` is the end of the machine: of what was not synced,
each sector of 512 bytes is old or new, whatever the dice say; names that were not synced may be there or not.
"""

import errno
from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path
from random import Random
from typing import Final

from kappamq.errors import StoreLocked
from kappamq.store.files import Data, Space

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
SPACE_BYTES: Final = 1 << 40


class Inode:
    """Content of one file: what programs see, and what the disk has."""

    def __init__(self) -> None:
        self.content = mmap(-1, PAGE_BYTES)
        self.size = 0
        self.synced = b""
        self.pages: set[int] = set()
        self.modified_at_ms = 0
        self.is_locked = False

    def resize(self, size: int) -> None:
        if size < self.size:
            self.content[size : self.size] = bytes(self.size - size)
            self.pages = {page for page in self.pages if page * PAGE_BYTES < size}
        if size > len(self.content):
            larger = mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES)
            larger[: self.size] = self.content[: self.size]
            self.content = larger
        self.size = size

    def sync(self) -> None:
        self.synced = self.content[: self.size]

    def after_power_cut(self, random: Random) -> "Inode":
        survivor = Inode()
        current = self.content[: self.size]
        size = len(self.synced) if random.random() < 0.5 else self.size
        survivor.resize(size)
        old = self.synced.ljust(size, b"\0")[:size]
        new = current.ljust(size, b"\0")[:size]
        chance_new = random.choice((0.0, 0.5, 0.9, 1.0))
        pieces = []
        for at in range(0, size, SECTOR_BYTES):
            before, after = old[at : at + SECTOR_BYTES], new[at : at + SECTOR_BYTES]
            pieces.append(after if before != after and random.random() < chance_new else before)
        survivor.content[:size] = b"".join(pieces)
        survivor.pages = {
            at // PAGE_BYTES for at in range(0, size, PAGE_BYTES) if any(survivor.content[at : at + PAGE_BYTES])
        }
        survivor.modified_at_ms = self.modified_at_ms
        survivor.sync()
        return survivor


class Directory:
    """Names in one directory; changes since the last sync are kept in order."""

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.synced: dict[str, Inode | Directory] = {}
        self.changes: list[Callable[[dict[str, Inode | Directory]], object]] = []

    def change(self, step: Callable[[dict[str, "Inode | Directory"]], object]) -> None:
        step(self.names)
        self.changes.append(step)

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.changes.clear()

    def after_power_cut(self, random: Random) -> "Directory":
        names = dict(self.synced)
        for step in self.changes[: random.randint(0, len(self.changes))]:
            step(names)
        survivor = Directory()
        for name, entry in names.items():
            survivor.names[name] = entry.after_power_cut(random)
        survivor.sync()
        return survivor


class SimulatedFile:
    """An open file of the simulation."""

    def __init__(self, system: "SimulatedFileSystem", inode: Inode, path: Path) -> None:
        self._system = system
        self._inode = inode
        self._path = path
        self._holds_lock = False

    @property
    def descriptor(self) -> None:
        return None

    def pwrite(self, data: Data, at: int) -> None:
        self._system.step("pwrite", self._path)
        if self._inode.size < at + len(data):
            self._inode.resize(at + len(data))
        room = self._system.take_pages(self._inode, at, len(data))
        self._inode.content[at : at + room] = bytes(data[:room])
        self._inode.modified_at_ms = self._system.now_ms
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._system.after("pwrite", self._path)

    def pread(self, size: int, at: int) -> bytes:
        self._system.reads.append((self._path, at, size))
        return self._inode.content[at : min(at + size, self._inode.size)]

    def map(self, *, writable: bool = False) -> mmap:
        return self._inode.content

    def size(self) -> int:
        return self._inode.size

    def resize(self, size: int) -> None:
        self._system.step("resize", self._path)
        self._inode.resize(size)

    def reserve(self, at: int, size: int) -> None:
        self._system.step("reserve", self._path)
        if self._inode.size < at + size:
            self._inode.resize(at + size)
        if self._system.take_pages(self._inode, at, size) < size:
            raise OSError(errno.ENOSPC, "No space left on device")

    def preload(self, runs: list[tuple[int, int]]) -> None:
        for at, size in runs:
            self.pread(size, at)

    def are_cached(self, runs: list[tuple[int, int]], view: mmap) -> bool:
        return False

    def next_data(self, at: int) -> int | None:
        rest = self._inode.content[at : self._inode.size]
        stripped = rest.lstrip(b"\0")
        return at + len(rest) - len(stripped) if stripped else None

    def sync(self) -> None:
        self._system.step("sync", self._path)
        self._inode.sync()
        self._system.after("sync", self._path)

    def close(self) -> None:
        if self._holds_lock:
            self._inode.is_locked = False
            self._holds_lock = False

    def take_lock(self) -> None:
        self._inode.is_locked = True
        self._holds_lock = True


class Killed(BaseException):
    """The process ends here; not an error a program could handle."""


class SimulatedFileSystem:
    """The whole disk. `on_step` is called before each step that changes the disk and may raise."""

    def __init__(self) -> None:
        self._root = Directory()
        self.now_ms = 1_700_000_000_000
        self.space_left = SPACE_BYTES
        self.on_step: Callable[[str, Path], None] | None = None
        self.steps = 0
        self.reads: list[tuple[Path, int, int]] = []
        """Path, position and size of each read that was not through a map."""

    # What tests do to it

    def kill(self) -> None:
        """End the process that uses the files: all it wrote stays, its locks go."""
        self.on_step = None
        self._unlock(self._root)

    def power_cut(self, random: Random) -> None:
        """End the machine: only what was synced is sure to stay."""
        self.on_step = None
        self._root = self._root.after_power_cut(random)

    def flip(self, path: Path, at: int, *, bits: int = 0xFF) -> None:
        """Damage one byte, on disk and in memory."""
        inode = self._inode(path)
        inode.content[at] ^= bits
        inode.sync()

    def overwrite(self, path: Path, at: int, data: bytes) -> None:
        """Write garbage into a file, on disk and in memory."""
        inode = self._inode(path)
        inode.content[at : at + len(data)] = data
        inode.sync()

    def step(self, action: str, path: Path) -> None:
        self.steps += 1
        if self.on_step is not None:
            self.on_step(action, path)

    def after(self, action: str, path: Path) -> None:
        if self.on_step is not None:
            self.on_step("after " + action, path)

    def take_pages(self, inode: Inode, at: int, size: int) -> int:
        """Account for the pages of a range; returns how many bytes fit."""
        for page in range(at // PAGE_BYTES, (at + size - 1) // PAGE_BYTES + 1 if size else 0):
            if page not in inode.pages:
                if self.space_left < PAGE_BYTES:
                    return max(0, page * PAGE_BYTES - at)
                self.space_left -= PAGE_BYTES
                inode.pages.add(page)
        return size

    def unreserved_pages(self, path: Path) -> list[int]:
        """Pages that hold data but never got disk space: writing them through a map could have killed the process."""
        inode = self._inode(path)
        pages = range(0, inode.size, PAGE_BYTES)
        return [
            at // PAGE_BYTES
            for at in pages
            if any(inode.content[at : at + PAGE_BYTES]) and at // PAGE_BYTES not in inode.pages
        ]

    def _unlock(self, directory: Directory) -> None:
        for entry in directory.names.values():
            if isinstance(entry, Directory):
                self._unlock(entry)
            else:
                entry.is_locked = False

    # The port

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        parent = self._directory(path.parent)
        entry = parent.names.get(path.name)
        if entry is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            self.step("create", path)
            inode = Inode()
            inode.modified_at_ms = self.now_ms
            parent.change(lambda names, name=path.name, made=inode: names.__setitem__(name, made))  # type: ignore[misc]
            entry = inode
        assert isinstance(entry, Inode)
        return SimulatedFile(self, entry, path)

    def lock(self, path: Path) -> SimulatedFile:
        file = self.open(path, create=True)
        if self._inode(path).is_locked:
            raise StoreLocked(f"another process holds {path}")
        file.take_lock()
        return file

    def make_directory(self, path: Path) -> list[Path]:
        changed = []
        directory = self._root
        walked = Path("/")
        for part in path.parts[1:]:
            entry = directory.names.get(part)
            if entry is None:
                self.step("mkdir", walked / part)
                entry = Directory()
                directory.change(lambda names, name=part, made=entry: names.__setitem__(name, made))  # type: ignore[misc]
                changed.append(walked)
            assert isinstance(entry, Directory)
            directory = entry
            walked = walked / part
        return changed

    def sync_files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                opened = self.open(path)
            except FileNotFoundError:
                continue
            try:
                opened.sync()
            finally:
                opened.close()

    def sync_directory(self, path: Path) -> None:
        self.step("sync directory", path)
        self._directory(path).sync()

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(self._directory(path).names)
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        try:
            return path.name in self._directory(path.parent).names
        except FileNotFoundError:
            return False

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", target)
        if source.parent == target.parent:
            self._directory(source.parent).change(lambda names: names.__setitem__(target.name, names.pop(source.name)))
            return
        # Worse than most disks: a power cut may keep both names, or none.
        entry = self._inode(source)
        self._directory(target.parent).change(lambda names: names.__setitem__(target.name, entry))
        self._directory(source.parent).change(lambda names: names.pop(source.name))

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        if self.exists(path):
            self.space_left += len(self._inode(path).pages) * PAGE_BYTES
            self._directory(path.parent).change(lambda names: names.pop(path.name, None))

    def remove_directory(self, path: Path) -> None:
        self.step("remove directory", path)
        if self.exists(path):
            if self._directory(path).names:
                raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
            self._directory(path.parent).change(lambda names: names.pop(path.name, None))

    def modified_at_ms(self, path: Path) -> int:
        return self._inode(path).modified_at_ms

    def file_bytes(self, path: Path) -> int:
        return self._inode(path).size

    def space(self, path: Path) -> Space:
        return Space(used=SPACE_BYTES - self.space_left, usable=self.space_left)

    def open_files_max(self) -> int:
        return 1024

    def _directory(self, path: Path) -> Directory:
        directory: Inode | Directory = self._root
        for part in path.parts[1:]:
            if not isinstance(directory, Directory) or part not in directory.names:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            directory = directory.names[part]
        if not isinstance(directory, Directory):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return directory

    def _inode(self, path: Path) -> Inode:
        entry = self._directory(path.parent).names.get(path.name)
        if not isinstance(entry, Inode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return entry

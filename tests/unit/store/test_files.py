"""The port to the disk: the real one and the simulated one answer alike."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path

import pytest

from kappamq.errors import DiskFull, StorageError, StoreLocked
from kappamq.store.files import (
    FileSystem,
    RealFile,
    RealFileSystem,
    Space,
    _are_cached,
    _are_cached_by_reading,
    _preload,
    _preload_pieces,
    _sync_files,
    _sync_one_by_one,
    make_directory_durably,
    read_whole,
    storage_error,
    write_durably,
)
from tests.faults.simulated_files import SimulatedFileSystem


@pytest.fixture(params=[RealFileSystem, SimulatedFileSystem])
def files(request: pytest.FixtureRequest) -> FileSystem:
    make: Callable[[], FileSystem] = request.param
    return make()


def test_file_grows_shrinks_and_is_mapped(files: FileSystem, tmp_path: Path) -> None:
    make_directory_durably(files, tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / "file"
    file = files.open(path, create=True)
    file.resize(10_000)
    view = file.map()
    file.pwrite(b"hello", 5_000)
    assert view[4_999:5_006] == b"\0hello\0"
    assert file.pread(100, 9_990) == bytes(10)
    assert file.size() == files.file_bytes(path) == 10_000
    file.resize(5_002)
    file.resize(10_000)
    assert file.pread(10, 5_000) == b"he" + bytes(8)
    file.sync()
    files.sync_directory(path.parent)
    file.close()
    assert files.list_directory(path.parent) == ["file"]
    assert files.list_directory(tmp_path / "missing") == []
    assert view[5_000:5_002] == b"he"


def test_next_data_passes_over_holes(files: FileSystem, tmp_path: Path) -> None:
    make_directory_durably(files, tmp_path)
    file = files.open(tmp_path / "file", create=True)
    file.resize(1 << 20)
    assert file.next_data(0) is None
    file.pwrite(b"x", 500_000)
    found = file.next_data(0)
    assert found is not None
    assert 400_000 < found <= 500_000
    assert file.next_data(600_000) is None
    file.close()


def _is_cached(file: RealFile, at: int, size: int) -> bool:
    return file.are_cached([(at, size)], file.map())


@pytest.mark.parametrize("are_cached", [_are_cached_by_reading, _are_cached])
def test_what_is_in_memory_is_told_from_what_is_not(
    tmp_path: Path, are_cached: Callable[[int, list[tuple[int, int]], mmap], bool]
) -> None:
    file = RealFileSystem().open(tmp_path / "file", create=True)
    file.pwrite(bytes(1_000_000), 0)
    file.sync()
    descriptor = file._descriptor
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError:
        pytest.skip("this file system cannot tell")

    def found(*runs: tuple[int, int]) -> bool:
        return are_cached(descriptor, list(runs), file.map())

    assert found((5000, 995_000))
    assert found((5000, 10), (0, 1_000_000), (1_000_000, 0))
    assert found()
    assert not found((900_000, 100_001))  # The file ends before.
    assert not found((5000, 10), (2_000_000, 1))
    # To ask may make the system read just that, some moments later: no range is asked for twice.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for _ in range(100):  # Pages that the system still works on stay for a moment.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not found((5000, 10)) and not found((900_000, 10)):
            break
        os.sync()
    assert not found((5000, 90_000))
    file.pread(20_000, 5000)
    assert found((21_000, 2000))
    assert not found((21_000, 2000), (900_000, 10_000))
    assert not found((600_000, 10_000), (21_000, 2000))
    assert not found((21_000, 900_000))
    file.pread(1_000_000, 0)
    assert found((21_000, 2000), (900_000, 10_000), (5000, 995_000))
    file.close()


@pytest.mark.parametrize("preload", [_preload_pieces, _preload])
def test_parts_of_a_file_are_read_ahead(
    tmp_path: Path, preload: Callable[[int, list[tuple[int, int]], int], None]
) -> None:
    file = RealFileSystem().open(tmp_path / "file", create=True)
    file.pwrite(bytes(200_000), 0)
    file.sync()
    descriptor = file._descriptor
    for _ in range(100):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not _is_cached(file, 0, 4096):
            break
        os.sync()
    preload(descriptor, [(4096, 50_000), (150_000, 1_000_000)], 16_384)  # The last goes on behind the end.
    assert _is_cached(file, 4096, 50_000)
    assert _is_cached(file, 150_000, 50_000)
    preload(descriptor, [], 16_384)
    with pytest.raises(OSError, match=r"descriptor|ahead"):
        preload(-1, [(0, 1)], 16_384)
    file.close()


@pytest.mark.parametrize("sync_files", [_sync_one_by_one, _sync_files])
def test_files_are_synced_together(tmp_path: Path, sync_files: Callable[[Sequence[Path]], None]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(5000))
    sync_files([tmp_path / "a", tmp_path / "gone", tmp_path / "b"])
    sync_files([])
    with pytest.raises(NotADirectoryError):
        sync_files([tmp_path / "a" / "within", tmp_path / "b"])
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)  # Else opening it would wait for a writer.
    with pytest.raises(OSError, match="Invalid argument"):
        sync_files([tmp_path / "pipe"])
    os.close(end)


def test_writable_map_is_seen_by_reads(files: FileSystem, tmp_path: Path) -> None:
    make_directory_durably(files, tmp_path)
    file = files.open(tmp_path / "file", create=True)
    file.reserve(0, 4096)
    view = file.map(writable=True)
    view[10:15] = b"hello"
    assert file.pread(5, 10) == b"hello"
    file.close()


def test_small_files_are_replaced_whole(files: FileSystem, tmp_path: Path) -> None:
    make_directory_durably(files, tmp_path)
    path = tmp_path / "state"
    assert read_whole(files, path) is None
    write_durably(files, path, b"a longer first version")
    write_durably(files, path, b"second")
    assert read_whole(files, path) == b"second"
    assert files.list_directory(tmp_path) == ["state"]


def test_removing_what_is_not_there_is_no_error(files: FileSystem, tmp_path: Path) -> None:
    make_directory_durably(files, tmp_path)
    files.unlink(tmp_path / "missing")
    files.remove_directory(tmp_path / "missing")
    assert not files.exists(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "missing")


def test_lock_excludes_this_process(files: FileSystem, tmp_path: Path) -> None:
    make_directory_durably(files, tmp_path)
    held = files.lock(tmp_path / "lock")
    with pytest.raises(StoreLocked):
        files.lock(tmp_path / "lock")
    held.close()
    files.lock(tmp_path / "lock").close()


def test_lock_is_the_record_lock_that_java_takes(tmp_path: Path) -> None:
    """Another process sees a POSIX lock on byte 0, and ours sees its."""
    program = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: print('held', flush=True)\n"
        "else: print('taken', flush=True); sys.stdin.read()\n"
    )
    path = tmp_path / "lock"
    held = RealFileSystem().lock(path)
    command = [sys.executable, "-c", program, str(path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout == "held\n"
    held.close()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "taken\n"
        with pytest.raises(StoreLocked, match="another process"):
            RealFileSystem().lock(path)
        child.communicate("")


def test_errors_of_the_system_are_translated() -> None:
    assert isinstance(storage_error("writing", OSError(errno.ENOSPC, "No space left")), DiskFull)
    other = storage_error("writing", OSError(errno.EIO, "Input/output error"))
    assert type(other) is StorageError
    assert "writing" in str(other)


def test_space(tmp_path: Path) -> None:
    assert 0 < RealFileSystem().space(tmp_path).used_ratio < 1
    assert Space(used=75, usable=25).used_ratio == 0.75
    assert Space(used=0, usable=0).used_ratio == 1.0
    assert RealFileSystem().open_files_max() >= 64
    assert abs(RealFileSystem().modified_at_ms(tmp_path) - os.stat(tmp_path).st_mtime * 1000) < 2

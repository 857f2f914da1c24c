"""Segments in order."""

import os
from pathlib import Path
from typing import ClassVar

import pytest

from kappamq.errors import OffsetOutOfRange, StorageError
from kappamq.store.commit_log import PAGES_AHEAD_BYTES, CommitLog
from kappamq.store.files import RealFile, RealFileSystem
from tests.faults.records import ROOT
from tests.faults.simulated_files import SimulatedFileSystem

DIRECTORY = ROOT / "commitlog"


def empty_log(files: SimulatedFileSystem) -> CommitLog:
    files.make_directory(DIRECTORY)
    log = CommitLog(files, DIRECTORY, segment_bytes=4096)
    log.load()
    return log


def test_reading_stays_within_what_is_written() -> None:
    log = empty_log(SimulatedFileSystem())
    log.write([(log.tail(), 0, b"hello")], end=5)
    assert log.read(0, 5) == b"hello"
    for log_offset, size in ((0, 6), (-1, 2), (5, 1), (0, -1), (4090, 10)):
        with pytest.raises(OffsetOutOfRange):
            log.read(log_offset, size)


def test_missing_segment_is_refused() -> None:
    files = SimulatedFileSystem()
    log = empty_log(files)
    for start in (0, 4096, 8192):
        log.add_segment(start)
    log.close(remove_unused=False)
    files.unlink(DIRECTORY / f"{4096:020d}")
    with pytest.raises(StorageError, match="does not follow"):
        CommitLog(files, DIRECTORY, segment_bytes=4096).load()


def test_short_last_segment_is_extended() -> None:
    files = SimulatedFileSystem()
    log = empty_log(files)
    log.add_segment(0)
    log.close(remove_unused=False)
    files.open(DIRECTORY / f"{0:020d}").resize(100)
    with pytest.raises(StorageError):
        CommitLog(files, DIRECTORY, segment_bytes=4096).load(writable=False)
    CommitLog(files, DIRECTORY, segment_bytes=4096).load()
    assert files.file_bytes(DIRECTORY / f"{0:020d}") == 4096


def test_spare_segment_that_came_too_late_is_not_used() -> None:
    files = SimulatedFileSystem()
    log = empty_log(files)
    log.add_segment(0)
    log.prepare_segment()
    log.prepare_segment()
    assert log.add_segment(4096).start == 4096
    log._spare = log.segments[1]
    assert log.add_segment(8192).start == 8192
    assert [segment.start for segment in log.segments] == [0, 4096, 8192]


def test_cut_deletes_later_segments_and_zeroes_the_rest() -> None:
    files = SimulatedFileSystem()
    log = empty_log(files)
    for start in (0, 4096, 8192):
        log.write([(log.add_segment(start), start, b"x" * 4096)], end=start + 4096)
    log.cut(5000)
    assert files.list_directory(DIRECTORY) == [f"{0:020d}", f"{4096:020d}"]
    assert log.segments[1].map[:4096] == b"x" * 904 + bytes(3192)
    assert log.written == log.flushed == 5000


def test_flush_syncs_only_what_is_not_flushed() -> None:
    files = SimulatedFileSystem()
    log = empty_log(files)
    for start in (0, 4096):
        log.write([(log.add_segment(start), start, b"x" * 4096)], end=start + 4096)
    log.flushed = 4096
    synced: list[str] = []
    files.on_step = lambda action, path: synced.append(path.name) if action == "sync" else None
    assert log.flush() == 8192
    assert synced == [f"{4096:020d}"]


class NotingFile(RealFile):
    """Notes what is loaded ahead."""

    loaded: ClassVar[list[tuple[int, int]]] = []

    def preload(self, runs: list[tuple[int, int]]) -> None:
        self.loaded.extend(runs)
        super().preload(runs)


class NotingFiles(RealFileSystem):
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        return NotingFile(os.open(path, os.O_RDWR | os.O_CREAT))


def test_pages_are_made_ahead_of_a_log_that_grows(tmp_path: Path) -> None:
    ahead = PAGES_AHEAD_BYTES
    log = CommitLog(NotingFiles(), tmp_path / "commitlog", segment_bytes=4 * ahead)
    log.add_segment(0)
    NotingFile.loaded.clear()
    assert log.needs_pages
    log.prepare_pages()
    assert not log.needs_pages
    assert not NotingFile.loaded, "perhaps not much is to come"
    for end, wanted in ((ahead, [(ahead, 2 * ahead)]), (2 * ahead + 5, [(3 * ahead, ahead)]), (3 * ahead + 5, [])):
        log.write([(log.tail(), end - 1, b"x")], end=end)
        assert log.needs_pages
        log.prepare_pages()
        assert not log.needs_pages
        assert NotingFile.loaded == wanted
        NotingFile.loaded.clear()
    log.prepare_segment()
    log.write([(log.tail(), 4 * ahead - 1, b"x")], end=4 * ahead)
    log.prepare_pages()
    assert NotingFile.loaded == [(ahead + 5, ahead - 5)], "what was not there before is not made up for"
    log.close(remove_unused=True)

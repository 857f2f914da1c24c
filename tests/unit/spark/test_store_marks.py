from pathlib import Path

import pytest

from kappamq.spark.store_marks import EVER, read_marks
from kappamq.store.checkpoint import load_flushed, load_own
from kappamq.store.files import RealFileSystem
from tests.unit.spark.broker_store import write_store


@pytest.mark.parametrize("is_stopped", [True, False])
def test_marks_are_those_that_the_broker_reads(tmp_path: Path, is_stopped: bool) -> None:
    store = write_store(tmp_path, is_stopped=is_stopped)
    if not is_stopped:
        store.checkpoint()
    try:
        files = RealFileSystem()
        own = load_own(files, tmp_path)
        assert own is not None
        marks = read_marks(tmp_path)
        assert marks.is_clean == is_stopped
        assert marks.flushed == max(own.flushed, load_flushed(files, tmp_path, own.session)) > 0
        assert (marks.dispatched, marks.crc_from) == (own.dispatched, own.crc_from)
        assert marks.index_files == own.index_files
        assert len(marks.index_files) > 2
        assert marks.queues == frozenset((queue.topic, queue.queue_id) for queue in own.queues)
    finally:
        store.close()


def test_a_checkpoint_that_another_broker_left_behind_says_nothing(tmp_path: Path) -> None:
    write_store(tmp_path)
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    data[7] ^= 1
    (tmp_path / "checkpoint").write_bytes(data)
    marks = read_marks(tmp_path)
    assert (marks.is_clean, marks.dispatched, marks.queues, marks.crc_from) == (True, None, None, EVER)
    assert marks.rescan_ms > 0


def test_marks_say_nothing_when_another_broker_was_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    write_store(tmp_path)
    (tmp_path / "abort").write_text("4711")
    assert (read_marks(tmp_path).dispatched, read_marks(tmp_path).crc_from) == (None, EVER)


def test_a_directory_without_marks(tmp_path: Path) -> None:
    assert read_marks(tmp_path).is_clean
    (tmp_path / "abort").touch()
    assert not read_marks(tmp_path).is_clean

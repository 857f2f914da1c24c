"""The checker finds what is broken, and where."""

from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.errors import StorageError
from kappamq.model.record import decode_record
from kappamq.store.check import check_store
from kappamq.store.consume_queue import UNIT
from kappamq.store.reading import QueueEntry
from kappamq.store.store import Store
from tests.faults.records import ROOT, commit, new_record, open_store, small_settings
from tests.faults.simulated_files import SimulatedFileSystem

COUNT = 40
SEGMENT = ROOT / "commitlog" / f"{8192:020d}"
QUEUE = ROOT / "consumequeue" / "orders" / "0" / f"{400:020d}"


@pytest.fixture
def files() -> SimulatedFileSystem:
    files = SimulatedFileSystem()
    store = open_store(files)
    for number in range(COUNT):
        store.append([new_record(b"%03d" % number + b"x" * 400, tags="A", keys=f"k{number}")])
    commit(store)
    store.close()
    return files


def texts(files: SimulatedFileSystem) -> list[str]:
    return [str(violation) for violation in check_store(ROOT, small_settings(), files=files).violations]


def test_sound_store(files: SimulatedFileSystem) -> None:
    report = check_store(ROOT, small_settings(), files=files)
    assert report.is_sound
    assert (report.records, report.queues, report.queue_entries, report.index_entries) == (COUNT, 1, COUNT, COUNT)
    assert report.log_end > 8192
    assert report.tail_bytes == 0


def test_checking_changes_nothing(files: SimulatedFileSystem) -> None:
    steps = files.steps
    texts(files)
    assert files.steps == steps


def test_damaged_record(files: SimulatedFileSystem) -> None:
    files.flip(SEGMENT, 100)
    found = texts(files)
    assert found[0].startswith(f"commitlog/{8192:020d}: log offset 8192: no valid record")
    assert "the next one is at" in found[0]


def test_damaged_last_record(files: SimulatedFileSystem) -> None:
    report = check_store(ROOT, small_settings(), files=files)
    segment, at = divmod(report.log_end - 10, 8192)
    files.flip(ROOT / "commitlog" / f"{segment * 8192:020d}", at)
    assert any("though the log was flushed up to" in text for text in texts(files))


@pytest.mark.parametrize("field", [0, 8, 12])
def test_wrong_queue_entry(files: SimulatedFileSystem, field: int) -> None:
    files.flip(QUEUE, 60 + field + 3, bits=1)
    (found,) = texts(files)
    assert found.startswith("consumequeue/orders/0:")
    assert "entry 23 is" in found


def test_other_delay_levels_than_when_messages_were_stored_are_no_damage(files: SimulatedFileSystem) -> None:
    store = open_store(files, small_settings(delay_levels_ms=(7_000, 8_000)))
    waiting = replace(new_record(topic="SCHEDULE_TOPIC_XXXX", queue_id=1), properties=b"DELAY\x012\x02")
    store.append([waiting, waiting])
    commit(store)
    store.close()
    assert texts(files) == []
    reopened = open_store(files)
    entries = reopened.entries("SCHEDULE_TOPIC_XXXX", 1, 0, 2)
    assert [entry.tags_code - stored_at_ms(reopened, entry) for entry in entries] == [8_000, 8_000]
    reopened.close()


def stored_at_ms(store: Store, entry: QueueEntry) -> int:
    return decode_record(store.read(entry.log_offset, entry.size)).stored_at_ms


def test_surplus_and_missing_queue_entries(files: SimulatedFileSystem) -> None:
    files.overwrite(QUEUE, 380, bytes(20))
    assert "entry 39 is (0, 0, 0)" in texts(files)[0]
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record()])
    commit(store)
    store.close()
    files.overwrite(ROOT / "consumequeue" / "orders" / "0" / f"{0:020d}", 20, UNIT.pack(5, 100, 0))
    assert "the log has no such record" in texts(files)[0]


def test_missing_queue(files: SimulatedFileSystem) -> None:
    directory = ROOT / "consumequeue" / "orders" / "0"
    for name in files.list_directory(directory):
        files.unlink(directory / name)
    files.remove_directory(directory)
    assert "the queue is missing" in texts(files)[0]


def test_wrong_index_entries_and_slots(files: SimulatedFileSystem) -> None:
    name = files.list_directory(ROOT / "index")[0]
    entries = 40 + 17 * 4
    files.flip(ROOT / "index" / name, entries + 20 * 5 + 3)
    found = texts(files)
    assert any("is not indexed" in text for text in found)
    assert any("without that key" in text for text in found)
    files.flip(ROOT / "index" / name, entries + 20 * 5 + 3)
    files.flip(ROOT / "index" / name, 43)
    assert texts(files) == [f"index/{name}: log offset 0: slots do not point to the newest entries"]


def test_checkpoint_ahead_of_the_log(files: SimulatedFileSystem) -> None:
    last = files.list_directory(ROOT / "commitlog")[-1]
    files.overwrite(ROOT / "commitlog" / last, 0, bytes(8192))
    found = texts(files)
    assert any(text.startswith("kappamq.checkpoint:") and "the log ends before" in text for text in found)


def test_crashed_store_is_judged_by_its_checkpoint(files: SimulatedFileSystem) -> None:
    store = open_store(files)
    store.append([new_record(b"after", keys="late") for _ in range(5)])
    commit(store)
    files.kill()
    report = check_store(ROOT, small_settings(), files=files)
    assert report.is_sound
    assert not report.is_clean_stop
    assert report.complete_to < report.log_end


def test_directory_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no commit log"):
        check_store(tmp_path, small_settings())

"""A disk that fills up: refusals are clear, nothing is lost, and service returns by itself."""

import errno
from pathlib import Path

import pytest

from kappamq.clock import ManualClock
from kappamq.errors import DiskFull, StorageError
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from tests.faults.records import ROOT, commit, fetch_all, new_record, open_store, small_settings
from tests.faults.simulated_files import PAGE_BYTES, SPACE_BYTES, SimulatedFileSystem


def test_append_is_refused_and_uses_up_no_offset() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"first")])
    commit(store)
    files.space_left = 0
    with pytest.raises(DiskFull, match="free some space"):
        store.append([new_record(b"x" * 5000)])
    files.space_left = SPACE_BYTES
    assert store.append([new_record(b"second")])[0].queue_offset == 1
    commit(store)
    assert [message.body for message in decode_records(fetch_all(store))] == [b"first", b"second"]
    store.close()
    assert check_store(ROOT, small_settings(), files=files).violations == []


def test_half_written_batch_does_not_come_back() -> None:
    """A refused batch leaves whole records behind the end of the log; a crash must not make them part of it."""
    files = SimulatedFileSystem()
    settings = small_settings(segment_bytes=65536)
    store = open_store(files, settings)
    files.space_left = 2 * PAGE_BYTES
    with pytest.raises(DiskFull):
        store.append([new_record(b"r" * 1000) for _ in range(20)])
    files.space_left = SPACE_BYTES
    store.append([new_record(b"a" * 1000)])
    files.kill()
    store = open_store(files, settings)
    assert [message.body[:1] for message in decode_records(fetch_all(store))] == [b"a"]


def test_batch_over_two_segments_is_all_or_nothing() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"x" * 7000)])

    def fail(action: str, path: Path) -> None:
        if action == "pwrite" and path.name == f"{8192:020d}":
            raise OSError(errno.ENOSPC, "No space left on device")

    files.on_step = fail
    with pytest.raises(DiskFull):
        store.append([new_record(b"y" * 500), new_record(b"z" * 1000)])
    files.on_step = None
    places = store.append([new_record(b"y" * 500), new_record(b"z" * 1000)])
    assert [place.queue_offset for place in places] == [1, 2]
    commit(store)
    store.close()
    assert check_store(ROOT, small_settings(), files=files).violations == []


def test_no_space_for_consume_queues_blocks_and_goes_on() -> None:
    files = SimulatedFileSystem()
    store = open_store(files, small_settings(is_indexed=False))
    store.append([new_record(b"%d" % number, queue_id=number % 2) for number in range(4)])

    def fail(action: str, path: Path) -> None:
        if action == "pwrite" and path.parent.name == "1":
            raise OSError(errno.ENOSPC, "No space left on device")

    files.on_step = fail
    assert commit(store) == 0
    assert not store.is_writable
    assert store.disk_state().is_full
    with pytest.raises(DiskFull, match="consume queues"):
        store.append([new_record()])
    files.on_step = None
    assert commit(store) == 4
    assert store.is_writable
    assert [store.max_offset("orders", queue_id) for queue_id in (0, 1)] == [2, 2]
    store.close()


def test_index_falls_behind_and_catches_up() -> None:
    files = SimulatedFileSystem()
    clock = ManualClock()
    store = open_store(files, clock=clock)

    def fail(action: str, path: Path) -> None:
        if action == "reserve":
            raise OSError(errno.ENOSPC, "No space left on device")

    store.append([new_record(b"before", keys="before")])
    commit(store)
    files.on_step = fail
    for number in range(60):
        store.append([new_record(b"%d" % number, keys=f"k{number}")])
        commit(store)
    assert store.is_writable
    found = [store.query("orders", f"k{number}", limit=1, begin_ms=0, end_ms=1 << 60).records for number in range(60)]
    assert [] in found
    store.checkpoint()
    files.kill()
    files.on_step = fail
    store = open_store(files, clock=clock)
    files.on_step = None
    clock.advance(ms=2000)
    store.publish()
    for number in range(60):
        assert len(store.query("orders", f"k{number}", limit=8, begin_ms=0, end_ms=1 << 60).records) == 1
    store.close()
    assert check_store(ROOT, small_settings(), files=files).violations == []


def test_index_writes_only_where_space_was_reserved() -> None:
    files = SimulatedFileSystem()
    store = open_store(files, small_settings(index_slots=3000, index_entries=5000))
    for number in range(300):
        store.append([new_record(b"", keys=f"k{number}", unique_id=f"u{number}")])
    commit(store)
    for name in files.list_directory(ROOT / "index"):
        assert files.unreserved_pages(ROOT / "index" / name) == []


def test_ninety_percent_rule_refuses_and_returns() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    files.space_left = SPACE_BYTES // 20
    assert store.disk_state().is_full
    with pytest.raises(DiskFull, match="90%"):
        store.append([new_record()])
    files.space_left = SPACE_BYTES // 8  # 87.5 % used: not yet below the lower mark.
    assert store.disk_state().is_full
    files.space_left = SPACE_BYTES // 4
    assert not store.disk_state().is_full
    store.append([new_record()])


def test_write_error_that_is_not_about_space_fails_the_store() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)

    def fail(action: str, _path: Path) -> None:
        if action == "pwrite":
            raise OSError(errno.EIO, "Input/output error")

    files.on_step = fail
    with pytest.raises(StorageError, match="Input/output error"):
        store.append([new_record()])
    files.on_step = None
    assert not store.is_writable
    assert "restart the broker" in store.failure


def test_checkpoint_without_space_keeps_the_one_before() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"kept")])
    commit(store)

    def fail(action: str, path: Path) -> None:
        if action in ("pwrite", "create") and path.name.startswith("kappamq.checkpoint"):
            raise OSError(errno.ENOSPC, "No space left on device")

    files.on_step = fail
    store.checkpoint()
    files.on_step = None
    files.kill()
    assert [message.body for message in decode_records(fetch_all(open_store(files)))] == [b"kept"]


def test_no_space_for_held_entries_blocks_and_goes_on() -> None:
    files = SimulatedFileSystem()
    settings = small_settings(is_indexed=False, hold_entries_above=1)
    store = open_store(files, settings)
    store.append([new_record(b"%d" % number, queue_id=number % 2) for number in range(4)])
    assert commit(store) == 4

    def fail(action: str, path: Path) -> None:
        if action == "pwrite" and path.parent.name == "1":
            raise OSError(errno.ENOSPC, "No space left on device")

    files.on_step = fail
    assert not store.write_held_entries(queues_max=10)
    assert not store.is_writable
    assert [message.body for message in decode_records(fetch_all(store, queue_id=1))] == [b"1", b"3"], (
        "read all the same"
    )
    store.checkpoint()
    files.kill()
    files.on_step = None
    store = open_store(files, settings)
    assert [store.max_offset("orders", queue_id) for queue_id in (0, 1)] == [2, 2]
    store.append([new_record(b"%d" % number, queue_id=number % 2) for number in range(4, 6)])
    commit(store)
    files.on_step = fail
    store.write_held_entries(queues_max=10)
    assert not store.is_writable
    files.on_step = None
    store.write_held_entries(queues_max=10)
    assert store.is_writable
    store.close()
    assert check_store(ROOT, settings, files=files).violations == []

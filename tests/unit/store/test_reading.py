"""Reading around what is missing, and ahead of who reads."""

from pathlib import Path

import pytest

from kappamq.clock import ManualClock
from kappamq.errors import CorruptRecord
from kappamq.model.record import decode_records
from kappamq.store.consume_queue import BLANK_UNIT
from kappamq.store.settings import StoreSettings
from kappamq.store.store import FetchLimit, FetchStatus, Store
from tests.faults.records import ROOT, commit, new_record, open_store, small_settings
from tests.faults.simulated_files import SimulatedFileSystem


def test_records_of_two_segments_in_one_fetch() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%02d" % number + b"x" * 700) for number in range(15)])
    commit(store)
    fetched = store.fetch("orders", 0, 0, limit=FetchLimit())
    assert fetched.count == 15
    assert len(fetched.records) == 2
    assert [int(message.body[:2]) for message in decode_records(fetched.body)] == list(range(15))
    assert fetched.last_log_offset == store.entries("orders", 0, 14, 1)[0].log_offset


def test_blank_entries_read_as_deleted_messages() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%d" % number) for number in range(5)])
    commit(store)
    files.overwrite(ROOT / "consumequeue" / "orders" / "0" / f"{0:020d}", 0, BLANK_UNIT * 3)
    fetched = store.fetch("orders", 0, 0, limit=FetchLimit())
    assert [message.body for message in decode_records(fetched.body)] == [b"3", b"4"]
    assert fetched.next_offset == 5
    only_blank = store.fetch("orders", 0, 0, limit=FetchLimit(count=2))
    assert (only_blank.status, only_blank.next_offset) == (FetchStatus.MESSAGE_WAS_REMOVING, 2)
    assert store.stored_at("orders", 0, 0) == -1


def test_one_fetch_stays_in_one_queue_file() -> None:
    store = open_store(SimulatedFileSystem(), small_settings(queue_segment_bytes=100))
    store.append([new_record(b"%d" % number) for number in range(12)])
    commit(store)
    assert [store.fetch("orders", 0, start, limit=FetchLimit()).next_offset for start in (0, 3, 5, 11)] == [
        5,
        5,
        10,
        12,
    ]


def test_warming_reads_what_a_fetch_will_read_and_nothing_absurd() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%02d" % number + b"x" * 700) for number in range(15)])
    commit(store)
    entries = store.entries("orders", 0, 0, 15)
    segment_end = store.settings.segment_bytes
    in_first = [entry for entry in entries if entry.log_offset < segment_end]

    def read_from_log() -> list[tuple[int, int]]:
        found = [(at, size) for path, at, size in files.reads if path.parent.name == "commitlog"]
        files.reads.clear()
        return found

    read_from_log()
    assert 0 < len(in_first) < 15
    assert store.warm("orders", 0, 0, count=32) == len(in_first)
    assert read_from_log() == [(0, sum(entry.size for entry in in_first))]  # One run; the next segment is for later.
    assert store.warm("orders", 0, len(in_first), count=2) == len(in_first) + 2
    read_from_log()
    assert store.warm("orders", 0, 3, count=2) == 5
    assert read_from_log() == [(entries[3].log_offset, 2 * entries[3].size)]
    files.overwrite(ROOT / "consumequeue" / "orders" / "0" / f"{0:020d}", 0, BLANK_UNIT * 3)
    store.warm("orders", 0, 0, count=3)
    for start in (-1, 15, 99):
        assert store.warm("orders", 0, start, count=32) == start
    assert store.warm("nowhere", 0, 7, count=32) == 7
    assert not read_from_log()


def test_what_another_process_wrote_is_verified_once_and_up_to_the_first_damage() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%02d" % number) for number in range(20)])
    commit(store)
    entries = store.entries("orders", 0, 0, 20)
    store.close()
    store = open_store(files)
    files.overwrite(ROOT / "commitlog" / f"{0:020d}", entries[12].log_offset + 90, b"!")
    assert store.hot_entries("orders", 0, 0, 32) is None
    assert store.warm("orders", 0, 0, count=32) == 12
    store.mark_verified("orders", 0, 0, 12)
    fetched = store.fetch("orders", 0, 5, limit=FetchLimit())
    assert [message.body for message in decode_records(fetched.body)] == [b"%02d" % number for number in range(5, 12)]
    assert store.warm("orders", 0, 12, count=32) == 12
    with pytest.raises(CorruptRecord):
        store.fetch("orders", 0, 12, limit=FetchLimit())
    # What is verified is not looked at again: a bit that flips now is for the reader to notice.
    files.overwrite(ROOT / "commitlog" / f"{0:020d}", entries[6].log_offset + 90, b"!")
    assert store.fetch("orders", 0, 6, limit=FetchLimit()).count == 6
    store.delete_topic("orders")
    assert store.warm("orders", 0, 0, count=32) == 0


def test_large_records_are_warmed_one_or_two_at_a_time(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(segment_bytes=1 << 26, visible="written"), clock=ManualClock())
    store.append([new_record(b"x" * 3_000_000) for _ in range(4)])
    store.publish()
    assert store.warm("orders", 0, 0, count=32) == 1
    store.close()

"""Reading around what is missing."""

from kappamq.model.record import decode_records
from kappamq.store.consume_queue import BLANK_UNIT
from kappamq.store.store import FetchLimit, FetchStatus
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


def test_preloading_reads_what_a_fetch_will_read_and_nothing_absurd() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%02d" % number + b"x" * 700) for number in range(15)])
    commit(store)
    entries = store.entries("orders", 0, 0, 15)
    files.reads.clear()
    store.preload("orders", 0, 0, limit=FetchLimit())
    assert len({path for path, _, _ in files.reads}) == len(files.reads) == 2  # One run in each segment.
    assert sum(size for _, _, size in files.reads) == sum(entry.size for entry in entries)
    files.reads.clear()
    store.preload("orders", 0, 3, limit=FetchLimit(count=2))
    assert [(at, size) for _, at, size in files.reads] == [(entries[3].log_offset, 2 * entries[3].size)]
    files.reads.clear()
    files.overwrite(ROOT / "consumequeue" / "orders" / "0" / f"{0:020d}", 0, BLANK_UNIT * 3)
    store.preload("orders", 0, 0, limit=FetchLimit(count=3))
    for start in (-1, 15, 99):
        store.preload("orders", 0, start, limit=FetchLimit())
    store.preload("nowhere", 0, 0, limit=FetchLimit())
    assert not files.reads

"""The store as its owner sees it, on real files."""

import os
from pathlib import Path

import pytest

from kappamq.clock import ManualClock
from kappamq.errors import CorruptRecord, InvalidMessage, InvalidName, OffsetOutOfRange, StorageError, StoreLocked
from kappamq.model.record import NewRecord, decode_records
from kappamq.model.selector import Selector
from kappamq.store.check import check_store
from kappamq.store.settings import StoreSettings
from kappamq.store.store import FetchLimit, FetchStatus, Store
from tests.faults.records import HOST, commit, fetch_all, new_record, small_settings


def open_at(root: Path, **changes: object) -> Store:
    return Store.open(root, small_settings(**changes), clock=ManualClock())


def test_append_flush_publish_fetch(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    first, second = store.append([new_record(b"one", tags="A"), new_record(b"two", queue_id=1)])
    assert (first.log_offset, first.queue_offset, second.log_offset, second.queue_offset) == (0, 0, first.end, 0)
    assert (store.written, store.flushed, store.published) == (second.end, 0, 0)
    assert store.publish() == []
    assert store.flush() == second.end
    assert store.publish() == []
    store.mark_flushed(second.end)
    arrivals = store.publish()
    assert [(arrival.topic, arrival.queue_id, arrival.queue_offset) for arrival in arrivals] == [
        ("orders", 0, 0),
        ("orders", 1, 0),
    ]
    assert store.published == store.max_log_offset == second.end
    assert [message.body for message in decode_records(fetch_all(store))] == [b"one"]
    assert next(decode_records(store.read(second.log_offset))).body == b"two"
    store.close()


def test_written_records_are_visible_at_once_when_asked_for(tmp_path: Path) -> None:
    store = open_at(tmp_path, visible="written")
    store.append([new_record(b"one")])
    assert len(store.publish()) == 1
    store.close()


def test_second_opening_is_refused(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    with pytest.raises(StoreLocked):
        open_at(tmp_path)
    with pytest.raises(StoreLocked):
        check_store(tmp_path, small_settings())
    store.close()
    open_at(tmp_path).close()


def test_offsets_go_on_after_a_restart(tmp_path: Path) -> None:
    for round_number in range(5):
        store = open_at(tmp_path)
        places = store.append([new_record(b"x" * 500, queue_id=queue_id) for queue_id in (0, 1) for _ in range(9)])
        assert places[0].queue_offset == round_number * 9
        commit(store)
        store.close()
    assert check_store(tmp_path, small_settings()).records == 90


def test_kill_and_recover_on_real_files(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        store = open_at(tmp_path)
        for number in range(100):
            store.append([new_record(b"%03d" % number + b"x" * 300, keys=f"k{number}")])
            commit(store)
            if number == 60:
                store.checkpoint()
        os._exit(1)
    os.waitpid(child, 0)
    store = open_at(tmp_path)
    assert not store.recovery.was_clean
    assert store.recovery.records_rescanned == 39
    assert [int(message.body[:3]) for message in decode_records(fetch_all(store))] == list(range(100))
    assert all(
        store.query("orders", f"k{number}", limit=2, begin_ms=0, end_ms=1 << 60).records for number in range(100)
    )
    store.close()
    assert check_store(tmp_path, small_settings()).violations == []


def test_fetch_statuses(tmp_path: Path) -> None:
    store = open_at(tmp_path)

    def status(start: int, queue_id: int = 0) -> tuple[FetchStatus, int]:
        fetched = store.fetch("orders", queue_id, start, limit=FetchLimit())
        return fetched.status, fetched.next_offset

    assert status(5) == (FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    store.append([new_record(), new_record()])
    assert status(0) == (FetchStatus.NO_MESSAGE_IN_QUEUE, 0)
    commit(store)
    assert status(0) == (FetchStatus.FOUND, 2)
    assert status(2) == (FetchStatus.OFFSET_OVERFLOW_ONE, 2)
    assert status(9) == (FetchStatus.OFFSET_OVERFLOW_BADLY, 2)
    assert status(-1) == (FetchStatus.OFFSET_TOO_SMALL, 0)
    store.close()


def test_fetch_limits_and_the_first_message_is_always_returned(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.append([new_record(b"x" * 1000, queue_id=number % 2) for number in range(10)])
    commit(store)
    assert store.fetch("orders", 0, 0, limit=FetchLimit(count=3)).count == 3
    limited = store.fetch("orders", 0, 0, limit=FetchLimit(bytes_max=2500))
    assert (limited.count, limited.next_offset) == (2, 2)
    assert limited.bytes == len(limited.body) == sum(map(len, limited.records))
    assert store.fetch("orders", 0, 0, limit=FetchLimit(bytes_max=1)).count == 1
    store.close()


def test_fetch_with_selectors(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.append([new_record(b"%d" % number, tags="AB"[number % 2], keys=f"k{number}") for number in range(20)])
    commit(store)

    def bodies(selector: Selector | None, start: int = 0, **limit: int) -> tuple[list[bytes], int]:
        fetched = store.fetch("orders", 0, start, limit=FetchLimit(**limit), selector=selector)
        return [message.body for message in decode_records(fetched.body)], fetched.next_offset

    only_b = Selector.parse("B", "TAG")
    assert bodies(only_b)[0] == [b"%d" % number for number in range(1, 20, 2)]
    assert bodies(only_b, count=2) == ([b"1", b"3"], 4)
    assert bodies(Selector.parse("*", None), count=3) == ([b"0", b"1", b"2"], 3)
    assert bodies(Selector.parse("KEYS = 'k7'", "SQL92")) == ([b"7"], 20)
    nothing = store.fetch("orders", 0, 0, limit=FetchLimit(scan_max=5), selector=Selector.parse("C", "TAG"))
    assert (nothing.status, nothing.next_offset, nothing.body) == (FetchStatus.NO_MATCHED_MESSAGE, 5, b"")
    store.close()


def test_search_by_time(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    store = Store.open(tmp_path, small_settings(), clock=clock)
    for _ in range(5):
        store.append([new_record(), new_record()])
        clock.advance(ms=100)
    commit(store)
    at = store.offset_at
    assert [at("orders", 0, time_ms) for time_ms in (0, 1000, 1001, 1100, 1399, 1400, 1401)] == [0, 0, 2, 2, 8, 8, 10]
    assert [at("orders", 0, time_ms, "UPPER") for time_ms in (0, 1000, 1001, 1400, 9999)] == [0, 1, 1, 9, 9]
    assert at("missing", 0, 1000) == 0
    assert [store.stored_at("orders", 0, offset) for offset in (0, 9, 10)] == [1000, 1400, -1]
    assert (store.earliest_stored_at(), store.latest_stored_at()) == (1000, 1400)
    assert [entry.queue_offset for entry in store.entries("orders", 0, 8, 100)] == [8, 9]
    store.close()


def test_query_by_key(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    store = Store.open(tmp_path, small_settings(index_slots=1), clock=clock)
    for number in range(6):
        store.append(
            [new_record(b"%d" % number, keys=f"all k{number}", unique_id=f"u{number}", topic=f"t{number % 2}")]
        )
        clock.advance(ms=10_000)
    commit(store)

    def found(topic: str, key: str, limit: int = 9, begin_ms: int = 0, end_ms: int = 1 << 60) -> list[bytes]:
        result = store.query(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
        return [message.body for message in decode_records(b"".join(result.records))]

    assert found("t0", "all") == [b"0", b"2", b"4"]
    assert found("t0", "all", limit=2) == [b"2", b"4"]
    assert found("t1", "u3") == [b"3"]
    assert found("t0", "u3") == []
    assert found("t0", "all", begin_ms=1_015_000, end_ms=1_025_000) == [b"2"]
    store.close()


def test_read_refuses_what_is_no_record(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    places = store.append([new_record(b"one"), new_record(b"two")])
    with pytest.raises(OffsetOutOfRange):
        store.read(0)
    commit(store)
    assert store.read(0, places[0].size)
    with pytest.raises(CorruptRecord):
        store.read(0, places[0].size - 1)
    with pytest.raises(CorruptRecord):
        store.read(5)
    for log_offset in (-1, places[1].end, 1 << 40):
        with pytest.raises(OffsetOutOfRange):
            store.read(log_offset)
    store.close()


@pytest.mark.parametrize(
    "record",
    [
        NewRecord("orders", 0, b"x" * 5000, b"", 0, HOST, HOST),
        NewRecord("orders", 0, b"", b"P\x01" + b"v" * 32_740 + b"\x02", 0, HOST, HOST),
        NewRecord("orders", 0, b"x" * 4090, b"", 0, HOST, HOST),
    ],
)
def test_records_that_can_never_be_stored(tmp_path: Path, record: NewRecord) -> None:
    store = open_at(tmp_path, segment_bytes=4096, message_bytes_max=4096)
    with pytest.raises(InvalidMessage):
        store.append([new_record(b"fine"), record])
    assert store.append([new_record(b"fine")])[0].queue_offset == 0
    store.close()


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "", "a\0b"])
def test_names_that_are_no_topics_touch_no_directory(tmp_path: Path, topic: str) -> None:
    store = open_at(tmp_path)
    with pytest.raises(InvalidName):
        store.append([new_record(topic=topic)])
    with pytest.raises(InvalidName):
        store.append([new_record(queue_id=-1)])
    assert store.queues() == []
    store.close()


def test_atomic_batch_stays_in_one_segment(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.append([new_record(b"x" * 6000)])
    places = store.append([new_record(b"y" * 1000) for _ in range(3)], atomic=True)
    assert [place.log_offset // 8192 for place in places] == [1, 1, 1]
    with pytest.raises(InvalidMessage, match="batch"):
        store.append([new_record(b"y" * 3000) for _ in range(3)], atomic=True)
    commit(store)
    store.close()
    assert check_store(tmp_path, small_settings()).violations == []


def test_checksum_of_an_earlier_storing_is_replaced(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.append([new_record(b"one", tags="A")])
    commit(store)
    stored = next(decode_records(store.read(0)))
    again = store.append([NewRecord("orders", 1, stored.body, stored.properties_text.encode(), 0, HOST, HOST)])
    commit(store)
    assert next(decode_records(store.read(again[0].log_offset))).properties_text.count("__CRC32#") == 1
    store.close()


def test_next_segment_is_made_ahead_of_need(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    assert store.needs_segment, "the first index file"
    store.prepare_next_segment()
    store.append([new_record(b"x" * 3000)])
    assert not store.needs_segment
    store.append([new_record(b"x" * 3000)])
    assert store.needs_segment
    store.prepare_next_segment()
    assert not store.needs_segment
    assert (tmp_path / "commitlog" / f"{8192:020d}").stat().st_size == 8192
    store.append([new_record(b"x" * 3000)])
    assert store.written > 8192
    store.close()


def test_cold_reads_are_told_apart(tmp_path: Path) -> None:
    store = open_at(tmp_path, hot_bytes=2000)
    store.append([new_record(b"x" * 900) for _ in range(5)])
    commit(store)
    assert [store.is_cold("orders", 0, offset) for offset in (0, 4, 5, -1)] == [False] * 4  # All is in memory.
    store.close()
    store = open_at(tmp_path)
    assert store.is_behind("orders", 0, 4)
    assert store.is_cold("orders", 0, 4)
    assert store.warm("orders", 0, 4, count=9) == 5
    store.mark_verified("orders", 0, 4, 5)
    assert [store.is_cold("orders", 0, offset) for offset in (3, 4)] == [True, False]
    assert store.is_behind("orders", 0, 4)
    store.append([new_record()])
    commit(store)
    assert not store.is_cold("orders", 0, 5)
    assert not store.is_cold("missing", 0, 0)
    store.close()


def test_deleted_topic_starts_again_from_zero(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    for _ in range(2):
        store.append([new_record(b"old"), new_record(b"other", topic="other")])
        commit(store)
    store.append([new_record(b"pending")])
    store.delete_topic("orders")
    commit(store)
    assert not store.has_queue("orders", 0)
    assert store.max_offset("other", 0) == 2
    assert store.append([new_record(b"new")])[0].queue_offset == 0
    commit(store)
    assert [message.body for message in decode_records(fetch_all(store))] == [b"new"]
    store.close()
    assert check_store(tmp_path, small_settings()).violations == []
    for name in ("kappamq.checkpoint", "checkpoint"):
        (tmp_path / name).unlink()
    (tmp_path / "abort").touch()
    store = open_at(tmp_path)
    assert [message.body for message in decode_records(fetch_all(store))] == [b"new"]
    store.close()


def test_checkpoint_is_asked_for(tmp_path: Path) -> None:
    store = open_at(tmp_path, checkpoint_records=3)
    store.append([new_record() for _ in range(3)])
    assert not store.needs_checkpoint
    commit(store)
    assert store.needs_checkpoint
    store.checkpoint()
    assert not store.needs_checkpoint
    store.close()


def test_closed_store_refuses(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.append([new_record()])


def test_segment_size_must_be_that_of_the_store(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.append([new_record(b"x" * 5000), new_record(b"x" * 5000)])
    commit(store)
    store.close()
    with pytest.raises(StorageError, match="segment_bytes"):
        open_at(tmp_path, segment_bytes=4096)
    with pytest.raises(StorageError, match="queue_segment_bytes"):
        open_at(tmp_path, queue_segment_bytes=200)
    open_at(tmp_path).close()


@pytest.mark.parametrize(
    ("name", "text"),
    [("batchconsumequeue/t", "BatchCQ"), ("dledger-a/x", "DLedger"), ("consumequeue_rocksdb/x", "RocksDB")],
)
def test_other_layouts_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(StorageError, match=text):
        open_at(tmp_path)


def test_many_queues_with_few_open_files(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = open_at(tmp_path, queue_files_open_max=8)
    for _ in range(3):
        store.append([new_record(b"x", queue_id=queue_id) for queue_id in range(50)])
        commit(store)
    assert all(len(list(decode_records(fetch_all(store, queue_id=queue_id)))) == 3 for queue_id in range(50))
    assert len(os.listdir("/proc/self/fd")) - before < 60
    store.close()
    assert check_store(tmp_path, small_settings()).violations == []


def test_defaults_open_and_close(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(), clock=ManualClock())
    store.append([new_record(keys="k")])
    commit(store)
    store.close()
    assert check_store(tmp_path, StoreSettings()).violations == []

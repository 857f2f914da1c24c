"""Which segments go, and what goes with them."""

import pytest

from kappamq.clock import ManualClock
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.retention import HOUR_MS, SegmentAge, deletable
from kappamq.store.store import FetchLimit, FetchStatus
from tests.faults.records import ROOT, commit, fetch_all, new_record, open_store, small_settings
from tests.faults.simulated_files import SPACE_BYTES, SimulatedFileSystem

NOW_MS = 1_700_000_000_000
AGES = [SegmentAge(start, start + 100, NOW_MS - (5 - start // 100) * 24 * HOUR_MS) for start in range(0, 500, 100)]


@pytest.mark.parametrize(
    ("changes", "hour", "used", "expected"),
    [
        ({}, 4, 0.1, (300, "expired")),
        ({}, 5, 0.1, (0, "none")),
        ({}, 5, 0.8, (300, "expired")),
        ({"retention_hours": 1000}, 4, 0.8, (0, "none")),
        ({"retention_hours": 1000}, 5, 0.86, (100, "disk nearly full")),
        ({"retention_hours": 1000, "disk_force_delete": False}, 5, 0.99, (0, "none")),
        ({"disk_force_delete": False}, 5, 0.99, (300, "expired")),
        ({"log_bytes_max": 150}, 5, 0.1, (300, "too large")),
        ({"log_bytes_max": 1000}, 5, 0.1, (0, "none")),
        ({"segments_deleted_max": 1}, 4, 0.1, (100, "expired")),
    ],
)
def test_deletable(changes: dict[str, float], hour: int, used: float, expected: tuple[int, str]) -> None:
    settings = small_settings(**changes)
    assert deletable(AGES, settings, now_ms=NOW_MS, hour=hour, used_ratio=used, keep_from=450) == expected


def test_segment_in_use_always_stays() -> None:
    settings = small_settings(retention_hours=0, log_bytes_max=0)
    assert deletable(AGES, settings, now_ms=NOW_MS, hour=4, used_ratio=0.99, keep_from=250)[0] == 200
    assert deletable([], settings, now_ms=NOW_MS, hour=4, used_ratio=0.99, keep_from=0) == (0, "none")


def test_retention_trims_log_queues_and_index_together() -> None:
    files = SimulatedFileSystem()
    clock = ManualClock()
    settings = small_settings(log_bytes_max=16384)
    store = open_store(files, settings, clock=clock)
    for number in range(120):
        store.append([new_record(b"%03d" % number + b"x" * 400, keys=f"k{number}", queue_id=number % 2)])
        commit(store)
    held = store.fetch("orders", 0, 0, limit=FetchLimit())
    view = store._log.segments[0].map
    assert store.enforce_retention().reason == "none"  # Not before a checkpoint has seen what will be needed.
    store.checkpoint()
    report = store.enforce_retention()
    assert report.reason == "too large"
    assert report.min_log_offset == store.min_log_offset > 0
    assert {path.parent.name for path in report.paths} >= {"commitlog", "0", "1", "index"}
    assert view[:4] == held.body[:4]  # A reader that holds a segment goes on reading it.
    first = store.min_offset("orders", 0)
    assert first > 0
    assert store.fetch("orders", 0, 0, limit=FetchLimit()).status is FetchStatus.OFFSET_TOO_SMALL
    found = [int(message.body[:3]) for message in decode_records(fetch_all(store))]
    assert found == list(range(first * 2, 120, 2))
    assert store.stored_at("orders", 0, first) > 0
    assert store.query("orders", "k0", limit=1, begin_ms=0, end_ms=1 << 60).records == []
    assert store.query("orders", "k119", limit=1, begin_ms=0, end_ms=1 << 60).records
    for stops_in_order in (True, False):
        if stops_in_order:
            store.close()
            assert check_store(ROOT, settings, files=files).violations == []
        else:
            files.kill()
        store = open_store(files, settings, clock=clock)
        assert store.min_offset("orders", 0) == first
        assert store.max_offset("orders", 0) == 60


def test_queue_that_is_all_gone_keeps_its_position() -> None:
    files = SimulatedFileSystem()
    settings = small_settings(log_bytes_max=8192)
    store = open_store(files, settings)
    store.append([new_record(b"old", topic="quiet") for _ in range(30)])
    for _ in range(60):
        store.append([new_record(b"x" * 900)])
    commit(store)
    store.checkpoint()
    store.enforce_retention()
    assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (30, 30)
    store.checkpoint()
    files.kill()
    store = open_store(files, settings)
    assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (30, 30)
    assert store.append([new_record(b"new", topic="quiet")])[0].queue_offset == 30
    commit(store)
    store.close()
    store = open_store(files, settings)
    assert [message.body for message in decode_records(fetch_all(store, "quiet"))] == [b"new"]
    store.close()
    assert check_store(ROOT, settings, files=files).violations == []


def test_queue_derived_from_a_trimmed_log_begins_where_the_log_does() -> None:
    """Its first file is filled with blank entries, as RocketMQ does."""
    files = SimulatedFileSystem()
    settings = small_settings(log_bytes_max=8192)
    store = open_store(files, settings)
    for number in range(75):
        store.append([new_record(b"%03d" % number + b"x" * 400)])
    commit(store)
    store.checkpoint()
    store.enforce_retention()
    first = store.min_offset("orders", 0)
    store.close()
    directory = ROOT / "consumequeue" / "orders" / "0"
    for name in files.list_directory(directory):
        files.unlink(directory / name)
    for _ in range(2):
        store = open_store(files, settings)
        assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (first, 75)
        found = [int(message.body[:3]) for message in decode_records(fetch_all(store))]
        assert found == list(range(first, 75))
        store.close()
        assert check_store(ROOT, settings, files=files).violations == []
    start = first * 20 // 400 * 400
    assert files.open(directory / f"{start:020d}").pread(20, 0) in (
        b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 8,
        files.open(directory / f"{start:020d}").pread(20, (first * 20) % 400),
    )


def test_full_disk_deletes_the_oldest_segment() -> None:
    files = SimulatedFileSystem()
    store = open_store(files, small_settings(retention_hours=1000))
    for _ in range(60):
        store.append([new_record(b"x" * 900)])
    commit(store)
    store.checkpoint()
    files.space_left = SPACE_BYTES // 8
    assert store.enforce_retention().reason == "disk nearly full"
    assert store.min_log_offset == 8192

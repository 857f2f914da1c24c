"""Opening what another broker, or nobody we know, left behind."""

import pytest

from kappamq.clock import ManualClock
from kappamq.errors import CorruptRecord
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.checkpoint import TimeCheckpoint, save_times
from kappamq.store.store import Store
from tests.faults.records import ROOT, commit, fetch_all, new_record, open_store, small_settings
from tests.faults.simulated_files import SimulatedFileSystem

SETTINGS = small_settings(segment_bytes=65536, append_crc=False)
SEGMENT = ROOT / "commitlog" / f"{0:020d}"


def foreign(files: SimulatedFileSystem, store: Store, *, log_ms: int, is_clean: bool) -> None:
    """Make the directory look as if RocketMQ had used it last."""
    store.close()
    for name in ("kappamq.checkpoint", "kappamq.flushed"):
        files.unlink(ROOT / name)
    save_times(files, ROOT, TimeCheckpoint(log_ms=log_ms, queues_ms=log_ms, index_ms=0))
    if not is_clean:
        files.open(ROOT / "abort", create=True)


def filled(files: SimulatedFileSystem, clock: ManualClock, count: int = 20) -> Store:
    store = open_store(files, SETTINGS, clock=clock)
    for number in range(count):
        store.append([new_record(b"%03d" % number, keys=f"k{number}", queue_id=number % 2)])
        clock.advance(ms=10_000)
    commit(store)
    return store


def numbers(store: Store) -> list[int]:
    return sorted(
        int(message.body) for queue_id in (0, 1) for message in decode_records(fetch_all(store, queue_id=queue_id))
    )


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_rebuilt", [True, False])
def test_store_of_another_broker(is_clean: bool, is_rebuilt: bool) -> None:
    files = SimulatedFileSystem()
    clock = ManualClock()
    foreign(files, filled(files, clock), log_ms=clock.now_ms(), is_clean=is_clean)
    if is_rebuilt:
        # What RocketMQ's documents advise for repair: no queues, no index, no checkpoint.
        for directory in ("consumequeue/orders/0", "consumequeue/orders/1", "index"):
            for name in files.list_directory(ROOT / directory):
                files.unlink(ROOT / directory / name)
        files.unlink(ROOT / "checkpoint")
    store = open_store(files, SETTINGS, clock=clock)
    assert (store.recovery.was_foreign, store.recovery.was_clean) == (True, is_clean)
    assert numbers(store) == list(range(20))
    for number in range(20):
        assert len(store.query("orders", f"k{number}", limit=9, begin_ms=0, end_ms=1 << 60).records) == 1
    store.append([new_record(b"020"), new_record(b"021", queue_id=1)])
    commit(store)
    store.close()
    assert [str(violation) for violation in check_store(ROOT, SETTINGS, files=files).violations] == []


@pytest.mark.parametrize(("flushed", "is_damage"), [("all", True), ("before", False)])
def test_hole_in_the_log_of_another_broker(flushed: str, is_damage: bool) -> None:
    """Valid records behind the hole count as lost data only if RocketMQ says that it had flushed them."""
    files = SimulatedFileSystem()
    clock = ManualClock()
    store = filled(files, clock)
    hole = store.entries("orders", 0, 5, 1)[0].log_offset
    hole_ms = store.stored_at("orders", 0, 5)
    foreign(files, store, log_ms=clock.now_ms() if flushed == "all" else hole_ms, is_clean=False)
    files.flip(SEGMENT, hole + 5)
    if is_damage:
        with pytest.raises(CorruptRecord) as caught:
            open_store(files, SETTINGS, clock=clock)
        assert caught.value.log_offset == hole
    else:
        store = open_store(files, SETTINGS, clock=clock)
        assert store.written == hole
        assert numbers(store) == list(range(10))
        assert store.recovery.discarded_bytes > 0


def test_stale_records_behind_the_end_are_not_taken_for_damage() -> None:
    """RocketMQ truncates without zeroing: what is older than the last good record is of an earlier life."""
    files = SimulatedFileSystem()
    clock = ManualClock()
    store = filled(files, clock)
    cut = store.entries("orders", 0, 5, 1)[0]
    segment = files.open(SEGMENT)
    record = next(decode_records(segment.pread(cut.size, cut.log_offset)))
    foreign(files, store, log_ms=clock.now_ms() + 1_000_000, is_clean=False)
    # A longer, younger record where the cut was; the bytes behind it are the rest of an old one, then old records.
    longer = new_record(b"010" + b" " * 30)
    data = longer.encode(
        queue_offset=5, log_offset=record.log_offset, stored_at_ms=clock.now_ms() + 500_000, append_crc=False
    )
    files.overwrite(SEGMENT, record.log_offset, data)
    store = open_store(files, SETTINGS, clock=clock)
    assert store.written == record.log_offset + len(data)
    assert numbers(store) == list(range(11))
    assert files.open(SEGMENT).next_data(store.written) is None


def test_records_with_names_that_are_no_topics_are_left_in_the_log() -> None:
    files = SimulatedFileSystem()
    clock = ManualClock()
    store = filled(files, clock)
    end = store.written
    foreign(files, store, log_ms=0, is_clean=False)
    wrong = new_record(b"999", topic="../../outside")
    files.overwrite(SEGMENT, end, wrong.encode(queue_offset=0, log_offset=end, stored_at_ms=1, append_crc=False))
    store = open_store(files, SETTINGS, clock=clock)
    assert store.recovery.skipped_topics == {"../../outside"}
    assert store.written > end
    assert not files.exists(ROOT.parent / "outside")
    assert numbers(store) == list(range(20))


def test_start_reads_only_what_the_checkpoint_does_not_cover() -> None:
    files = SimulatedFileSystem()
    clock = ManualClock()
    store = filled(files, clock)
    store.checkpoint()
    store.append([new_record(b"020")])
    commit(store)
    files.kill()
    store = open_store(files, SETTINGS, clock=clock)
    assert (store.recovery.records_rescanned, store.recovery.rebuilt_queues) == (1, [])
    store.close()
    store = open_store(files, SETTINGS, clock=clock)
    assert (store.recovery.records_rescanned, store.recovery.was_clean) == (0, True)

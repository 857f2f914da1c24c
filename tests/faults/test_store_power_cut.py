"""Recovery on a disk that forgets: named cases beside the random ones of the state machine."""

from random import Random

import pytest

from kappamq.errors import CorruptRecord, StorageError
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.store import FetchLimit
from tests.faults.records import ROOT, commit, fetch_all, new_record, open_store, small_settings
from tests.faults.simulated_files import Killed, SimulatedFileSystem

SEGMENT = ROOT / "commitlog" / f"{0:020d}"


def bodies_of(data: bytes) -> list[bytes]:
    return [message.body for message in decode_records(data)]


@pytest.mark.parametrize("seed", range(40))
def test_acknowledged_records_survive_a_power_cut(seed: int) -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    for number in range(20):
        store.append([new_record(b"acknowledged %d" % number)])
    commit(store)
    store.append([new_record(b"lost %d" % number) for number in range(10)])
    files.power_cut(Random(seed))
    recovered = open_store(files)
    found = bodies_of(fetch_all(recovered))
    assert found[:20] == [b"acknowledged %d" % number for number in range(20)]
    assert found[20:] == [b"lost %d" % number for number in range(len(found) - 20)]
    recovered.close()
    assert check_store(ROOT, small_settings(), files=files).violations == []


@pytest.mark.parametrize("seed", range(40))
def test_torn_tail_never_comes_back(seed: int) -> None:
    """A hole before valid, never acknowledged records: after cutting it, a second crash must not revive those."""
    files = SimulatedFileSystem()
    settings = small_settings(segment_bytes=65536)
    store = open_store(files, settings)
    store.append([new_record(b"first")])
    commit(store)
    end = store.written
    # Four records of 2,048 bytes each: the power cut may keep any of their sectors.
    size = 2048 - store.append([new_record(b"")])[0].size
    files.kill()
    store = open_store(files, settings)
    store.append([new_record(bytes([65 + number]) * size) for number in range(4)])
    files.power_cut(Random(seed))
    store = open_store(files, settings)
    kept = store.max_offset("orders", 0)
    store.append([new_record(b"Z" * size)])
    files.kill()
    store = open_store(files, settings)
    found = bodies_of(fetch_all(store))
    assert found[0] == b"first"
    assert len(found) == kept + 1
    assert found[-1] == b"Z" * size
    assert end > 0


@pytest.mark.parametrize("seed", range(20))
def test_record_with_lost_properties_is_not_served(seed: int) -> None:
    """The body may be whole while the properties behind it are not: the appended checksum tells."""
    files = SimulatedFileSystem()
    store = open_store(files)
    commit(store)
    store.append([new_record(b"b" * 400, keys="k" * 600, unique_id="u" * 600)])
    files.power_cut(Random(seed))
    store = open_store(files)
    for message in decode_records(fetch_all(store)):
        assert message.keys == ("k" * 600,)


def test_consumers_never_saw_what_a_power_cut_takes() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"not flushed")])
    assert store.publish() == []
    assert store.fetch("orders", 0, 0, limit=FetchLimit()).count == 0


def test_damage_below_the_flushed_end_refuses_to_start() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    places = store.append([new_record(b"number %d" % number) for number in range(10)])
    commit(store)
    files.kill()
    files.flip(SEGMENT, places[4].log_offset + 90)
    with pytest.raises(CorruptRecord, match=f"damaged at offset {places[4].log_offset}.*kappamq store check") as caught:
        open_store(files)
    assert caught.value.log_offset == places[4].log_offset
    before = files.open(SEGMENT).pread(8192, 0)
    with pytest.raises(CorruptRecord):
        open_store(files)
    assert files.open(SEGMENT).pread(8192, 0) == before


def test_damage_of_the_very_last_acknowledged_record_is_noticed() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    places = store.append([new_record(b"number %d" % number) for number in range(3)])
    commit(store)
    files.kill()
    files.flip(SEGMENT, places[2].end - 1)
    with pytest.raises(CorruptRecord) as caught:
        open_store(files)
    assert caught.value.log_offset == places[2].log_offset


def test_damage_can_be_given_up_on_request() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    places = store.append([new_record(b"number %d" % number, keys=f"k{number}") for number in range(10)])
    commit(store)
    store.close()
    files.flip(SEGMENT, places[4].log_offset + 90)
    settings = small_settings(on_damage="truncate", verify_bytes=1 << 20)
    store = open_store(files, settings)
    assert f"offset {places[4].log_offset}" in store.recovery.damage
    assert bodies_of(fetch_all(store)) == [b"number %d" % number for number in range(4)]
    assert store.append([new_record(b"new")])[0].queue_offset == 4
    commit(store)
    store.close()
    assert check_store(ROOT, settings, files=files).violations == []


def test_damage_in_a_cleanly_stopped_store_is_found_when_it_is_read() -> None:
    """Only the tail is verified at start; older records are verified when they are asked for."""
    files = SimulatedFileSystem()
    store = open_store(files)
    places = store.append([new_record(b"number %d" % number) for number in range(10)])
    commit(store)
    store.close()
    files.flip(SEGMENT, places[4].log_offset + 90)
    store = open_store(files, small_settings(verify_bytes=0))
    good = store.fetch("orders", 0, 0, limit=FetchLimit())
    assert (good.count, good.next_offset) == (4, 4)
    with pytest.raises(CorruptRecord, match=str(places[4].log_offset)):
        store.fetch("orders", 0, 4, limit=FetchLimit())
    assert store.fetch("orders", 0, 5, limit=FetchLimit()).count == 5
    with pytest.raises(CorruptRecord):
        store.read(places[4].log_offset)


def test_missing_commit_log_is_noticed() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record()])
    commit(store)
    store.close()
    files.unlink(SEGMENT)
    with pytest.raises(CorruptRecord, match="acknowledged"):
        open_store(files)


def test_failed_sync_stops_the_store_for_good() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"good")])
    commit(store)
    store.append([new_record(b"doubtful")])

    def fail(action: str, _path: object) -> None:
        if action == "sync":
            raise OSError(5, "Input/output error")

    files.on_step = fail
    with pytest.raises(StorageError, match="Input/output error"):
        store.flush()
    files.on_step = None
    with pytest.raises(StorageError, match="takes no more writes"):
        store.flush()
    with pytest.raises(StorageError, match="takes no more writes"):
        store.append([new_record(b"refused")])
    assert store.publish() == []
    assert bodies_of(fetch_all(store)) == [b"good"]
    store.close()
    assert files.exists(ROOT / "abort")


@pytest.mark.parametrize("step", range(1, 45))
def test_crash_at_every_step_of_a_clean_stop(step: int) -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%d" % number, queue_id=number % 3, keys=f"k{number}") for number in range(40)])
    commit(store)
    left = step

    def count_down(_action: str, _path: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    files.on_step = count_down
    try:
        store.close()
    except Killed:
        pass
    files.power_cut(Random(step))
    store = open_store(files)
    assert sum(store.max_offset("orders", queue_id) for queue_id in range(3)) == 40
    store.close()
    assert check_store(ROOT, small_settings(), files=files).violations == []

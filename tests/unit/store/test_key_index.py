"""Hash files of keys."""

from pathlib import Path

import pytest

from kappamq.clock import ManualClock
from kappamq.errors import StorageError
from kappamq.kernel import java_hash
from kappamq.store.dispatch import Arrival
from kappamq.store.key_index import SPARE_NAME, IndexFile, KeyIndex, key_hash
from tests.faults.simulated_files import SPACE_BYTES, SimulatedFileSystem

DIRECTORY = Path("/index")
FOREVER = {"begin_ms": 0, "end_ms": 1 << 60}


def index(files: SimulatedFileSystem, *, slots: int = 7, entries: int = 10) -> KeyIndex:
    return KeyIndex(files, DIRECTORY, slots=slots, entries=entries, clock=ManualClock())


def arrival(log_offset: int, *keys: str, stored_at_ms: int = 1_000_000) -> Arrival:
    return Arrival("t", 0, 0, 0, stored_at_ms, "", log_offset, 100, keys, True)


def test_hash_is_never_negative() -> None:
    assert key_hash(java_hash("TopicTest#"), "ORDER-1001") == 1559435041
    # "polygenelubricants" hashes to the one value whose absolute value does not fit.
    assert java_hash("polygenelubricants") == -(2**31)
    assert key_hash(0, "polygenelubricants") == 0


def test_keys_are_found_over_several_files_newest_first() -> None:
    files = SimulatedFileSystem()
    keys = index(files)
    for number in range(20):
        assert keys.put([arrival(number * 100, f"k{number}", "all")])
    assert len(keys.files) == 5
    assert [file.name for file in keys.files] == sorted(file.name for file in keys.files)
    assert keys.find("t", "k7", limit=9, **FOREVER) == [700]
    assert keys.find("t", "all", limit=3, **FOREVER) == [1900, 1800, 1700]
    assert keys.find("u", "all", limit=3, **FOREVER) == []
    assert keys.files[1].begin_log == 400
    again = index(files)
    assert again.load() == []
    assert again.find("t", "k7", limit=9, **FOREVER) == [700]


def test_time_window() -> None:
    keys = index(SimulatedFileSystem(), entries=100)
    for number in range(10):
        keys.put([arrival(number, "k", stored_at_ms=1_000_000 + number * 1500)])
    found = keys.find("t", "k", limit=99, begin_ms=1_003_000, end_ms=1_006_000)
    assert set(found) >= {2, 3, 4}
    assert not set(found) & {0, 6, 7, 8, 9}
    assert keys.find("t", "k", limit=99, begin_ms=2_000_000, end_ms=3_000_000) == []


def test_clock_that_goes_back_gives_no_negative_seconds() -> None:
    keys = index(SimulatedFileSystem())
    keys.put([arrival(0, "a"), arrival(1, "b", stored_at_ms=5)])
    assert keys.files[0].entry(2)[2] == 0


def test_roll_back_derives_the_slots_again() -> None:
    files = SimulatedFileSystem()
    keys = index(files, entries=100)
    for number in range(30):
        keys.put([arrival(number * 10, f"k{number}")])
    file = keys.files[0]
    assert file.entries_below(150, file.count) == 16
    file.map[40 : 40 + 7 * 4] = b"\xff" * 28
    file.roll_back(16, end_ms=1_000_000)
    assert (file.count, file.end_log) == (16, 140)
    assert file.slots_used == 7
    for number in range(15):
        assert keys.find("t", f"k{number}", limit=9, **FOREVER) == [number * 10]
    assert keys.find("t", "k15", limit=9, **FOREVER) == []
    assert file.is_ordered(16, log_end=1000)
    assert not file.is_ordered(16, log_end=100)
    keys.put([arrival(150, "k15")])
    assert keys.find("t", "k15", limit=9, **FOREVER) == [150]


def test_chain_that_makes_no_sense_ends_the_search() -> None:
    keys = index(SimulatedFileSystem(), slots=1, entries=100)
    for number in range(5):
        keys.put([arrival(number, "k")])
    file = keys.files[0]
    at = 40 + 4 + 20 * 3 + 16
    file.map[at : at + 4] = (3).to_bytes(4, "big")
    assert keys.find("t", "k", limit=9, **FOREVER) == [4, 3, 2]
    file.map[at : at + 4] = (99).to_bytes(4, "big")
    assert keys.find("t", "k", limit=9, **FOREVER) == [4, 3, 2]


def test_wrong_files() -> None:
    files = SimulatedFileSystem()
    keys = index(files)
    keys.put([arrival(0, "k")])
    files.open(keys.files[0].path).resize(50)
    with pytest.raises(StorageError, match="rebuilt from the log"):
        IndexFile.open(files, keys.files[0].path, slots=7, entries=10)
    assert index(files).load() == [keys.files[0].name]
    files.open(DIRECTORY / "notes.txt", create=True)
    with pytest.raises(StorageError, match="not an index file"):
        index(files).load()


def test_the_next_file_is_made_ahead_of_need() -> None:
    files = SimulatedFileSystem()
    keys = index(files, slots=3, entries=21)
    assert keys.needs_spare, "the first one, too"
    keys.prepare_spare()
    assert files.list_directory(DIRECTORY.parent) == [SPARE_NAME]
    assert not keys.needs_spare
    steps: list[str] = []
    files.on_step = lambda action, _path: steps.append(action)
    keys.put([arrival(number * 100, f"k{number}") for number in range(5)])
    assert "resize" not in steps, "it is there already"
    files.on_step = None
    assert files.list_directory(DIRECTORY.parent) == ["index"]
    keys.put([arrival(number * 100, f"k{number}") for number in range(5, 18)])
    assert not keys.needs_spare
    keys.put([arrival(1800, "k18")])
    assert keys.needs_spare
    keys.prepare_spare()
    keys.put([arrival(number * 100, f"k{number}") for number in range(19, 30)])
    assert len(keys.files) == len(files.list_directory(DIRECTORY)) == 2
    found = [keys.find("t", f"k{number}", limit=9, **FOREVER) for number in range(30)]
    assert found == [[number * 100] for number in range(30)]
    keys.prepare_spare()
    keys.close()
    assert files.list_directory(DIRECTORY.parent) == ["index"], "a file that nobody needed is gone"


def test_a_spare_file_that_a_crash_left_is_removed() -> None:
    files = SimulatedFileSystem()
    keys = index(files, slots=3, entries=21)
    keys.prepare_spare()
    again = index(files, slots=3, entries=21)
    again.load()
    assert files.list_directory(DIRECTORY.parent) == []


def test_without_space_ahead_it_is_made_on_demand() -> None:
    files = SimulatedFileSystem()
    keys = index(files, slots=3, entries=21)
    files.space_left = 0
    with pytest.raises(OSError, match="space"):
        keys.prepare_spare()
    assert not keys.needs_spare
    files.space_left = SPACE_BYTES
    assert keys.put([arrival(100, "k1")])
    assert keys.find("t", "k1", limit=9, **FOREVER) == [100]

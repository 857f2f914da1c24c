"""Index files as a broker writes them."""

from pathlib import Path

import pytest

from kappamq.spark.index_files import (
    HEADER,
    IndexFileView,
    Key,
    choose_names,
    file_bytes,
    index_paths,
    names_by_start,
    write_index_file,
)
from kappamq.spark.log_records import scan_segment, segment_paths
from tests.unit.spark.broker_store import ENTRIES, SLOTS, write_store


def keys_of(root: Path) -> list[Key]:
    return [
        (hashed, row.log_offset, row.stored_at_ms or 0)
        for path in segment_paths(root)
        for row in scan_segment(path)
        for hashed in row.hashes
    ]


def test_files_are_the_broker_s_byte_for_byte(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    made = index_paths(tmp_path / "store")
    keys = keys_of(tmp_path / "store")
    assert len(made) == -(-len(keys) // (ENTRIES - 1)) > 3
    starts = [(log_offset, at_ms) for _hash, log_offset, at_ms in keys[:: ENTRIES - 1]]
    assert choose_names(starts, names_by_start(tmp_path / "store")) == [path.name for path in made]
    for number, path in enumerate(made):
        some = keys[number * (ENTRIES - 1) : (number + 1) * (ENTRIES - 1)]
        again = tmp_path / path.name
        assert write_index_file(again, some, slots=SLOTS, entries=ENTRIES) == len(some)
        assert again.read_bytes() == path.read_bytes()


def test_names_that_no_file_tells() -> None:
    first, second, third, fourth = choose_names(
        [(0, 1_700_000_000_123), (9, 1_700_000_000_123), (12, 5), (40, 5)], {40: "9" * 17}
    )
    assert first[-3:] == "123"
    assert int(second) == int(first) + 1
    assert int(third) == int(second) + 1
    assert fourth == "9" * 17


def test_chains(tmp_path: Path) -> None:
    path = tmp_path / "index"
    write_index_file(path, [(hashed, hashed * 10, 1000) for hashed in (3, 20, 4, 37)], slots=SLOTS, entries=ENTRIES)

    def faults() -> list[tuple[int, str]]:
        return list(IndexFileView(path, slots=SLOTS, entries=ENTRIES).chain_faults())

    assert faults() == []
    sound = path.read_bytes()
    data = bytearray(sound)
    data[HEADER.size + 3 * 4 + 3] = 2
    path.write_bytes(data)
    assert faults() == [(30, "slots do not point to the newest entries")]
    data = bytearray(sound)
    data[HEADER.size + SLOTS * 4 + 20 * 4 + 19] = 1
    path.write_bytes(data)
    assert faults() == [(370, "entry 4 continues with 1 instead of 2")]
    path.write_bytes(sound[:-1])
    with pytest.raises(ValueError, match=f"not {file_bytes(SLOTS, ENTRIES)}"):
        IndexFileView(path, slots=SLOTS, entries=ENTRIES)

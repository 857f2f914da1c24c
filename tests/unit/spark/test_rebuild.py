from pathlib import Path
from struct import Struct

import pytest

from kappamq.errors import CorruptRecord
from kappamq.spark.jobs.rebuild import scan_segment, write_queues
from tests.unit.spark.store_builder import StoreBuilder

ENTRY = Struct(">qiq")


def test_queues_of_a_log_that_lost_its_beginning(tmp_path: Path) -> None:
    write_queues([("t", 3, offset, offset * 100, 50, 7) for offset in range(5, 13)], tmp_path, file_bytes=80)
    files = sorted((tmp_path / "consumequeue" / "t" / "3").iterdir())
    assert [path.name for path in files] == [f"{first * 20:020d}" for first in (4, 8, 12)]
    assert all(path.stat().st_size == 80 for path in files)
    assert ENTRY.unpack_from(files[0].read_bytes()) == (0, 0x7FFFFFFF, 0)
    assert ENTRY.unpack_from(files[0].read_bytes(), 20) == (500, 50, 7)
    assert files[2].read_bytes()[20:] == bytes(60)


def test_a_gap_is_loud(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecord, match="lacks offset 1"):
        write_queues([("t", 0, 0, 0, 50, 0), ("t", 0, 2, 100, 50, 0)], tmp_path)


def test_system_topics_are_left_out_and_positions_checked(tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store")
    builder.append("orders", 0, b"one", tags="t")
    builder.append("SCHEDULE_TOPIC_XXXX", 0, b"later")
    segment = builder.write() / "commitlog" / f"{0:020d}"
    assert [entry[:3] for entry in scan_segment(segment)] == [("orders", 0, 0)]
    moved = segment.rename(segment.with_name(f"{4096:020d}"))
    with pytest.raises(CorruptRecord, match="says it belongs to 0"):
        list(scan_segment(moved))

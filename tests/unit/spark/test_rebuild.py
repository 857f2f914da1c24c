from pathlib import Path
from struct import Struct

import pytest

from kappamq.errors import CorruptRecord
from kappamq.spark.jobs.rebuild import queue_file_bytes, write_queues
from kappamq.spark.log_records import scan_segment, segment_paths
from tests.unit.spark.broker_store import write_store

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


def test_queues_are_the_broker_s_byte_for_byte(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_store(root)
    rows = [row for path in segment_paths(root) for row in scan_segment(path) if row.damage is None]
    entries = [
        (row.topic, row.queue_id, row.queue_offset, row.log_offset, row.size, row.tags_code)
        for row in sorted(rows, key=lambda row: (row.topic, row.queue_id, row.queue_offset, -row.log_offset))
    ]
    write_queues(entries, tmp_path, file_bytes=queue_file_bytes(root))
    made = sorted(path.relative_to(root) for path in root.glob("consumequeue/*/*/*"))
    assert {path.parts[1] for path in made} == {"odd", "orders", "payments", "short", "SCHEDULE_TOPIC_XXXX"}
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.glob("consumequeue/*/*/*")) == made
    assert [path for path in made if (tmp_path / path).read_bytes() != (root / path).read_bytes()] == []

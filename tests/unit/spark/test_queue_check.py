"""Consume queues compared with the log, without Spark."""

from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest

from kappamq.spark.log_records import scan_segment, segment_paths
from kappamq.spark.queue_check import FINDINGS_PER_QUEUE_MAX, Extent, Finding, check_queues
from kappamq.spark.store_marks import EVER
from kappamq.store.check import check_store
from tests.unit.spark.broker_store import (
    DAMAGE,
    Found,
    flip_body,
    missing_entry,
    missing_queue,
    settings,
    surplus_entry,
    write_store,
    wrong_entry,
)

Entry = tuple[str, int, int, int, int, int]
UNIT = Struct(">qiq")
ALL = Extent(log_start=0, complete_to=EVER, is_clean=True)


def entries_of(root: Path) -> list[Entry]:
    rows = [row for path in segment_paths(root) for row in scan_segment(path) if row.damage is None]
    rows.sort(key=lambda row: (row.topic, row.queue_id, row.queue_offset, -row.log_offset))
    return [(row[3], row[4], row[5], row[1], row[2], row[6]) for row in rows]  # type: ignore[misc]


def check(root: Path, extent: Extent = ALL) -> list[Finding]:
    return list(check_queues(entries_of(root), root, extent))


@pytest.mark.parametrize("damage", [wrong_entry, missing_entry, surplus_entry, missing_queue])
def test_damage(tmp_path: Path, damage: Callable[[Path], Found]) -> None:
    write_store(tmp_path)
    assert check(tmp_path) == []
    wanted = damage(tmp_path)
    assert {(each.kind, each.offset) for each in check(tmp_path)} == wanted
    behind = Extent(log_start=0, complete_to=min(offset for _kind, offset in wanted), is_clean=False)
    assert check(tmp_path, behind) == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_check_in_one_process_says_the_same_of_all_damage(tmp_path: Path, damage: Callable[[Path], Found]) -> None:
    write_store(tmp_path)
    assert check_store(tmp_path, settings()).is_sound
    wanted = damage(tmp_path)
    kinds = {"commitlog": "log", "consumequeue": "queue", "index": "index"}
    violations = check_store(tmp_path, settings()).violations
    found = {(kinds[each.where.split("/")[0]], each.log_offset) for each in violations}
    if damage is flip_body:  # It also reports what points at the damaged record.
        assert wanted < found
    else:
        assert wanted == found


def test_a_deleted_topic_leaves_only_records(tmp_path: Path) -> None:
    write_store(tmp_path)
    missing_queue(tmp_path)
    assert check(tmp_path, Extent(log_start=0, complete_to=EVER, is_clean=True, queues=frozenset())) == []


def test_what_points_at_a_damaged_record_is_right(tmp_path: Path) -> None:
    write_store(tmp_path)
    ((_kind, at),) = flip_body(tmp_path)
    assert {each.kind for each in check(tmp_path)} == {"log", "queue"}
    assert check(tmp_path, Extent(log_start=0, complete_to=EVER, is_clean=True, damage=((at, at + 1),))) == []


def test_a_lost_file_is_not_a_finding_for_each_entry(tmp_path: Path) -> None:
    directory = tmp_path / "consumequeue" / "t" / "0"
    directory.mkdir(parents=True)
    entries: list[Entry] = [("t", 0, offset, offset * 100, 100, 0) for offset in range(200)]
    data = b"".join(UNIT.pack(*entry[3:]) for entry in entries)
    (directory / f"{0:020d}").write_bytes(data[:2000])
    found = list(check_queues(entries, tmp_path, ALL))
    assert len(found) == FINDINGS_PER_QUEUE_MAX
    assert found[0] == Finding(
        "queue", "consumequeue/t/0", 10_000, "entry 100 is missing, the log says (10000, 100, 0)"
    )


def test_records_that_expired(tmp_path: Path) -> None:
    directory = tmp_path / "consumequeue" / "t" / "0"
    directory.mkdir(parents=True)
    entries: list[Entry] = [("t", 0, offset, offset * 100, 100, 0) for offset in range(10)]
    (directory / f"{0:020d}").write_bytes(b"".join(UNIT.pack(*entry[3:]) for entry in entries))
    left = Extent(log_start=500, complete_to=EVER, is_clean=True)
    assert list(check_queues(entries[5:], tmp_path, left)) == []
    (finding,) = check_queues(entries[6:], tmp_path, left)
    assert (finding.offset, finding.words) == (500, "entry 5 is (500, 100, 0), but the log has no such record")

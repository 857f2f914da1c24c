"""Records of a log imply what a broker derives from them."""

from pathlib import Path

import pytest

from kappamq.errors import UsageError
from kappamq.model.properties import java_hash
from kappamq.spark import log_records
from kappamq.spark.log_records import Break, Row, judge_breaks, parse_delay_levels, scan_segment, segment_paths
from kappamq.spark.store_marks import EVER
from kappamq.store import settings as store_settings
from kappamq.store.dispatch import Arrival, derive
from kappamq.store.key_index import key_hash
from kappamq.store.log_scan import read_facts, valid_records
from tests.unit.spark.broker_store import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    write_store(root)
    return root


def arrivals(path: Path) -> list[Arrival]:
    data, start = path.read_bytes(), int(path.name)
    levels = store_settings.DELAY_LEVELS_MS
    return [
        derive(read_facts(data, at), start + at, size, levels)
        for at, size in valid_records(data, 0, len(data), log_start=start)
    ]


def rows_of(path: Path) -> list[Row]:
    return [row for row in scan_segment(path) if row.damage is None]


def test_records_imply_what_the_broker_derives(store: Path) -> None:
    paths = segment_paths(store)
    assert len(paths) > 2
    for path in paths:
        wanted = arrivals(path)
        rows = rows_of(path)
        assert [row[1:8] for row in rows] == [
            (
                each.log_offset,
                each.size,
                each.topic,
                each.queue_id,
                each.queue_offset,
                each.tags_code,
                each.stored_at_ms,
            )
            for each in wanted
        ]
        hashes = [[key_hash(java_hash(each.topic + "#"), key) for key in each.keys] for each in wanted]
        assert [row.hashes for row in rows] == hashes
        assert [row.keys_before for row in rows] == [sum(map(len, hashes[:at])) for at in range(len(rows))]


def test_delay_levels_are_the_broker_s() -> None:
    assert log_records.DELAY_LEVELS_MS == store_settings.DELAY_LEVELS_MS
    assert parse_delay_levels("1s 2m 1h") == (1000, 120_000, 3_600_000)
    for text in ("", "5", "xs"):
        with pytest.raises(UsageError, match="for example"):
            parse_delay_levels(text)


def test_a_damaged_record_is_passed_over(store: Path, tmp_path: Path) -> None:
    source = segment_paths(store)[1]
    before = rows_of(source)
    data = bytearray(source.read_bytes())
    data[before[2].log_offset - int(source.name) + 100] ^= 1
    path = tmp_path / source.name
    path.write_bytes(data)
    rows = list(scan_segment(path))
    (damage,) = [row for row in rows if row.damage]
    assert (damage.log_offset, damage.following) == (before[2].log_offset, before[3].log_offset)
    assert "fails its checksum" in str(damage.damage)
    assert len(rows) == len(before)


def test_a_record_without_its_checksum(store: Path) -> None:
    from tests.unit.spark.store_builder import StoreBuilder

    builder = StoreBuilder(store.with_name("foreign"))
    builder.append("orders", 0, b"one")
    (path,) = segment_paths(builder.write())
    assert next(scan_segment(path)).topic == "orders"
    assert "lacks its checksum" in str(next(scan_segment(path, crc_from=0)).damage)


@pytest.mark.parametrize(
    ("flushed", "is_clean", "end", "damaged"),
    [(0, True, 300, [100]), (0, False, 100, []), (200, False, 300, [100]), (400, True, 300, [100, 300])],
)
def test_end_and_damage(flushed: int, is_clean: bool, end: int, damaged: list[int]) -> None:
    breaks = [Break(300, "zeros", None), Break(100, "torn", 150)]
    found, damage = judge_breaks(breaks, last_record=250, flushed=flushed, is_clean=is_clean)
    assert (found, [each.log_offset for each in damage]) == (end, damaged)
    assert judge_breaks([], last_record=250, flushed=0, is_clean=True) == (EVER, [])

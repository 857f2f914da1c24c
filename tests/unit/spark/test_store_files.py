from pathlib import Path

import pytest

from kappamq.errors import UsageError
from kappamq.spark.planning import Bounds
from kappamq.spark.store_files import StoreFiles
from tests.unit.spark.store_builder import StoreBuilder


@pytest.fixture
def builder(tmp_path: Path) -> StoreBuilder:
    made = StoreBuilder(tmp_path / "store", segment_bytes=1024)
    for number in range(30):
        made.append("orders", number % 2, b"m%d" % number)
    return made


def test_bounds_end_at_the_flush_mark(builder: StoreBuilder) -> None:
    builder.append("orders", 0, b"unsafe", hidden=True)
    store = StoreFiles(builder.write())
    assert store.queue("orders", 0).bounds() == Bounds(0, 15)
    assert store.queue("orders", 1).bounds() == Bounds(0, 15)


def test_bounds_end_at_the_checkpoint_s_time_where_it_proves_more(builder: StoreBuilder) -> None:
    builder.flushed = 0
    store = StoreFiles(builder.write(checkpoint_ms=1_700_000_000_000 + 20_000))
    assert store.queue("orders", 0).bounds() == Bounds(0, 11)
    assert store.queue("orders", 1).bounds() == Bounds(0, 10)


def test_nothing_proven_nothing_shown(builder: StoreBuilder) -> None:
    builder.flushed = 0
    assert StoreFiles(builder.write()).queue("orders", 0).bounds() == Bounds(0, 0)


def test_a_copy_without_checkpoint_shows_everything(builder: StoreBuilder) -> None:
    assert StoreFiles(builder.write(checkpoint_ms=None)).queue("orders", 0).bounds() == Bounds(0, 15)


def test_a_damaged_flush_mark_proves_nothing(builder: StoreBuilder) -> None:
    root = builder.write()
    (root / "kappamq.flushed").write_bytes(b"x" * 20)
    assert StoreFiles(root).queue("orders", 0).bounds() == Bounds(0, 0)


def test_expired_segments_move_the_start(builder: StoreBuilder) -> None:
    root = builder.write()
    (root / "commitlog" / f"{0:020d}").unlink()
    start = StoreFiles(root).queue("orders", 0).bounds().start
    assert 0 < start < 15
    assert StoreFiles(root).queue("none", 0).bounds() == Bounds(0, 0)


def test_offset_of_a_time(builder: StoreBuilder) -> None:
    queue = StoreFiles(builder.write()).queue("orders", 0)
    base = 1_700_000_000_000
    assert queue.offset_at(base) == 0
    assert queue.offset_at(base + 1) == 1
    assert queue.offset_at(base + 18_000) == 9
    assert queue.offset_at(base + 99_000) == 15


def test_what_is_there(builder: StoreBuilder) -> None:
    builder.append("other", 7, b"x")
    store = StoreFiles(builder.write())
    assert store.topics() == ["orders", "other"]
    assert store.queue_ids("orders") == [0, 1]
    assert store.queue_ids("none") == []


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="storePathRootDir"):
        StoreFiles(tmp_path)

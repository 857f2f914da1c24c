from pathlib import Path
from typing import Any

import pytest

from kappamq.errors import CorruptRecord, TopicNotFound, UsageError
from kappamq.spark.columns import COLUMNS
from kappamq.spark.log_files import plan_store, read_slice
from kappamq.spark.options import parse_read_options
from kappamq.spark.planning import DataLost
from kappamq.spark.pushdown import Narrowing
from tests.unit.spark.store_builder import StoreBuilder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    builder = StoreBuilder(tmp_path / "broker-a")
    for number in range(60):
        builder.append("orders", number % 3, b"m%d" % number, tags=f"t{number % 2}")
        builder.append("noise", 0, b"n%d" % number)
    return builder.write()


def rows(root: Path, narrowing: Narrowing | None = None, **more: str) -> list[dict[str, Any]]:
    given = {"mode": "files", "storePath": str(root)} | more
    if not {"subscribePattern", "assign"} & given.keys():
        given.setdefault("subscribe", "orders")
    options = parse_read_options(given, is_stream=False)
    found: list[dict[str, Any]] = []
    for partition in plan_store(options, narrowing or Narrowing()):
        for batch in read_slice(partition, COLUMNS, options):
            found += batch.to_pylist()
    return found


def test_everything_in_the_order_of_the_log(root: Path) -> None:
    found = rows(root)
    assert [row["body"] for row in found] == [b"m%d" % number for number in range(60)]
    assert {row["broker"] for row in found} == {"broker-a"}
    assert [row["queueOffset"] for row in found] == [number // 3 for number in range(60)]


@pytest.mark.parametrize("pieces", [2, 7, 50])
def test_tasks_share_without_overlap(root: Path, pieces: int) -> None:
    assert [row["body"] for row in rows(root, minPartitions=str(pieces))] == [b"m%d" % n for n in range(60)]


def test_tasks_know_the_full_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    given = {"mode": "files", "subscribe": "orders", "storePath": root.name}
    (partition,) = plan_store(parse_read_options(given, is_stream=False), Narrowing())
    assert partition.root == root


def test_filters(root: Path) -> None:
    assert [row["body"] for row in rows(root, tagExpression="t1")] == [b"m%d" % n for n in range(1, 60, 2)]
    assert [row["body"] for row in rows(root, sqlFilter="KEYS = 'm7'")] == [b"m7"]


def test_offsets_times_and_assignment(root: Path) -> None:
    offsets = '{"orders":{"broker-a":{"0":18,"1":-2,"2":-1}}}'
    assert len(rows(root, startingOffsets=offsets)) == 22
    assert len(rows(root, startingTimestamp=str(1_700_000_000_000 + 100_000))) == 10
    assert len(rows(root, endingTimestamp=str(1_700_000_000_000 + 100_000))) == 50
    assert len(rows(root, assign='{"orders":{"broker-a":[1]}}')) == 20
    assert len(rows(root, subscribePattern="o.*|n.*")) == 120
    narrowing = Narrowing(queue_ids=frozenset({2}), offset_from=5, offset_to=8)
    assert [row["queueOffset"] for row in rows(root, narrowing)] == [5, 6, 7]


def test_mistakes(root: Path) -> None:
    with pytest.raises(TopicNotFound, match="no queue of 'none'"):
        rows(root, subscribe="none")
    with pytest.raises(UsageError, match="needs a running broker"):
        rows(root, startingOffsets="group:g")
    for option in ("startingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        given: dict[str, Any] = {option: '{"orders":{"broker-a":{"0":1}}}'}
        with pytest.raises(UsageError, match="is given for orders/broker-a/1, orders/broker-a/2: name every queue"):
            rows(root, **given)
    with pytest.raises(UsageError, match="earlier time"):
        rows(root, startingTimestamp="9999999999999")
    with pytest.raises(UsageError, match="use minPartitions"):
        rows(root, maxRecordsPerPartition="5")


def test_expired_messages_are_loud(root: Path) -> None:
    options = parse_read_options({"mode": "files", "storePath": str(root), "subscribe": "orders"}, is_stream=False)
    planned = list(plan_store(options, Narrowing()))
    (root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLost, match="may have expired"):
        list(read_slice(planned[0], COLUMNS, options))
    start = '{"orders":{"broker-a":{"0":0,"1":0,"2":0}}}'
    with pytest.raises(DataLost, match="lost offsets 0 to"):
        rows(root, startingOffsets=start)
    kept = rows(root, startingOffsets=start, failOnDataLoss="false")
    assert 0 < len(kept) < 60
    assert kept[-1]["body"] == b"m59"


def test_a_queue_that_disagrees_with_the_log_is_loud(root: Path) -> None:
    queue = root / "consumequeue" / "orders" / "1" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[20:40], data[40:60] = data[40:60], data[20:40]
    queue.write_bytes(data)
    with pytest.raises(CorruptRecord, match="start the broker once"):
        rows(root)


def test_a_batch_is_bounded_by_the_bytes_of_its_records_not_by_how_far_they_lie_apart(tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store", segment_bytes=16 * 1024 * 1024)
    for number in range(400):
        builder.append("large", 0, f"{number:016000d}".encode())
        builder.append("small", 0, f"{number}".encode())
    root = builder.write(entries_per_file=400)
    batches: dict[str, list[int]] = {}
    for topic in ("large", "small"):
        options = parse_read_options({"mode": "files", "storePath": str(root), "subscribe": topic}, is_stream=False)
        planned = plan_store(options, Narrowing())
        read = [batch for partition in planned for batch in read_slice(partition, COLUMNS, options)]
        offsets = [offset for batch in read for offset in batch["queueOffset"].to_pylist()]
        assert offsets == list(range(400))
        batches[topic] = [batch.num_rows for batch in read]
    assert len(batches["large"]) > 1
    assert batches["small"] == [400]

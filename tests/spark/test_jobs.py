"""The pipeline jobs, on small data."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kappamq.errors import UsageError
from kappamq.spark.cli import pipeline_app
from kappamq.spark.columns import DDL
from kappamq.spark.jobs import archive, dead_letters, lag, rebuild, replay, trace, verify
from kappamq.testing import ClusterAddresses
from tests.spark.reading import Read, Send, numbers
from tests.unit.spark.store_builder import StoreBuilder

MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)


def test_archive_and_replay(
    spark: SparkSession, cluster: ClusterAddresses, send: Send, read: Read, topic: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "archive")

    def run() -> int:
        return archive.run(
            spark,
            cluster.nameserver,
            topics=topic,
            output=output,
            checkpoint=str(tmp_path / "checkpoint"),
            rows_per_batch=40,
        )

    send(100)
    assert run() == 100
    assert run() == 0
    send(20, first=100)
    assert run() == 20
    kept = spark.read.parquet(output)
    assert numbers(kept) == list(range(120))
    assert [path.name for path in (tmp_path / "archive").glob("topic=*")] == [f"topic={topic}"]
    assert kept.where("day = to_date(storeTimestamp)").count() == 120

    sent = replay.run(spark, cluster.nameserver, archive=output, topics=(topic,), to_topic=f"{topic}-again")
    assert sent == 120
    again = read(subscribe=f"{topic}-again")
    assert numbers(again) == list(range(120))
    assert {row.messageId for row in again.collect()} == {row.messageId for row in read().collect()}
    assert replay.run(spark, cluster.nameserver, archive=output, topics=(topic,), to_topic=f"{topic}-again") == 0
    chosen: dict[str, Any] = {
        "archive": output,
        "to_topic": f"{topic}-again",
        "name": "other",
        "tags": ("t1",),
        "keys": ("k1", "k2", "k4"),
    }
    assert replay.run(spark, cluster.nameserver, rate=1000, **chosen) == 2
    assert replay.run(spark, cluster.nameserver, is_exact=False, rate=1000, **chosen) == 0
    assert numbers(read(subscribe=f"{topic}-again")) == sorted([*range(120), 1, 4])
    assert replay.build(kept, end=MOMENT).count() == 0
    assert replay.build(kept, start=MOMENT).count() == 120


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_archive_to_tables(
    spark: SparkSession,
    cluster: ClusterAddresses,
    send: Send,
    read: Read,
    topic: str,
    tmp_path: Path,
    table_format: str,
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format], reason="no extra 'lake'")
    output, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"

    def run() -> int:
        given: dict[str, Any] = {"topics": topic, "rows_per_batch": 30, "table_format": table_format}
        return archive.run(spark, cluster.nameserver, output=str(output), checkpoint=str(checkpoint), **given)

    send(60)
    assert run() == 60
    # As if the driver had died after the table was changed and before Spark noted the batch.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    send(20, first=60)
    assert run() == 50
    found = bodies_of(output, table_format)
    assert sorted(json.loads(body)["n"] for body in found) == list(range(80))
    given: dict[str, Any] = {"to_topic": f"{topic}-again", "table_format": table_format, "tags": ("t0",)}
    assert replay.run(spark, cluster.nameserver, archive=str(output), **given) == 27
    assert numbers(read(subscribe=f"{topic}-again")) == list(range(0, 80, 3))


def bodies_of(path: Path, table_format: str) -> list[bytes]:
    """Read by the libraries of the formats."""
    if table_format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(path)
        assert table.metadata().partition_columns == ["topic", "day"]
        return list(table.to_pyarrow_table(columns=["body"])["body"].to_pylist())
    from kappamq.spark.lake.iceberg import open_catalog

    iceberg = open_catalog(str(path)).load_table("kappamq.messages")
    assert [field.name for field in iceberg.spec().fields] == ["topic", "day"]
    return list(iceberg.scan(selected_fields=("body",)).to_arrow()["body"].to_pylist())


def test_dead_letters(spark: SparkSession) -> None:
    def letter(number: int, properties: dict[str, str]) -> tuple[object, ...]:
        body = json.dumps({"n": number}).encode()
        where = ("%DLQ%billing", "broker-a", 0, number, MOMENT, MOMENT)
        return (*where, f"k{number}", "paid", f"id{number}", 16, properties, body)

    letters = dead_letters.build(
        spark.createDataFrame(
            [
                letter(1, {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "first", "color": "red"}),
                letter(2, {"RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "payments"}),
                letter(3, {"color": "blue"}),
            ],
            DDL,
        )
    )
    rows = {row.messageId: row for row in letters.collect()}
    assert rows["id1"].group == "billing"
    assert (rows["id1"].originTopic, rows["id1"].originMessageId) == ("orders", "first")
    assert rows["id2"].originTopic == "payments"
    summary = [(row.originTopic, row.letters, row.retries) for row in dead_letters.summarise(letters).collect()]
    assert sorted(summary, key=str) == [("orders", 1, 16), ("payments", 1, 16), (None, 1, 16)][:3]
    assert sorted(row.topic for row in dead_letters.redrive(letters).collect()) == ["orders", "payments"]


def test_trace(spark: SparkSession) -> None:
    body = (
        "Pub\x011758277800123\x01DefaultRegion\x01pg\x01orders\x01ID5\x01TagA\x01order-1\x01h:1\x0116\x013\x010\x01OFF\x01true\x02"
        "SubBefore\x011758277800143\x01DefaultRegion\x01cg\x01REQ\x01ID5\x012\x01null\x02"
        "SubAfter\x01REQ\x01ID5\x017\x01false\x01order-1\x010\x01"
        "1758277800151\x01cg\x02SubAfter\x01REQ\x01ID6\x01x\x01true\x01k\x010\x02Other\x011\x02"
    )
    traces = trace.build(spark.createDataFrame([(body.encode(),)], "body binary"))
    rows = [row.asDict() for row in traces.collect()]
    assert [row["kind"] for row in rows] == ["Pub", "SubBefore", "SubAfter", "SubAfter"]
    assert rows[0]["at_ms"] == 1758277800123
    assert (rows[0]["group"], rows[0]["topic"], rows[0]["success"]) == ("pg", "orders", True)
    assert (rows[1]["requestId"], rows[1]["retries"], rows[1]["keys"]) == ("REQ", 2, None)
    assert (rows[2]["cost_ms"], rows[2]["success"], rows[2]["group"]) == (7, False, "cg")
    assert (rows[3]["cost_ms"], rows[3]["group"]) == (None, None)
    summary = {(row.kind, row.group): row for row in trace.summarise(traces).collect()}
    assert summary["SubAfter", "cg"].failed == 1
    assert summary["Pub", "pg"].p50_ms == 3
    (line,) = trace.latencies(traces).collect()
    assert (line.topic, line.group, line.deliveries, line.failed, line.retried) == ("orders", "cg", 1, 1, 1)
    assert line.p50_ms == 20


def test_lag(spark: SparkSession, cluster: ClusterAddresses, send: Send, read: Read, topic: str) -> None:
    import kappamq

    send(30)
    with kappamq.Cluster(cluster.nameserver) as direct:
        for queue in direct.queues_of(topic):
            direct.pull(queue, 0, group="slow")
            direct.commit_offset(queue, "slow", 0)
    (row,) = [row for row in lag.run(spark, cluster.nameserver, groups=("slow",)).collect() if row.topic == topic]
    assert row.lag == 30
    assert 0 < row.worst <= 30


def test_verify(spark: SparkSession, cluster: ClusterAddresses, send: Send) -> None:
    send(100)
    (row,) = verify.run(spark, cluster.data / "broker-a").collect()
    assert row.records > 0
    assert row.damage is None


def test_verify_finds_damage(spark: SparkSession, tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store", segment_bytes=1024)
    for number in range(30):
        builder.append("orders", 0, b"body-%d" % number)
    root = builder.write()
    path = root / "commitlog" / f"{1024:020d}"
    shutil.copy(path, tmp_path / "before")
    data = bytearray(path.read_bytes())
    at = data.index(b"body-")
    data[at] ^= 1
    path.write_bytes(data)
    rows = verify.run(spark, root).collect()
    assert sum(row.records for row in rows) < 30
    assert [row.damagedAt for row in rows if row.damage] == [1024]
    assert [row.damage is None for row in rows] == [True, False] + [True] * (len(rows) - 2)


def test_rebuild_makes_the_queues_that_the_broker_made(
    spark: SparkSession, cluster: ClusterAddresses, send: Send, read: Read, topic: str, tmp_path: Path
) -> None:
    send(200)
    store = cluster.data / "broker-a"
    assert rebuild.run(spark, store, output=tmp_path, file_bytes=600_000) >= 1
    made = sorted((store / "consumequeue" / topic).glob("*/0*"))
    assert made
    for path in made:
        again = tmp_path / "consumequeue" / path.relative_to(store / "consumequeue")
        assert again.read_bytes() == path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        rebuild.run(spark, store, output=tmp_path)


def test_a_log_alone_becomes_a_table(spark: SparkSession, read: Read, tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store", segment_bytes=1024)
    for number in range(30):
        builder.append("orders", number % 2, json.dumps({"n": number}).encode())
    root = builder.write(checkpoint_ms=None)
    shutil.rmtree(root / "consumequeue")
    assert rebuild.run(spark, root, output=root, file_bytes=100) == 30
    frame = read(namesrvAddr=None, mode="files", storePath=str(root), subscribe="orders")
    assert numbers(frame) == list(range(30))


def test_command_line(spark: SparkSession, tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store")
    builder.append("orders", 0, b"one")
    result = CliRunner().invoke(pipeline_app, ["verify", str(builder.write())])
    assert result.exit_code == 0, result.output
    assert "records" in result.output


@pytest.mark.parametrize("arguments", [["archive", "out"], ["archive", "out", "--topic", "a", "--pattern", "b"]])
def test_command_line_mistakes(arguments: list[str]) -> None:
    result = CliRunner().invoke(pipeline_app, arguments)
    assert result.exit_code == 2

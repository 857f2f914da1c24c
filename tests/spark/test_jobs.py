"""The pipeline jobs, on small data."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kappamq.errors import CorruptRecord, KappaError, UsageError
from kappamq.spark.cli import pipeline_app
from kappamq.spark.columns import DDL
from kappamq.spark.index_files import IndexFileView, write_index_file
from kappamq.spark.jobs import archive, dead_letters, lag, rebuild, replay, trace, verify
from kappamq.spark.log_records import key_hash
from kappamq.spark.store_marks import EVER
from kappamq.store.check import check_store
from kappamq.testing import ClusterAddresses
from tests.faults.records import new_record
from tests.spark.reading import Read, Send, numbers
from tests.unit.spark.broker_store import (
    COUNT,
    DAMAGE,
    ENTRIES,
    SLOTS,
    flip_body,
    moved_key,
    settings,
    write_store,
    wrong_entry,
)
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


@pytest.mark.parametrize("table_format", ["parquet", "json"])
def test_lag(
    spark: SparkSession, cluster: ClusterAddresses, send: Send, topic: str, tmp_path: Path, table_format: str
) -> None:
    import kappamq

    send(30)
    output = str(tmp_path / "lag")
    with kappamq.Cluster(cluster.nameserver) as direct:
        queues = sorted(direct.queues_of(topic))
        for queue in queues:
            direct.pull(queue, 0, group="slow")
            direct.commit_offset(queue, "slow", 0)
        ends = {queue: direct.max_offset(queue) for queue in queues}
        (oldest,) = direct.pull(queues[0], 0, group="other", count_max=1)

        def sample(times: int) -> list[Any]:
            given: dict[str, Any] = {"output": output, "table_format": table_format, "every_seconds": 0.01}
            found = lag.run(spark, cluster.nameserver, groups=("slow",), times=times, **given)
            return found.where(f"topic = '{topic}'").orderBy("at", "broker", "queueId").collect()

        before = sample(1)
        age = datetime.now(UTC).timestamp() - oldest.stored_at_ms / 1000
        assert [(row.queueId, row.broker, row.end, row.committed, row.lag) for row in before] == [
            (queue.queue_id, queue.broker, ends[queue], 0, ends[queue]) for queue in queues
        ]
        assert before[0].at.timestamp() - oldest.stored_at_ms / 1000 <= before[0].lagSeconds <= age
        assert before[0].lagSeconds > 0
        direct.commit_offset(queues[0], "slow", ends[queues[0]])
        after = sample(2)
    assert len(after) == 2 * len(queues), "a run shows its own samples only"
    assert (after[0].lag, after[0].lagSeconds) == (0, 0.0)
    kept = spark.read.schema(lag.SCHEMA).format(table_format).load(output).where(f"topic = '{topic}'")
    (line,) = lag.build(kept).collect()
    assert (line.lagMax, line.lag, line.grown) == (30, 30 - ends[queues[0]], -ends[queues[0]])
    assert (line.samples, line.queues) == (3, len(queues))
    assert line.lagSecondsMax >= before[0].lagSeconds


def test_lag_of_a_format_that_is_not_there(spark: SparkSession, cluster: ClusterAddresses) -> None:
    with pytest.raises(UsageError, match="parquet, json"):
        lag.run(spark, cluster.nameserver, table_format="csv")


def verified(spark: SparkSession, root: Path) -> verify.Report:
    return verify.run(spark, root, index_slots=SLOTS, index_entries=ENTRIES)


def test_verify_beside_a_running_broker(spark: SparkSession, cluster: ClusterAddresses, send: Send) -> None:
    send(100)
    report = verify.run(spark, cluster.data / "broker-a", index_slots=50_000, index_entries=200_000)
    assert report.findings == ()
    assert report.records > 0


def test_verify_a_sound_store(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path)
    report = verified(spark, tmp_path)
    assert report.findings == ()
    checked = check_store(tmp_path, settings())
    assert checked.is_sound
    assert (report.records, report.queues, report.keys) == (checked.records, checked.queues, checked.index_entries)


def test_verify_knows_the_tags_that_rocketmq_indexes(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path)
    path = sorted((tmp_path / "index").iterdir())[-1]
    held = IndexFileView(path, slots=SLOTS, entries=ENTRIES).entries[["hash", "log_offset"]].tolist()
    assert len(held) < ENTRIES - 2
    last = next(log_offset for hashed, log_offset in reversed(held) if hashed == key_hash("orders", f"ID{COUNT - 1}"))
    tags = [(key_hash("orders", f"T#{tag}"), last) for tag in ("B", "other")]
    write_index_file(path, [(*key, 1_700_000_000_000) for key in [*held, *tags]], slots=SLOTS, entries=ENTRIES)
    (finding,) = verified(spark, tmp_path).findings
    assert (finding.kind, finding.file, finding.offset) == ("index", f"index/{path.name}", last)
    assert f"hash {tags[1][0]} names a record without that key" in finding.words


def test_verify_finds_all_that_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path)
    wanted = {found for damage in DAMAGE for found in damage(tmp_path)}
    report = verified(spark, tmp_path)
    assert {(each.kind, each.offset) for each in report.findings} == wanted
    files = {each.file.split("/")[0] for each in report.findings}
    assert files == {"commitlog", "consumequeue", "index"}


def test_verify_needs_the_sizes_of_index_files(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path)
    findings = verify.run(spark, tmp_path).findings
    assert [each.file for each in findings] == [f"index/{path.name}" for path in sorted((tmp_path / "index").iterdir())]
    assert "give its --index-slots" in findings[0].words


def test_verify_judges_a_crashed_store_by_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", is_stopped=False)
    store.checkpoint()
    store.append([new_record(b"late", keys="late", topic="orders") for _ in range(5)])
    store.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    store.close()
    report = verified(spark, tmp_path / "crashed")
    assert report.findings == ()
    assert report.records == check_store(tmp_path / "store", settings()).records
    assert report.complete_to < EVER
    damaged = moved_key(tmp_path / "crashed") | wrong_entry(tmp_path / "crashed")
    assert {(each.kind, each.offset) for each in verified(spark, tmp_path / "crashed").findings} == damaged


def test_rebuild_makes_what_the_broker_made(spark: SparkSession, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "again"
    write_store(store)
    made = rebuild.run(spark, store, output=output, index_slots=SLOTS, index_entries=ENTRIES)
    wanted = {path.relative_to(store): path.read_bytes() for path in derived_files(store)}
    assert {path.relative_to(output): path.read_bytes() for path in derived_files(output)} == wanted
    assert made.index_files == len(list(store.glob("index/*"))) > 3
    assert made.index_entries > made.queue_entries
    with pytest.raises(UsageError, match="exists already"):
        rebuild.run(spark, store, output=output)


def derived_files(root: Path) -> list[Path]:
    return [path for pattern in ("consumequeue/*/*/*", "index/*") for path in root.glob(pattern)]


def test_rebuild_beside_a_running_broker(
    spark: SparkSession, cluster: ClusterAddresses, send: Send, topic: str, tmp_path: Path
) -> None:
    send(200)
    store = cluster.data / "broker-a"
    assert rebuild.run(spark, store, output=tmp_path, has_index=False).queue_entries >= 1
    made = sorted((store / "consumequeue" / topic).glob("*/0*"))
    assert made
    for path in made:
        assert (tmp_path / path.relative_to(store)).read_bytes() == path.read_bytes()


def test_rebuild_refuses_a_damaged_log(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    flip_body(tmp_path / "store")
    with pytest.raises(CorruptRecord, match="damaged in 1 places"):
        rebuild.run(spark, tmp_path / "store", output=tmp_path)
    assert not (tmp_path / "consumequeue").exists()


def test_a_log_alone_becomes_a_table(spark: SparkSession, read: Read, tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store", segment_bytes=1024)
    for number in range(30):
        builder.append("orders", number % 2, json.dumps({"n": number}).encode())
    root = builder.write(checkpoint_ms=None)
    shutil.rmtree(root / "consumequeue")
    made = rebuild.run(spark, root, output=root, file_bytes=100, index_slots=SLOTS, index_entries=ENTRIES)
    assert (made.queue_entries, made.index_entries, made.index_files) == (30, 60, 2), "a key has two words"
    frame = read(namesrvAddr=None, mode="files", storePath=str(root), subscribe="orders")
    assert numbers(frame) == list(range(30))


def test_command_line(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    sizes = ["--index-slots", str(SLOTS), "--index-entries", str(ENTRIES)]
    result = CliRunner().invoke(pipeline_app, ["verify", str(tmp_path / "store"), *sizes])
    assert result.exit_code == 0, result.output
    assert "nothing wrong" in result.output
    ((_kind, offset),) = wrong_entry(tmp_path / "store")
    kept = ["--output", str(tmp_path / "findings"), "--format", "json"]
    result = CliRunner().invoke(pipeline_app, ["verify", str(tmp_path / "store"), *sizes, *kept])
    assert result.exit_code == 1
    assert f"queue: consumequeue/orders/0: log offset {offset}: entry 23 is" in result.output
    (finding,) = spark.read.schema(verify.SCHEMA).json(str(tmp_path / "findings")).collect()
    assert (finding.kind, finding.file, finding.offset) == ("queue", "consumequeue/orders/0", offset)


def test_what_fails_in_spark_is_one_sentence(spark: SparkSession, cluster: ClusterAddresses, tmp_path: Path) -> None:
    at = ["--nameserver", cluster.nameserver]
    result = CliRunner().invoke(pipeline_app, ["archive", str(tmp_path / "lake"), "--topic", "never-made", *at])
    assert isinstance(result.exception, KappaError)
    assert str(result.exception) == f"topic 'never-made' does not exist at {cluster.nameserver}: create it first"
    result = CliRunner().invoke(pipeline_app, ["archive", "nowhere://lake", "--topic", "never-made", *at])
    assert isinstance(result.exception, KappaError)
    assert "nowhere" in str(result.exception)
    assert "\n" not in str(result.exception)
    result = CliRunner().invoke(pipeline_app, ["replay", str(tmp_path / "none"), *at])
    assert isinstance(result.exception, KappaError)
    assert "Path does not exist" in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("arguments", [["archive", "out"], ["archive", "out", "--topic", "a", "--pattern", "b"]])
def test_command_line_mistakes(arguments: list[str]) -> None:
    result = CliRunner().invoke(pipeline_app, arguments)
    assert result.exit_code == 2

"""Writing frames and streams to topics."""

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

from kappamq.broker.settings import BrokerSettings
from kappamq.testing import ClusterAddresses, start_cluster
from kappamq.testing.cluster import SMALL_STORE
from tests.spark.reading import Read, Send, make_queues, numbers

SECONDS = 300


def test_round_trip(spark: SparkSession, read: Read, cluster: ClusterAddresses, topic: str) -> None:
    frame = spark.range(500).select(
        F.to_json(F.struct(F.col("id").alias("n"))).alias("body"),
        F.concat(F.lit("k"), "id").alias("keys"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.create_map(F.lit("color"), F.lit("red"), F.lit("UNIQ_KEY"), F.lit("ours")).alias("properties"),
    )
    frame.write.format("rocketmq").options(namesrvAddr=cluster.nameserver, topic=topic).mode("append").save()
    rows = {json.loads(row.body)["n"]: row for row in read().collect()}
    assert sorted(rows) == list(range(500))
    assert rows[7].keys == "k7"
    assert rows[7].tags is None
    assert rows[8].tags == "even"
    assert rows[8].properties["color"] == "red"
    assert len({row.messageId for row in rows.values()}) == 500
    assert rows[8].messageId != "ours"


def test_value_topic_and_queue_columns(spark: SparkSession, read: Read, cluster: ClusterAddresses, topic: str) -> None:
    asyncio.run(make_queues(cluster.nameserver, topic, 4))
    rows = [(topic, json.dumps({"n": number}).encode(), f"customer-{number % 5}") for number in range(50)]
    frame = spark.createDataFrame(rows, "topic string, value binary, shardingKey string").coalesce(1)
    frame.write.format("rocketmq").option("namesrvAddr", cluster.nameserver).mode("append").save()
    found = read().orderBy("broker", "queueId", "queueOffset").collect()
    queues: dict[str, set[tuple[str, int]]] = {}
    order: dict[str, list[int]] = {}
    for row in found:
        key = row.properties["__SHARDINGKEY"]
        queues.setdefault(key, set()).add((row.broker, row.queueId))
        order.setdefault(key, []).append(json.loads(row.body)["n"])
    assert all(len(places) == 1 for places in queues.values())
    assert order == {f"customer-{number}": list(range(number, 50, 5)) for number in range(5)}
    pinned = spark.createDataFrame(
        [(topic, "pinned", "broker-b", 2)], "topic string, value string, broker string, queueId int"
    )
    pinned.write.format("rocketmq").option("namesrvAddr", cluster.nameserver).mode("append").save()
    last = [row for row in read().collect() if row.body == b"pinned"]
    assert [(row.broker, row.queueId) for row in last] == [("broker-b", 2)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("1 as x, 'a' as body", {"topic": "t"}, "column 'x' cannot be written"),
        ("'a' as keys", {"topic": "t"}, "exactly one of the columns body and value"),
        ("'a' as body", {}, "no topic is given"),
        ("'a' as body, 1 as queueId", {"topic": "t", "transactional": "true"}, "cannot use the column queueId"),
        ("cast(null as string) as body", {"topic": "t"}, "has no body"),
        ("'a' as body, 77 as queueId", {"topic": "spark-seed"}, "has no queue 77"),
    ],
)
def test_mistakes(
    spark: SparkSession, cluster: ClusterAddresses, columns: str, options: dict[str, str], message: str
) -> None:
    writer = spark.sql(f"select {columns}").write.format("rocketmq").option("namesrvAddr", cluster.nameserver)
    with pytest.raises(PySparkException, match=message):
        writer.options(**options).mode("append").save()


def test_rows_that_are_too_much_together_for_a_broker_go_one_by_one(
    spark: SparkSession, read: Read, topic: str
) -> None:
    settings = BrokerSettings(name="template", store=SMALL_STORE, message_bytes_max=2048)
    with start_cluster(settings=settings) as small:

        def write(rows: int, body_bytes: int) -> None:
            body = F.rpad(F.to_json(F.struct(F.col("id").alias("n"))), body_bytes, " ")
            frame = spark.range(rows, numPartitions=1).select(
                body.alias("body"), F.col("id").cast("string").alias("keys")
            )
            frame.write.format("rocketmq").options(namesrvAddr=small.nameserver, topic=topic).mode("append").save()

        write(100, 1000)
        assert numbers(read(namesrvAddr=small.nameserver)) == list(range(100))
        # One that is too much alone is an error.
        with pytest.raises(PySparkException, match="maximum is 2048"):
            write(1, 3000)


def test_a_topic_cannot_be_overwritten(spark: SparkSession, cluster: ClusterAddresses, topic: str) -> None:
    writer = spark.sql("select 'a' as body").write.format("rocketmq")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.options(namesrvAddr=cluster.nameserver, topic=topic).mode("overwrite").save()


@pytest.mark.parametrize("transactional", ["false", "true"])
def test_a_replayed_batch_has_equal_ids(
    spark: SparkSession,
    cluster: ClusterAddresses,
    read: Read,
    send: Send,
    topic: str,
    tmp_path: Path,
    transactional: str,
) -> None:
    send(100)
    options = {"namesrvAddr": cluster.nameserver, "subscribe": topic, "startingOffsets": "earliest"}

    def copy() -> None:
        frame = spark.readStream.format("rocketmq").options(**options).load()
        query = (
            frame.select("body", "keys")
            .writeStream.format("rocketmq")
            .options(namesrvAddr=cluster.nameserver, topic=f"{topic}-copy", transactional=transactional)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SECONDS)

    copy()
    assert numbers(read(subscribe=f"{topic}-copy")) == list(range(100))
    # As if Spark had died after sending and before noting it: it sends the batch again.
    (tmp_path / "c" / "commits" / "0").unlink()
    (tmp_path / "c" / "commits" / ".0.crc").unlink(missing_ok=True)
    copy()
    twice = read(subscribe=f"{topic}-copy")
    assert twice.count() == (100 if transactional == "true" else 200)
    assert numbers(twice.dropDuplicates(["messageId"])) == list(range(100))


def test_a_transactional_write_shows_all_or_nothing(
    spark: SparkSession, cluster: ClusterAddresses, read: Read, topic: str
) -> None:
    numbered = spark.range(40, numPartitions=2).select(F.to_json(F.struct(F.col("id").alias("n"))).alias("body"))
    options = {
        "namesrvAddr": cluster.nameserver,
        "topic": topic,
        "transactional": "true",
        "group": "spark-transactions",
    }
    numbered.write.format("rocketmq").options(**options).mode("append").save()
    assert numbers(read()) == list(range(40))
    # The second partition fails at its last row, after the first one has sent everything.
    broken = spark.range(40, 80, numPartitions=2).select(
        F.when(F.col("id") < 79, F.to_json(F.struct(F.col("id").alias("n")))).alias("body")
    )
    with pytest.raises(PySparkException, match="has no body"):
        broken.write.format("rocketmq").options(**options).mode("append").save()
    assert numbers(read()) == list(range(40))

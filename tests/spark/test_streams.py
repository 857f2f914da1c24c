"""Topics as streams: every message exactly once across batches, restarts and new queues."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kappamq
from kappamq.testing import ClusterAddresses
from tests.spark.processes import wait_until
from tests.spark.reading import Send, make_queues

SECONDS = 300


class Stream:
    """A query from a topic to Parquet files that can be run again and again."""

    def __init__(self, spark: SparkSession, nameserver: str, topic: str, where: Path) -> None:
        self.spark = spark
        self.options = {"namesrvAddr": nameserver, "subscribe": topic, "startingOffsets": "earliest"}
        self.output = where / "output"
        self.checkpoint = where / "checkpoint"

    def run(self, **more: Any) -> StreamingQuery:
        """Read everything that is there now."""
        frame = self.spark.readStream.format("rocketmq").options(**(self.options | more)).load()
        query = (
            frame.select("body", "queueId", "broker", "queueOffset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.output))
        )
        assert query.awaitTermination(SECONDS)
        return query

    def frame(self) -> DataFrame:
        return self.spark.read.parquet(str(self.output))

    def numbers(self) -> list[int]:
        return sorted(json.loads(row.body)["n"] for row in self.frame().collect())


@pytest.fixture
def stream(spark: SparkSession, cluster: ClusterAddresses, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, cluster.nameserver, topic, tmp_path)


def test_exactly_once_in_batches_across_restarts(
    stream: Stream, send: Send, cluster: ClusterAddresses, topic: str
) -> None:
    send(100)
    query = stream.run(maxOffsetsPerTrigger="30", commitGroupOffsets="spark-mirror")
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sizes == [30, 30, 30, 10]
    assert stream.numbers() == list(range(100))
    with kappamq.Cluster(cluster.nameserver) as direct:
        for queue in direct.queues_of(topic):
            assert (direct.committed_offset(queue, "spark-mirror") or 0) == direct.max_offset(queue)
    stream.run()
    assert stream.numbers() == list(range(100))
    # As if Spark had died after writing the last batch and before noting that it was done.
    (stream.checkpoint / "commits" / "3").unlink()
    (stream.checkpoint / "commits" / ".3.crc").unlink(missing_ok=True)
    send(50, first=100)
    stream.run()
    assert stream.numbers() == list(range(150))


def test_admission_by_bytes(stream: Stream, send: Send) -> None:
    send(100)
    query = stream.run(maxBytesPerTrigger="10000")
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(sizes) > 1
    assert stream.numbers() == list(range(100))


def test_new_topics_and_queues_appear_while_running(
    spark: SparkSession,
    cluster: ClusterAddresses,
    topic: str,
    send: Send,
    producer: kappamq.Producer,
    tmp_path: Path,
) -> None:
    send(10, topic=f"{topic}-a")
    stream = Stream(spark, cluster.nameserver, topic, tmp_path)
    stream.options = {
        "namesrvAddr": cluster.nameserver,
        "subscribePattern": f"{topic}-.*",
        "startingOffsets": "earliest",
        "discoveryIntervalMs": "100",
    }
    frame = spark.readStream.format("rocketmq").options(**stream.options).load()
    query = frame.writeStream.format("memory").queryName("found").trigger(processingTime="200 milliseconds").start()
    try:
        query.processAllAvailable()
        send(10, first=10, topic=f"{topic}-b")
        wait_until(lambda: spark.table("found").count() >= 20, seconds=SECONDS)
        assert sorted(json.loads(row.body)["n"] for row in spark.table("found").collect()) == list(range(20))
        asyncio.run(make_queues(cluster.nameserver, f"{topic}-a", 9))
        producer.send(kappamq.Message(f"{topic}-a", b'{"n": 20}'), queue=kappamq.Queue(f"{topic}-a", "broker-b", 8))
        wait_until(lambda: spark.table("found").count() >= 21, seconds=SECONDS)
        assert spark.table("found").where("queueId = 8").count() == 1
        progress = query.lastProgress
        assert progress is not None
        assert f"{topic}-b" in progress["sources"][0]["latestOffset"]
    finally:
        query.stop()


def test_a_checkpoint_beyond_the_topic_is_loud(stream: Stream, send: Send) -> None:
    send(30)
    stream.run()
    offsets = stream.checkpoint / "offsets" / "0"
    (stream.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    lines = offsets.read_text().splitlines()
    data = json.loads(lines[-1])
    for brokers in data["q"].values():
        for queues in brokers.values():
            for queue in queues:
                queues[queue] += 1000
    offsets.write_text("\n".join([*lines[:-1], json.dumps(data)]))
    with pytest.raises(StreamingQueryException, match="was read before"):
        stream.run()
    send(10, first=30)
    stream.run(failOnDataLoss="false")

"""The data source against a real RocketMQ: its brokers answer, and its files are read."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

import kappamq
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.runs import PLAIN_BODY_BYTES_MAX
from kappamq.errors import TopicNotFound
from kappamq.spark.encoding import RowIdentity, plain_rows
from tests.interop.conftest import skip_loudly
from tests.interop.rocketmq import Broker, NameServer, Unreachable, await_registered
from tests.spark.processes import wait_until
from tests.spark.reading import numbers

# RocketMQ acknowledges a batch that is longer than a segment and stores nothing of it: these stay below.
ROWS_TOGETHER = 400

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Servers = tuple[NameServer, Broker]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """RocketMQ 5.5.0 with small segments, so that a few messages fill several."""
    try:
        name_server = NameServer("5.5.0")
    except Unreachable as missing:
        skip_loudly(missing)
        raise
    broker: Broker | None = None
    try:
        broker = Broker(name_server.address, flush="SYNC_FLUSH", commit_log_segment_bytes=64 * 1024)
        await_registered(name_server.address, broker.address)
        yield name_server, broker
    finally:
        if broker is not None:
            broker.kill()
        name_server.kill()


def test_what_rocketmq_stores_is_pulled_and_read_from_its_files(spark: SparkSession, servers: Servers) -> None:
    name_server, broker = servers
    frame = spark.range(800).select(
        F.to_json(F.struct(F.col("id").alias("n"))).alias("body"),
        F.concat(F.lit("k"), "id").alias("keys"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.create_map(F.lit("color"), F.lit("red")).alias("properties"),
    )
    frame.write.format("rocketmq").options(namesrvAddr=name_server.address, topic="spark-orders").mode("append").save()
    reader = spark.read.format("rocketmq").option("subscribe", "spark-orders")
    order = ("queueId", "queueOffset")
    table = reader.option("namesrvAddr", name_server.address).load()
    pulled = [row.asDict() for row in table.orderBy(*order).collect()]
    assert numbers(table) == list(range(800))
    assert len(list((broker.store / "commitlog").iterdir())) > 2
    with closing(kappamq.Cluster(name_server.address)) as direct:
        direct.open()
        assert sum(direct.max_offset(queue) for queue in direct.queues_of("spark-orders")) == 800

    store = spark.read.format("rocketmq").options(
        subscribe="spark-orders", mode="files", storePath=str(broker.store), brokerName="broker-a", minPartitions="4"
    )
    files = [row.asDict() for row in store.load().orderBy(*order).collect()]
    assert files == pulled
    assert numbers(store.option("tagExpression", "even").load()) == list(range(0, 800, 2))


def test_rocketmq_takes_rows_that_travel_together(spark: SparkSession, servers: Servers) -> None:
    """A refused batch would not be noticed in what is stored: its rows are sent again one by one."""
    name_server, _ = servers
    numbered = [b'{"n": %d}' % number for number in range(ROWS_TOGETHER)]
    batch = pa.RecordBatch.from_pydict({"body": numbered, "keys": [f"k{number}" for number in range(ROWS_TOGETHER)]})
    rows = plain_rows(batch, RowIdentity("w", 0, 0), 0, topic="spark-columns", body_bytes_max=PLAIN_BODY_BYTES_MAX)
    assert rows is not None

    async def send() -> list[int]:
        async with Producer(name_server.address, group="spark-columns") as producer:
            return await producer.send_rows(rows.topic, rows.texts, rows.bodies, rows.count)

    def is_visible() -> bool:
        # RocketMQ acknowledges before its name server knows a new topic, and before its queues show what is in its log.
        with kappamq.Cluster(name_server.address) as direct:
            try:
                return sum(direct.max_offset(queue) for queue in direct.queues_of("spark-columns")) == ROWS_TOGETHER
            except TopicNotFound:
                return False

    assert asyncio.run(send()) == []
    wait_until(is_visible, seconds=60)
    options = {"namesrvAddr": name_server.address, "subscribe": "spark-columns"}
    assert numbers(spark.read.format("rocketmq").options(**options).load()) == list(range(ROWS_TOGETHER))

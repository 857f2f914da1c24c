"""One Spark session and one cluster for all tests here: starting them is what takes time."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import kappamq
from kappamq.errors import ConfigError
from kappamq.spark.sessions import local_session
from kappamq.testing import ClusterAddresses, start_cluster
from tests.patience import SEND_MS
from tests.spark.reading import Read, Send

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.log.level": "ERROR",
}


HERE = Path(__file__).parent
SECONDS_MAX = 600
"""For one test: the first one also starts Java, Spark and their workers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        session = local_session("kappamq tests", settings=SETTINGS)
    except ConfigError as fault:
        pytest.skip(str(fault))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterAddresses]:
    with start_cluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def producer(cluster: ClusterAddresses) -> Iterator[kappamq.Producer]:
    # A queue is a task: more of them than cores would only take time.
    settings = kappamq.ProducerSettings(new_topic_queues=2, send_timeout_ms=SEND_MS)
    with kappamq.Producer(cluster.nameserver, group="spark-tests", settings=settings) as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"spark-{next(_numbers)}"


@pytest.fixture
def send(producer: kappamq.Producer, topic: str) -> Send:
    """`send(count, first=0)`: messages numbered from `first` on, spread over the topic's queues."""

    def send_some(count: int, first: int = 0, **more: Any) -> list[kappamq.SendReceipt]:
        messages = [
            kappamq.Message(
                more.get("topic", topic),
                json.dumps({"n": number}).encode(),
                tags=f"t{number % 3}",
                keys=f"k{number}",
                properties={"number": str(number)},
            )
            for number in range(first, first + count)
        ]
        futures = [producer.send_soon(message) for message in messages]
        return [future.result(SEND_MS / 1000) for future in futures]

    return send_some


@pytest.fixture
def read(spark: SparkSession, cluster: ClusterAddresses, topic: str) -> Read:
    """`read(schema=None, **options)`: the topic as a table."""

    def read_table(schema: str | None = None, **options: Any) -> DataFrame:
        given = {"namesrvAddr": cluster.nameserver, "subscribe": topic} | options
        reader = spark.read.format("rocketmq").options(**{k: v for k, v in given.items() if v is not None})
        return (reader.schema(schema) if schema else reader).load()

    return read_table

"""Topics as tables, through a real Spark session and a real cluster."""

import json
from collections.abc import Callable
from functools import partial

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

import kappamq
from kappamq.spark.columns import COLUMNS
from kappamq.testing import ClusterAddresses
from tests.spark.reading import Read, Send, numbers


def test_a_table_is_what_was_sent(read: Read, send: Send, topic: str) -> None:
    receipts = send(300)
    rows = read().collect()
    assert tuple(rows[0].asDict()) == COLUMNS
    found = {(row.broker, row.queueId, row.queueOffset): row for row in rows}
    assert len(found) == len(rows) == 300
    for number, receipt in enumerate(receipts):
        row = found[receipt.queue.broker, receipt.queue.queue_id, receipt.queue_offset]
        assert row.topic == topic
        assert json.loads(row.body) == {"n": number}
        assert row.keys == f"k{number}"
        assert row.tags == f"t{number % 3}"
        assert row.messageId == receipt.message_id
        assert row.reconsumeTimes == 0
        assert row.properties["number"] == str(number)
        assert row.bornTimestamp <= row.storeTimestamp


def test_the_source_is_found_without_registering(spark: SparkSession, read: Read, send: Send) -> None:
    send(5)
    fresh = spark.newSession()
    options = {"namesrvAddr": "127.0.0.1:1", "subscribe": "x"}
    assert fresh.read.format("rocketmq").options(**options).load().columns == list(COLUMNS)


def test_projection(read: Read, send: Send) -> None:
    send(20)
    frame = read("body binary, queueOffset bigint")
    assert frame.columns == ["body", "queueOffset"]
    assert numbers(frame) == list(range(20))


def test_wrong_schema_and_wrong_option(read: Read, send: Send) -> None:
    send(1)
    with pytest.raises(PySparkException, match="has no column 'value'"):
        read("value binary").collect()
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        read(startingOffset="earliest").collect()
    with pytest.raises(PySparkException, match="does not exist"):
        read(subscribe="never-made").collect()


def test_an_empty_table(read: Read, send: Send) -> None:
    send(1)
    assert read(startingOffsets="group:nobody", endingTimestamp="1").count() == 0


def places(cluster: ClusterAddresses, topic: str, place: Callable[[int], int]) -> dict[str, dict[str, int]]:
    """For each queue of a topic, `place` of its end."""
    found: dict[str, dict[str, int]] = {}
    with kappamq.Cluster(cluster.nameserver) as direct:
        for queue in direct.queues_of(topic):
            found.setdefault(queue.broker, {})[str(queue.queue_id)] = place(direct.max_offset(queue))
    return found


def test_offsets_as_json(read: Read, send: Send, cluster: ClusterAddresses, topic: str) -> None:
    send(100)
    half = places(cluster, topic, lambda end: end // 2)
    first = numbers(read(endingOffsets=json.dumps({topic: half})))
    second = numbers(read(startingOffsets=json.dumps({topic: half})))
    assert sorted(first + second) == list(range(100))
    assert first
    assert second


def test_offsets_of_a_group_and_of_a_time(read: Read, send: Send, cluster: ClusterAddresses, topic: str) -> None:
    receipts = send(60)
    with kappamq.Cluster(cluster.nameserver) as direct:
        for queue in direct.queues_of(topic):
            direct.pull(queue, 0, group="spark-reader")
            direct.commit_offset(queue, "spark-reader", direct.max_offset(queue))
    later = send(30, first=60)
    assert numbers(read(startingOffsets="group:spark-reader")) == list(range(60, 90))
    assert len(receipts) + len(later) == 90
    first_ms = min(row.ms for row in read().select(F.unix_millis("storeTimestamp").alias("ms")).collect())
    assert numbers(read(startingTimestamp=str(first_ms))) == list(range(90))
    with pytest.raises(PySparkException, match="earlier time"):
        read(startingTimestamp=str(first_ms + 10**9)).count()
    assert read(startingTimestamp=str(first_ms + 10**9), startingOffsetsByTimestampStrategy="latest").count() == 0


def test_filters_at_the_broker(read: Read, send: Send) -> None:
    send(90)
    assert numbers(read(tagExpression="t1 || t2")) == [n for n in range(90) if n % 3]
    assert numbers(read(sqlFilter="number > 80")) == list(range(81, 90))


def test_a_frame_is_not_narrowed_by_another_query_of_it(spark: SparkSession, read: Read, send: Send) -> None:
    """Spark keeps the plan of the last filter for the whole frame, so filters are pushed only when asked for."""
    send(90)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read()
        first, second = frame.where("tags = 't0'"), frame.where("tags = 't1'")
        assert (first.count(), frame.count()) == (30, 90)
        assert numbers(first.union(second)) == [number for number in range(90) if number % 3 != 2]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_filter_push_down(spark: SparkSession, read: Read, send: Send) -> None:
    send(90)
    read = partial(read, pushFilters="true")
    assert numbers(read().where("tags = 't1'")) == list(range(1, 90, 3)), "a session without it"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert numbers(read().where("tags = 't1'")) == list(range(1, 90, 3))
        assert numbers(read().where("queueId in (0, 1) or queueId > 1")) == list(range(90))
        one = read().where("queueId = 1 and broker = 'broker-a' and queueOffset >= 1")
        assert one.rdd.getNumPartitions() == 1
        assert {(row.queueId, row.broker) for row in one.collect()} <= {(1, "broker-a")}
        assert read().where("queueOffset > 100000").count() == 0
        assert read().where("storeTimestamp > timestamp'2001-01-01 00:00:00'").count() == 90
        assert read().where("storeTimestamp < timestamp'2001-01-01 00:00:00'").count() == 0
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_partitions(read: Read, send: Send) -> None:
    send(200)
    assert read(minPartitions="9").rdd.getNumPartitions() >= 9
    assert numbers(read(minPartitions="9")) == list(range(200))
    assert numbers(read(maxRecordsPerPartition="20")) == list(range(200))


def test_pattern_and_assignment(read: Read, send: Send, topic: str) -> None:
    send(10, topic=f"{topic}-a")
    send(10, first=10, topic=f"{topic}-b")
    assert numbers(read(subscribe=None, subscribePattern=f"{topic}-[ab]")) == list(range(20))
    chosen = json.dumps({f"{topic}-a": {"broker-a": [0]}})
    assert {row.queueId for row in read(subscribe=None, assign=chosen).collect()} <= {0}
    with pytest.raises(PySparkException, match="do not exist"):
        read(subscribe=None, assign=json.dumps({f"{topic}-a": {"broker-a": [99]}})).count()


def test_lost_messages_are_loud(read: Read, send: Send, cluster: ClusterAddresses, topic: str) -> None:
    send(40)
    ends = places(cluster, topic, lambda end: end + 1000)
    with pytest.raises(PySparkException, match="failOnDataLoss=false"):
        read(endingOffsets=json.dumps({topic: ends})).count()
    assert numbers(read(endingOffsets=json.dumps({topic: ends}), failOnDataLoss="false")) == list(range(40))


def test_large_and_compressed_bodies(read: Read, producer: kappamq.Producer, topic: str) -> None:
    bodies = [bytes([65 + number]) * (1_500_000 + number) for number in range(8)]
    for body in bodies:
        producer.send(kappamq.Message(topic, body))
    assert sorted(bytes(row.body) for row in read("body binary").collect()) == bodies

"""Dead letters and traces as our own client makes them, seen by the jobs."""

import threading

import pytest
from pyspark.sql import SparkSession

import kappamq
from kappamq.model.names import TRACE_TOPIC
from kappamq.spark.jobs import dead_letters, trace
from kappamq.testing import ClusterAddresses
from tests.patience import SEND_MS
from tests.spark.processes import wait_until
from tests.spark.reading import Read, numbers

COUNT = 12


@pytest.fixture
def group(cluster: ClusterAddresses, topic: str) -> str:
    """A group that has given up on every message of the topic; all of it traced."""
    name = f"{topic}-readers"
    settings = kappamq.ProducerSettings(trace=True, send_timeout_ms=SEND_MS)
    with kappamq.Producer(cluster.nameserver, group=f"{topic}-senders", settings=settings) as producer:
        for number in range(COUNT):
            producer.send(kappamq.Message(topic, b'{"n": %d}' % number, tags="paid", keys=f"k{number}"))
    failed = set()
    done = threading.Event()
    traced = kappamq.ConsumerSettings(trace=True)
    with (
        kappamq.PushConsumer(cluster.nameserver, group=name, start_from="first", settings=traced) as consumer,
        kappamq.Cluster(cluster.nameserver) as direct,
    ):

        @consumer.on(topic)
        def handle(message: kappamq.ReceivedMessage) -> None:
            failed.add(message.body)
            if len(failed) == COUNT:
                done.set()
            raise kappamq.RetryLater("the till is closed", delay_level=-1)

        consumer.start()
        assert done.wait(60)
        wait_until(lambda: _count(direct, f"%DLQ%{name}") == COUNT)
    return name


def _count(direct: kappamq.Cluster, topic: str) -> int:
    try:
        return sum(direct.max_offset(queue) for queue in direct.queues_of(topic))
    except kappamq.KappaError:
        return 0


def test_dead_letters_are_redriven_once(
    spark: SparkSession, cluster: ClusterAddresses, read: Read, group: str, topic: str
) -> None:
    (line,) = dead_letters.run(spark, cluster.nameserver, groups=(group,)).collect()
    assert (line.group, line.originTopic, line.letters) == (group, topic, COUNT)
    assert line.cause == "RetryLater: the till is closed"
    assert line.age == "under an hour"
    for _ in range(2):
        dead_letters.run(spark, cluster.nameserver, groups=(group,), sends=True)
        assert numbers(read()) == sorted([*range(COUNT), *range(COUNT)])
    again = [row for row in read().collect() if "KAPPAMQ_SENT_AGAIN" in row.properties]
    assert sorted(row.keys for row in again) == sorted(f"k{number}" for number in range(COUNT))
    assert {row.tags for row in again} == {"paid"}


def test_traces_tell_how_long_messages_took(
    spark: SparkSession, cluster: ClusterAddresses, read: Read, group: str, topic: str
) -> None:
    wait_until(lambda: read(subscribe=TRACE_TOPIC).where(f"body like '%{group}%'").count() > 0)
    summary, windows = trace.run(spark, cluster.nameserver)
    lines = {(row.kind, row.group): row for row in summary.collect()}
    assert lines["Pub", f"{topic}-senders"].records == COUNT
    assert lines["SubBefore", group].records >= COUNT
    deliveries = [row for row in windows.collect() if row.group == group]
    assert sum(row.deliveries for row in deliveries) >= COUNT
    assert sum(row.failed for row in deliveries) >= COUNT
    assert {row.topic for row in deliveries} == {topic}
    assert all(0 <= row.p50_ms <= row.p99_ms for row in deliveries)

"""Progress of streams, as groups see it. Spark itself is not needed: what it asks is asked here."""

import kappamq
from kappamq.spark.columns import COLUMNS
from kappamq.spark.options import parse_read_options
from kappamq.spark.source import TopicStreamReader
from kappamq.testing import ClusterAddresses
from tests.spark.reading import Send


def stream_reader(cluster: ClusterAddresses, topic: str, group: str) -> TopicStreamReader:
    options = {"namesrvAddr": cluster.nameserver, "subscribe": topic, "commitGroupOffsets": group}
    return TopicStreamReader(parse_read_options(options | {"startingOffsets": "earliest"}, is_stream=True), COLUMNS)


def committed(cluster: ClusterAddresses, topic: str, group: str) -> int:
    with kappamq.Cluster(cluster.nameserver) as direct:
        return sum(direct.committed_offset(queue, group) or 0 for queue in direct.queues_of(topic))


def test_a_restart_publishes_what_the_run_before_could_not(cluster: ClusterAddresses, send: Send, topic: str) -> None:
    """A driver may die after Spark has noted a batch and before its group is told."""
    send(20)
    group = f"{topic}-group"
    first = stream_reader(cluster, topic, group)
    first.initialOffset()
    done = first.reportLatestOffset()
    first.stop()
    assert committed(cluster, topic, group) == 0
    second = stream_reader(cluster, topic, group)
    try:
        second.latestOffset(done, second.getDefaultReadLimit())
    finally:
        second.stop()
    assert committed(cluster, topic, group) == 20

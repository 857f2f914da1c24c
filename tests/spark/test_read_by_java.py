"""What Spark has written, as the official Java client reads it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kappamq.testing import ClusterAddresses
from tests.interop.conftest import skip_loudly
from tests.interop.harness import CLIENT_VERSIONS, JavaClient, Subscription
from tests.interop.rocketmq import Unreachable

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

LEVEL_1_MS = 1000
CLOCK_SLACK_MS = 50


@pytest.fixture(scope="module", params=CLIENT_VERSIONS)
def java(request: pytest.FixtureRequest) -> Iterator[JavaClient]:
    try:
        client = JavaClient(request.param)
    except Unreachable as missing:
        skip_loudly(missing)
        raise
    with client:
        yield client


def test_the_java_client_gets_every_column(
    spark: SparkSession, cluster: ClusterAddresses, java: JavaClient, topic: str
) -> None:
    rows = [
        (b"plain", "k1 k2", "red", {"color": "blue", "size": "9"}, 7, None, None),
        (b"bare", None, None, None, None, None, None),
        (b"sharded", "k3", None, None, None, "customer-1", None),
        (b"later", "k4", "slow", {"why": "wait"}, None, None, 1),
    ]
    columns = "body binary, keys string, tags string, properties map<string,string>, flag int, shardingKey string"
    frame = spark.createDataFrame(rows, f"{columns}, delayLevel int").coalesce(1)
    frame.write.format("rocketmq").options(namesrvAddr=cluster.nameserver, topic=topic).mode("append").save()
    options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    with java.push_consumer(
        cluster.nameserver, f"{topic}-java", [Subscription(topic=topic)], options=options
    ) as consumer:
        found = {each.body: each for each in consumer.received(len(rows), timeout_ms=60_000)}
    assert sorted(found) == [b"bare", b"later", b"plain", b"sharded"]
    plain, bare, sharded, later = (found[row[0]] for row in rows)
    assert (plain.keys, plain.tags, plain.flag) == ("k1 k2", "red", 7)
    assert plain.properties["color"] == "blue"
    assert plain.properties["size"] == "9"
    assert (bare.keys, bare.tags, bare.flag) == (None, None, 0)
    assert sharded.properties["__SHARDINGKEY"] == "customer-1"
    assert (later.keys, later.tags, later.topic) == ("k4", "slow", topic)
    assert later.properties["why"] == "wait"
    assert later.properties["DELAY"] == "1"
    assert later.stored_at_ms - later.born_at_ms >= LEVEL_1_MS - CLOCK_SLACK_MS
    ids = [each.unique_id for each in found.values()]
    assert len(set(ids)) == len(rows)
    assert [each.msg_id for each in found.values()] == ids

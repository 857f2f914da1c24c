"""Where a new group starts once a topic has lost its first messages: only then does the client's own choice count.

RocketMQ: while a queue still has its first message in memory the broker answers 0 for a group without offsets, so the
client never comes to ask for the time or the end (`push_new_group_from_timestamp` in `scenarios.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.store.settings import StoreSettings
from kappamq.testing.cluster import ClusterAddresses, start_cluster
from tests.interop.conftest import skip_loudly
from tests.interop.harness import JavaClient, Outgoing, Subscription
from tests.interop.rocketmq import Cluster, Unreachable
from tests.interop.rocketmq import start_cluster as start_rocketmq
from tests.interop.scenarios import numbered
from tests.interop.support import (
    FROM_FIRST,
    FROM_LAST,
    AnyCluster,
    await_messages,
    await_queues,
    eventually,
    fresh,
    queues_of,
    topic_with_admin,
)

SEGMENT_BYTES = 1024 * 1024
# Longer than the three segments that our broker keeps, in messages of which no segment holds more than three.
FILLERS = 16
FILLER_BYTES = 300 * 1024
# RocketMQ looks for files to delete for the first time a minute after its start.
FORGOTTEN_SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def forgetful_cluster() -> Iterator[ClusterAddresses]:
    """Our cluster with a log of three short segments."""
    store = StoreSettings(
        segment_bytes=SEGMENT_BYTES,
        queue_segment_bytes=600_000,
        index_slots=1000,
        index_entries=4000,
        log_bytes_max=3 * SEGMENT_BYTES,
        disk_delete_ratio=0.97,
        disk_force_ratio=0.98,
        disk_full_ratio=0.99,
    )
    with start_cluster(settings=BrokerSettings(name="template", store=store, retention_seconds=0.2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def forgetful_rocketmq() -> Iterator[Cluster]:
    """The real broker, which deletes every full segment at any hour."""
    settings = {
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        "fileReservedTime": "0",
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
        "cleanResourceInterval": "1000",
        "deleteCommitLogFilesInterval": "10",
        "maxMessageSize": str(SEGMENT_BYTES // 2),
    }
    try:
        running = start_rocketmq(settings=settings)
        cluster = running.__enter__()
    except Unreachable as missing:
        skip_loudly(missing)
        raise
    try:
        yield cluster
    finally:
        running.__exit__(None, None, None)


def new_groups_choose_their_start(java: JavaClient, cluster: AnyCluster) -> None:
    """By time: exactly what was stored at that second or later. At the end: only what comes. First: all there is."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        [queue] = queues_of(admin, topic)
        for _ in range(FILLERS):
            producer.send(Outgoing(topic=topic, keys="filler", body=os.urandom(FILLER_BYTES)))
        eventually(lambda: admin.min_offset(queue), lambda offset: offset > 0, seconds_max=FORGOTTEN_SECONDS_MAX)
        old = producer.send(*numbered(topic, 3))
        assert old[-1].offset_id is not None
        # The client knows whole seconds only, in local time.
        second = admin.view(topic, old[-1].offset_id).stored_at_ms // 1000 + 1
        eventually(lambda: int(time.time() * 1000), lambda now_ms: now_ms > second * 1000)
        new = producer.send(*(Outgoing(topic=topic, keys=f"new{n}") for n in range(3)))
        eventually(lambda: admin.max_offset(queue), lambda offset: offset == new[-1].queue_offset + 1)
        by_time: dict[str, object] = {
            "consumeFromWhere": "CONSUME_FROM_TIMESTAMP",
            "consumeTimestamp": time.strftime("%Y%m%d%H%M%S", time.localtime(second)),
        }
        here = [Subscription(topic=topic)]
        with (
            java.push_consumer(cluster.nameserver, fresh("time"), here, options=by_time) as timed,
            java.push_consumer(cluster.nameserver, fresh("last"), here, options=FROM_LAST) as last,
            java.push_consumer(cluster.nameserver, fresh("first"), here, options=FROM_FIRST) as first,
        ):
            for consumer in (timed, last, first):
                await_queues(consumer, topic, 1)
            # A consumer that works on a queue has settled where it starts.
            [late] = producer.send(Outgoing(topic=topic, keys="late"))
            # Many threads consume: which of them notes its message first is left to chance.
            assert sorted(each.keys or "" for each in await_messages(timed, 4)) == ["late", "new0", "new1", "new2"]
            assert [each.keys for each in await_messages(last, 1)] == ["late"]
            eventually(first.received, lambda got: any(each.keys == "late" for each in got))
            offsets = sorted(each.queue_offset for each in first.received())
            assert 0 < offsets[0] <= old[0].queue_offset
            assert offsets == list(range(offsets[0], late.queue_offset + 1))
            assert (len(timed.received()), len(last.received())) == (4, 1)


def test_new_groups_choose_their_start_on_kappamq(java_client: JavaClient, forgetful_cluster: ClusterAddresses) -> None:
    new_groups_choose_their_start(java_client, forgetful_cluster)


@pytest.mark.oracle
def test_new_groups_choose_their_start_on_rocketmq(java_client: JavaClient, forgetful_rocketmq: Cluster) -> None:
    new_groups_choose_their_start(java_client, forgetful_rocketmq)

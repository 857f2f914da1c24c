"""Our administration against the real RocketMQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TypeVar

import pytest

from kappamq.admin.admin import Admin
from kappamq.admin.values import ProducerConnection
from kappamq.errors import GroupNotFound, NotFound, TopicNotFound, UsageError
from tests.interop.harness import JavaClient, Outgoing, Subscription
from tests.interop.rocketmq import Cluster
from tests.interop.support import FROM_FIRST, await_messages, fresh

T = TypeVar("T")


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    name = "rocketmq_cluster" if request.param == "5.5.0" else "rocketmq_497_cluster"
    cluster: Cluster = request.getfixturevalue(name)
    return cluster


def administer(cluster: Cluster, action: Callable[[Admin], Awaitable[T]]) -> T:
    async def run() -> T:
        async with asyncio.timeout(120), Admin(cluster.nameserver) as admin:
            return await action(admin)

    return asyncio.run(run())


def test_a_topic_from_creation_to_deletion(cluster: Cluster) -> None:
    topic = fresh("topic")

    async def action(admin: Admin) -> None:
        with pytest.raises(TopicNotFound):
            await admin.topics.route(topic)
        route = await admin.topics.create(topic, queues=3)
        assert [(queues.broker, queues.write_queues) for queues in route.queues] == [(cluster.broker_name, 3)]
        names = await admin.topics.names()
        assert topic in names
        assert not {"TBW102", cluster.cluster_name, cluster.broker_name, "SCHEDULE_TOPIC_XXXX"} & set(names)
        assert {topic, "TBW102"} <= set(await admin.topics.names(include_system=True))
        assert topic in await admin.topics.names(cluster=cluster.cluster_name)
        view = await admin.topics.show(topic)
        assert [(each.queue.queue_id, each.start, each.end) for each in view.queues] == [
            (0, 0, 0),
            (1, 0, 0),
            (2, 0, 0),
        ]
        assert view.groups == ()
        if cluster.version != "4.9.7":
            assert view.configs[cluster.broker_name].write_queue_nums == 3
        changed = await admin.topics.create(topic, queues=5, permission=4)
        assert (changed.queues[0].write_queues, changed.queues[0].permission) == (5, 4)
        await admin.topics.delete(topic)
        with pytest.raises(TopicNotFound):
            await admin.topics.route(topic)
        with pytest.raises(TopicNotFound):
            await admin.topics.delete(topic)

    administer(cluster, action)


def test_a_group_that_consumed(cluster: Cluster, java_client_550: JavaClient) -> None:
    topic, group = fresh("topic"), fresh("group")
    administer(cluster, lambda admin: admin.topics.create(topic, queues=2))
    with java_client_550.producer(cluster.nameserver) as producer:
        sent = producer.send(*(Outgoing(topic=topic, keys=f"key{n}", body=b"x") for n in range(10)))
        with java_client_550.push_consumer(
            cluster.nameserver, group, [Subscription(topic=topic, expression="*")], options=FROM_FIRST
        ) as consumer:
            await_messages(consumer, 10)
            online = administer(cluster, lambda admin: admin.groups.members(group))
            assert len(online.connections) == 1
            assert online.subscriptions[topic] == "*"
            assert online.message_model == "CLUSTERING"

    async def action(admin: Admin) -> None:
        async with asyncio.timeout(90):
            while (await admin.groups.progress(group, topic)).lag:
                await asyncio.sleep(0.1)
            # RocketMQ notices on its own time that the consumer has gone.
            while (await admin.groups.members(group)).is_online:
                await asyncio.sleep(0.1)
        assert group in await admin.groups.names()
        [summary] = [each for each in await admin.groups.overview() if each.name == group]
        assert (summary.lag, summary.members, summary.topics) == (0, 0, (topic,))
        view = await admin.groups.show(group)
        assert view.configs[cluster.broker_name].group_name == group
        assert (await admin.topics.show(topic)).groups == (group,)
        assert (await admin.topics.show(topic)).message_count == 10
        resets = await admin.groups.reset(group, topic, "first")
        assert {(each.queue.queue_id, each.committed_offset) for each in resets} == {(0, 0), (1, 0)}
        assert (await admin.groups.progress(group, topic)).lag == 10
        await admin.groups.reset(group, topic, "last")
        assert (await admin.groups.progress(group, topic)).lag == 0
        await admin.groups.reset(group, topic, datetime.now() - timedelta(hours=1))
        assert (await admin.groups.progress(group, topic)).lag == 10
        [one] = await admin.messages.find(topic, "key3")
        assert one.offset_id == sent[3].offset_id
        assert (await admin.messages.show(one.offset_id)).keys == ("key3",)
        assert sent[3].unique_id is not None
        assert (await admin.messages.show(sent[3].unique_id, topic=topic)).keys == ("key3",)
        with pytest.raises(UsageError, match="--topic"):
            await admin.messages.show(sent[3].unique_id)
        with pytest.raises(NotFound):
            await admin.messages.show(sent[3].unique_id[:-4] + "FFFF", topic=topic)
        await admin.groups.delete(group)
        assert group not in await admin.groups.names()
        with pytest.raises(GroupNotFound):
            await admin.groups.show(fresh("never"))

    administer(cluster, action)


def test_brokers(cluster: Cluster) -> None:
    async def action(admin: Admin) -> None:
        [view] = await admin.brokers.overview()
        assert (view.cluster, view.name, view.broker_id) == (cluster.cluster_name, cluster.broker_name, 0)
        assert view.address == cluster.broker_address
        assert view.fault is None
        assert view.version.startswith("V")
        assert 0 < view.disk_ratio <= 1
        settings = await admin.brokers.settings(cluster.broker_address)
        assert settings["brokerName"] == cluster.broker_name
        await admin.brokers.change_settings(cluster.broker_address, {"longPollingEnable": "true"})
        assert await admin.brokers.stop_writes(cluster.broker_name) > 0
        assert await admin.brokers.allow_writes(cluster.broker_name) > 0
        with pytest.raises(NotFound, match="nobody"):
            await admin.brokers.stop_writes("nobody")
        with pytest.raises(NotFound, match="known are"):
            await admin.brokers.overview("elsewhere")

    administer(cluster, action)


def _producers(cluster: Cluster) -> list[ProducerConnection]:
    return administer(cluster, lambda admin: admin.brokers.producers(cluster.broker_address))


def test_producers(cluster: Cluster, java_client_550: JavaClient) -> None:
    topic = fresh("topic")
    administer(cluster, lambda admin: admin.topics.create(topic, queues=1))
    with java_client_550.producer(cluster.nameserver) as producer:
        producer.send(Outgoing(topic=topic))
        deadline = time.monotonic() + 60
        # The broker knows a producer by its heartbeat, which may come a little after its first message.
        while not any(each.language == "JAVA" for each in _producers(cluster)):
            assert time.monotonic() < deadline, "the Java producer is not known"
            time.sleep(0.2)

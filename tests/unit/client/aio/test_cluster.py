"""The connection to a cluster: routes, heartbeats, calls."""

from __future__ import annotations

import pytest

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.routes import parse_addresses
from kappamq.client.settings import ClusterSettings
from kappamq.errors import ConfigError, ConnectFailed, TopicNotFound, TransportError, UsageError
from kappamq.model.message import Message, Queue
from kappamq.wire.bodies import decode_heartbeat
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.client.aio.fake_cluster import FakeCluster, close_connection, eventually, ignore


def test_name_server_addresses() -> None:
    assert parse_addresses("a:1;b:2; ") == ("a:1", "b:2")
    assert parse_addresses(["http://a:1"]) == ("a:1",)
    with pytest.raises(ConfigError):
        parse_addresses("")
    with pytest.raises(UsageError):
        parse_addresses("nonsense")


async def test_the_next_name_server_is_asked_when_one_is_gone() -> None:
    async with FakeCluster() as fake, Cluster(["127.0.0.1:1", fake.nameserver]) as cluster:
        assert len(await cluster.queues_of("orders")) == 2
    async with Cluster("127.0.0.1:1") as cluster:
        with pytest.raises(ConnectFailed):
            await cluster.queues_of("orders")


async def test_a_known_route_survives_a_name_server_that_forgot() -> None:
    async with FakeCluster() as fake, Cluster(fake.nameserver) as cluster:
        await cluster.queues_of("orders")
        fake.missing_topics |= {"orders", "other"}
        assert len(await cluster.queues_of("orders")) == 2
        with pytest.raises(TopicNotFound):
            await cluster.queues_of("other")


async def test_heartbeats_go_on_and_come_first_on_a_new_connection() -> None:
    settings = ClusterSettings(heartbeat_interval_ms=30, instance="me")
    async with (
        FakeCluster() as fake,
        Cluster(fake.nameserver, settings=settings) as cluster,
        Producer(cluster=cluster, group="p") as producer,
    ):
        await producer.send(Message("orders", b"x"))
        assert fake.broker.requests[0].code == RequestCode.HEART_BEAT
        await eventually(lambda: len(fake.broker.requests_of(RequestCode.HEART_BEAT)) >= 3)
        heartbeat = decode_heartbeat(fake.broker.requests[0].body)
        assert heartbeat.client_id.endswith("@me")
        assert heartbeat.producer_groups == ("p",)
        fake.broker.script(RequestCode.SEND_MESSAGE_V2, close_connection)
        seen = len(fake.broker.requests)
        await producer.send(Message("orders", b"y"))
        codes = [request.code for request in fake.broker.requests[seen:]]
        after_loss = codes[codes.index(RequestCode.SEND_MESSAGE_V2) + 1 :]
        assert after_loss[0] == RequestCode.HEART_BEAT


async def test_a_broker_that_does_not_answer_heartbeats_gets_a_new_connection() -> None:
    settings = ClusterSettings(heartbeat_interval_ms=50, call_timeout_ms=500)
    async with (
        FakeCluster() as fake,
        Cluster(fake.nameserver, settings=settings) as cluster,
        Producer(cluster=cluster, group="p") as producer,
    ):
        await producer.send(Message("orders", b"x"))
        connection = cluster.dialer.open_connection(fake.broker.address)
        fake.broker.script(RequestCode.HEART_BEAT, *[ignore] * 3)
        await eventually(lambda: connection is not None and not connection.is_open)
        assert (await producer.send(Message("orders", b"x"))).is_ok


async def test_groups_are_unique_within_a_client() -> None:
    async with FakeCluster() as fake, Cluster(fake.nameserver) as cluster, Producer(cluster=cluster, group="p"):
        with pytest.raises(UsageError, match="created before"):
            await Producer(cluster=cluster, group="p").open()


async def test_a_server_that_goes_away_is_asked_again() -> None:
    async with FakeCluster() as fake, Cluster(fake.nameserver) as cluster:
        (queue, *_) = await cluster.queues_of("orders")
        fake.broker.script(RequestCode.GET_MAX_OFFSET, ResponseCode.GO_AWAY)
        assert await cluster.max_offset(queue) == 0
        assert len(fake.broker.requests_of(RequestCode.GET_MAX_OFFSET)) == 2


async def test_a_broker_nobody_knows() -> None:
    async with FakeCluster() as fake, Cluster(fake.nameserver) as cluster:
        with pytest.raises(TransportError, match="has no master now"):
            await cluster.max_offset(Queue("orders", "elsewhere", 0))


async def test_calls_on_messages() -> None:
    async with FakeCluster(queues=1) as fake, Cluster(fake.nameserver) as cluster:
        fake.broker.store("orders", 0, b"x", "KEYS\x01k\x02")
        (queue,) = await cluster.queues_of("orders")
        (message,) = await cluster.pull(queue, 0, group="g")
        assert (message.body, message.keys, message.queue) == (b"x", ("k",), queue)
        await cluster.commit_offset(queue, "g", 1)
        assert await cluster.committed_offset(queue, "g") == 1

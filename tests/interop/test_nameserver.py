"""Our name server between a real broker, real clients and the real administration tool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest

from kappamq.model import fastjson
from kappamq.nameserver.app import NameServer, NameServerSettings
from tests.interop.conftest import skip_loudly
from tests.interop.harness import JavaClient, Outgoing, Subscription
from tests.interop.mqadmin import MqAdmin
from tests.interop.rocketmq import Broker, Unreachable, await_registered
from tests.interop.support import FROM_FIRST, await_messages, bodies, eventually, fresh, has_route, make_topic

START_SECONDS_MAX = 30.0
# Far less than the two minutes after which a silent broker is forgotten.
AT_ONCE_SECONDS_MAX = 30.0


class OurNameServer:
    """Our name server on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._server: NameServer | None = None
        self._thread = threading.Thread(target=self._run, name="our name server")

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with NameServer(NameServerSettings(listen_port=0)) as server:
            self._server = server
            self.address = server.address
            self._ready.set()
            await server.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS_MAX), "the name server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(START_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """A real broker registered at our name server."""

    nameserver: str
    broker: Broker


@pytest.fixture(scope="module")
def mixed() -> Iterator[MixedCluster]:
    with OurNameServer() as nameserver:
        try:
            broker = Broker(nameserver.address)
        except Unreachable as missing:
            skip_loudly(missing)
            raise
        try:
            await_registered(nameserver.address, broker.address)
            yield MixedCluster(nameserver.address, broker)
        finally:
            broker.kill()


@pytest.fixture(scope="module")
def admin(mixed: MixedCluster) -> Iterator[MqAdmin]:
    with MqAdmin(mixed.nameserver) as admin:
        yield admin


def test_java_clients_find_a_real_broker_through_it(java_client: JavaClient, mixed: MixedCluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    with java_client.admin(mixed.nameserver) as admin:
        make_topic(admin, topic, queues=2)
        route = admin.route(topic)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": mixed.broker.address}
    assert [(each["brokerName"], each["writeQueueNums"]) for each in route["queueDatas"]] == [("broker-a", 2)]
    with java_client.producer(mixed.nameserver) as producer:
        sent = producer.send(*(Outgoing(topic=topic, body=f"body {n}".encode()) for n in range(6)))
        assert {each.status for each in sent} == {"SEND_OK"}
        subscription = Subscription(topic=topic)
        with java_client.push_consumer(mixed.nameserver, group, [subscription], options=FROM_FIRST) as consumer:
            assert bodies(await_messages(consumer, 6)) == [f"body {n}".encode() for n in range(6)]


def test_a_topic_that_a_send_creates_gets_a_route(java_client: JavaClient, mixed: MixedCluster) -> None:
    topic = fresh("automatic")
    with java_client.producer(mixed.nameserver) as producer, java_client.admin(mixed.nameserver) as admin:
        [sent] = producer.send(Outgoing(topic=topic))
        assert sent.status == "SEND_OK"
        eventually(lambda: has_route(admin, topic), bool)


def test_mqadmin_reads_and_changes_topics(mixed: MixedCluster, admin: MqAdmin) -> None:
    topic = fresh("topic")
    created = admin.run("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "3", "-w", "3")
    assert f"create topic to {mixed.broker.address} success." in created
    assert topic in admin.run("topicList").split()
    route = eventually(lambda: admin.run("topicRoute", "-t", topic), lambda text: '"readQueueNums"' in text)
    document = fastjson.loads(route[route.index("{") : route.rindex("}") + 1])
    assert document["queueDatas"][0]["readQueueNums"] == 3
    deleted = admin.run("deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert "success" in deleted
    assert topic not in admin.run("topicList").split()


def test_mqadmin_lists_the_cluster(mixed: MixedCluster, admin: MqAdmin) -> None:
    lines = admin.run("clusterList").splitlines()
    [row] = [line.split() for line in lines if line.startswith("DefaultCluster")]
    assert row[:4] == ["DefaultCluster", "broker-a", "0", mixed.broker.address]


def test_mqadmin_changes_permissions_settings_and_keys(admin: MqAdmin) -> None:
    assert "OK" in admin.run("wipeWritePerm", "-b", "broker-a")
    assert "OK" in admin.run("addWritePerm", "-b", "broker-a")
    assert "success" in admin.run("updateKvConfig", "-s", "ns", "-k", "key", "-v", "value")
    assert "success" in admin.run("deleteKvConfig", "-s", "ns", "-k", "key")
    assert "success" in admin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    shown = admin.run("getNamesrvConfig")
    assert "orderMessageEnable" in shown
    assert "success" in admin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")


def test_a_killed_broker_leaves_the_routes_at_once(mixed: MixedCluster, java_client_550: JavaClient) -> None:
    """Runs on a second broker set, so that the others keep theirs."""
    second = Broker(mixed.nameserver, name="broker-b")
    try:
        with java_client_550.admin(mixed.nameserver) as admin:
            await_registered(mixed.nameserver, second.address)
            assert has_route(admin, "broker-b")
            second.kill()
            eventually(lambda: has_route(admin, "broker-b"), lambda found: not found, seconds_max=AT_ONCE_SECONDS_MAX)
            assert has_route(admin, "broker-a")
    finally:
        second.kill()


def test_a_real_follower_learns_its_master(mixed: MixedCluster, admin: MqAdmin) -> None:
    follower = Broker(mixed.nameserver, broker_id=1)
    try:
        await_registered(mixed.nameserver, follower.address)
        text = admin.run("topicRoute", "-t", "broker-a")
        assert mixed.broker.address in text
        assert follower.address in text
    finally:
        follower.kill()

"""Which brokers there are, and what happens when there are none, several, or broken ones."""

import asyncio

import pytest

from kappamq.admin.admin import Admin
from kappamq.admin.reach import Reach
from kappamq.client.aio.cluster import Cluster
from kappamq.errors import NotFound, Refused, TransportError, UsageError
from kappamq.nameserver.app import NameServer, NameServerSettings
from kappamq.wire.headers import TopicStatsRequest
from tests.unit.admin.scripted import scripted_cluster


def test_no_broker_says_how_to_start_one() -> None:
    async def scenario() -> None:
        settings = NameServerSettings(listen_port=0)
        async with asyncio.timeout(30), NameServer(settings) as server, Admin(server.address) as admin:
            with pytest.raises(NotFound, match=f"kappamq broker --nameserver {server.address}"):
                await admin.brokers.overview()

    asyncio.run(scenario())


def test_no_name_server_is_a_transport_error() -> None:
    async def scenario() -> None:
        async with NameServer(NameServerSettings(listen_port=0)) as server:
            address = server.address
        async with asyncio.timeout(30), Admin(address) as admin:
            with pytest.raises(TransportError, match=address):
                await admin.brokers.overview()

    asyncio.run(scenario())


def test_several_clusters_need_a_choice() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1@east", "b2@west") as (admin, _):
            with pytest.raises(UsageError, match=r"east, west.*--cluster"):
                await admin.topics.create("new")
            with pytest.raises(NotFound, match="known are east, west"):
                await admin.topics.create("new", cluster="north")

    asyncio.run(scenario())


def test_calls_are_made_to_every_broker_and_failures_surface() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2") as (_, brokers), Cluster(brokers[0].nameserver) as cluster:
            reach = Reach(cluster)
            masters = await reach.masters()
            assert masters == {broker.name: broker.address for broker in brokers}
            brokers[0].answers[202] = lambda request: request.reply(body=b"{}")
            brokers[1].answers[202] = lambda request: request.reply(1, "broken")
            with pytest.raises(Refused, match="broken"):
                await reach.ask_each(masters, TopicStatsRequest(topic="t"))
            brokers[1].answers[202] = brokers[0].answers[202]
            assert set(await reach.ask_each(masters, TopicStatsRequest(topic="t"))) == {"b1", "b2"}

    asyncio.run(scenario())

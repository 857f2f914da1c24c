"""Groups, against brokers that answer as told."""

import asyncio
from datetime import UTC, datetime

import pytest

from kappamq.admin.groups import is_system_group
from kappamq.errors import GroupNotFound, InvalidName, Refused
from kappamq.model.config import DataVersion, GroupConfig, TopicConfig
from kappamq.model.subscription import ClientConnection, GroupConnections
from kappamq.wire.bodies import encode_group_configs, encode_group_connections
from kappamq.wire.codes import ResponseCode
from tests.unit.admin.scripted import ScriptedBroker, scripted_cluster


def knows_groups(broker: ScriptedBroker, *names: str) -> None:
    configs = [GroupConfig(group_name=name) for name in names]
    broker.answers[201] = lambda request: request.reply(body=encode_group_configs(configs, DataVersion()))
    broker.answers[203] = lambda request: request.reply(ResponseCode.CONSUMER_NOT_ONLINE, "not online")
    broker.answers[208] = lambda request: request.reply(body=b'{"offsetTable":{}}')


def lag_table(broker: str, committed: int) -> bytes:
    return (
        f'{{"consumeTps":1.5,"offsetTable":{{{{"brokerName":"{broker}","queueId":0,"topic":"orders"}}:'
        f'{{"brokerOffset":10,"consumerOffset":{committed},"pullOffset":8,"lastTimestamp":5}}}}}}'
    ).encode()


def test_progress_adds_up_over_brokers() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2") as (admin, brokers):
            for broker, committed in zip(brokers, (4, 7)):
                knows_groups(broker, "g", "TOOLS_CONSUMER")
                broker.always(208, lag_table(broker.name, committed))
            progress = await admin.groups.progress("g")
            assert [(each.queue.broker, each.lag, each.inflight) for each in progress.queues] == [
                ("b1", 6, 4),
                ("b2", 3, 1),
            ]
            assert (progress.lag, progress.per_second, progress.topics) == (9, 3.0, ("orders",))
            assert await admin.groups.names() == ["g"]
            assert "TOOLS_CONSUMER" in await admin.groups.names(include_system=True)
            [summary] = await admin.groups.overview()
            assert (summary.name, summary.members, summary.lag, summary.topics) == ("g", 0, 9, ("orders",))

    asyncio.run(scenario())


def test_members_of_all_brokers_count_once() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2", "b3") as (admin, brokers):
            for broker in brokers:
                knows_groups(broker, "g")
            for broker in brokers[:2]:
                group = GroupConnections(
                    connections=(ClientConnection(client_id="c@1", address="127.0.0.1:5", language="JAVA"),),
                    subscriptions={"orders": {"subString": "a || b"}},
                )
                broker.always(203, encode_group_connections(group))
            view = await admin.groups.show("g")
            assert [each.client_id for each in view.members.connections] == ["c@1"]
            assert view.members.subscriptions == {"orders": "a || b"}
            assert view.members.is_online
            assert set(view.configs) == {"b1", "b2", "b3"}

    asyncio.run(scenario())


def test_an_unknown_group_is_not_found() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            knows_groups(broker)
            broker.answers[208] = lambda request: request.reply(26, "no group")
            with pytest.raises(GroupNotFound, match="group list"):
                await admin.groups.show("nope")
            with pytest.raises(GroupNotFound):
                await admin.groups.delete("nope")

    asyncio.run(scenario())


def test_create_and_delete() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            broker.answers[200] = lambda request: request.reply()
            await admin.groups.create(GroupConfig(group_name="g", retry_max_times=3))
            assert b'"retryMaxTimes":3' in broker.asked[-1].body
            with pytest.raises(InvalidName):
                await admin.groups.create(GroupConfig(group_name="no blanks"))
            knows_groups(broker, "g")
            broker.answers[207] = broker.answers[215] = lambda request: request.reply()
            await admin.groups.delete("g")
            deleted = [request.fields for request in broker.asked if request.code in (207, 215)]
            assert deleted == [
                {"groupName": "g", "cleanOffset": "true", "removeOffset": "true"},
                {"topic": "%RETRY%g"},
                {"topic": "%DLQ%g"},
            ]

    asyncio.run(scenario())


def test_reset_lets_the_broker_do_it() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            table = b'{"offsetTable":{{"brokerName":"b1","queueId":0,"topic":"orders"}:7}}'
            broker.answers[222] = lambda request: request.reply(body=table)
            [reset] = await admin.groups.reset("g", "orders", "first")
            assert (reset.queue.queue_id, reset.committed_offset) == (0, 7)
            await admin.groups.reset("g", "orders", "last")
            await admin.groups.reset("g", "orders", datetime(2026, 1, 1, tzinfo=UTC))
            assert [request.fields["timestamp"] for request in broker.asked] == ["0", "-1", "1767225600000"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("to", "code"), [("first", 31), ("last", 30), (datetime(2026, 1, 1), 29)])
def test_reset_commits_itself_when_an_old_broker_knows_only_online_groups(to: object, code: int) -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            await broker.register(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
            broker.answers[222] = lambda request: request.reply(ResponseCode.CONSUMER_NOT_ONLINE, "offline")
            broker.answers[code] = lambda request: request.reply(fields={"offset": "3"})
            broker.answers[15] = lambda request: request.reply()
            resets = await admin.groups.reset("g", "orders", to)  # type: ignore[arg-type]
            assert [(each.queue.queue_id, each.committed_offset) for each in resets] == [(0, 3), (1, 3)]
            commits = [request.fields["commitOffset"] for request in broker.asked if request.code == 15]
            assert commits == ["3", "3"]

    asyncio.run(scenario())


def test_reset_passes_other_refusals_on() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            broker.answers[222] = lambda request: request.reply(1, "no")
            with pytest.raises(Refused, match="no"):
                await admin.groups.reset("g", "orders", "last")

    asyncio.run(scenario())


def test_system_groups_are_told_apart() -> None:
    assert is_system_group("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_x")
    assert not is_system_group("g")

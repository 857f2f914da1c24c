"""Topics, against brokers that answer as told."""

import asyncio

import pytest

from kappamq.admin import topics as topics_module
from kappamq.admin.topics import is_system_topic
from kappamq.errors import CallTimeout, InvalidName, Refused, TopicNotFound, UsageError
from kappamq.model.config import TopicConfig
from kappamq.wire.bodies import encode_object
from kappamq.wire.command import Command
from tests.unit.admin.scripted import ScriptedBroker, scripted_cluster


def accepts_topics(broker: ScriptedBroker, tasks: asyncio.TaskGroup) -> None:
    """Let a broker create topics and register them a moment later, as real ones do."""

    def create(request: Command) -> Command:
        config = TopicConfig(
            topic_name=request.fields["topic"],
            read_queue_nums=int(request.fields["readQueueNums"]),
            write_queue_nums=int(request.fields["writeQueueNums"]),
            perm=int(request.fields["perm"]),
        )
        tasks.create_task(broker.register(config))
        return request.reply()

    broker.answers[17] = create
    broker.answers[215] = lambda request: request.reply()


def test_create_reaches_every_master_and_waits_for_the_route() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2") as (admin, brokers), asyncio.TaskGroup() as tasks:
            for broker in brokers:
                accepts_topics(broker, tasks)
            route = await admin.topics.create("new", queues=3, read_queues=5, attributes={"message.type": "FIFO"})
            assert {(queues.broker, queues.read_queues, queues.write_queues) for queues in route.queues} == {
                ("b1", 5, 3),
                ("b2", 5, 3),
            }
            assert [broker.asked[-1].fields["attributes"] for broker in brokers] == ["+message.type=FIFO"] * 2
            assert await admin.topics.names() == ["new", "orders"]
            await admin.topics.delete("new")
            assert [broker.codes()[-1] for broker in brokers] == [215, 215]
            assert await admin.topics.names() == ["orders"]
            with pytest.raises(TopicNotFound):
                await admin.topics.delete("new")

    asyncio.run(scenario())


def test_a_route_that_does_not_come_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "ROUTE_SECONDS_MAX", 0.1)

    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            broker.answers[17] = lambda request: request.reply()
            with pytest.raises(CallTimeout, match="was created, but its route"):
                await admin.topics.create("new")

    asyncio.run(scenario())


def test_wrong_names_and_counts_never_reach_a_broker() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            with pytest.raises(InvalidName):
                await admin.topics.create("no blanks")
            with pytest.raises(UsageError, match="0 queues"):
                await admin.topics.create("new", queues=0)
            assert broker.asked == []

    asyncio.run(scenario())


def test_show_gathers_what_brokers_say() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            table = b'{"offsetTable":{{"brokerName":"b1","queueId":1,"topic":"orders"}:{"lastUpdateTimestamp":0,'
            table += b'"maxOffset":0,"minOffset":0},{"brokerName":"b1","queueId":0,"topic":"orders"}:'
            table += b'{"lastUpdateTimestamp":99,"maxOffset":7,"minOffset":2}}}'
            broker.answers[202] = lambda request: request.reply(body=table)
            broker.answers[300] = lambda request: request.reply(body=b'{"groupList":["g2","g1"]}')
            config = TopicConfig(topic_name="orders", order=True)
            broker.answers[351] = lambda request: request.reply(body=encode_object(config))
            view = await admin.topics.show("orders")
            assert [(each.queue.queue_id, each.start, each.end, each.updated_at_ms) for each in view.queues] == [
                (0, 2, 7, 99),
                (1, 0, 0, 0),
            ]
            assert view.message_count == 5
            assert view.groups == ("g1", "g2") == await admin.topics.groups("orders")
            assert view.configs == {"b1": config}
            assert await admin.topics.queues("orders") == view.queues
            del broker.answers[351]
            assert (await admin.topics.show("orders")).configs == {}
            broker.answers[351] = lambda request: request.reply(1, "broken")
            with pytest.raises(Refused, match="broken"):
                await admin.topics.show("orders")

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g", "rmq_sys_x", "TBW102", "SCHEDULE_TOPIC_XXXX", "c_REPLY_TOPIC"])
def test_system_topics_are_told_apart(name: str) -> None:
    assert is_system_topic(name)
    assert not is_system_topic("orders")

"""kill -9 right after the answer to an administrator: topics and groups are as the answer said."""

import asyncio
from pathlib import Path

from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import decode_group_configs, decode_topic_configs
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from kappamq.wire.headers import CreateTopicRequest, DeleteGroupRequest, DeleteTopicRequest
from tests.faults.test_kill_broker import Victim

CALL_MS = 30_000


async def call(dialer: Dialer, broker: Victim, command: Command) -> Command:
    reply = await dialer.call(broker.address, command, timeout_ms=CALL_MS)
    assert reply.code == 0, reply.remark
    return reply


def creation(name: str, queues: int) -> Command:
    return CreateTopicRequest(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=6).command()


def group_creation(name: str, retries: int) -> Command:
    body = f'{{"groupName":"{name}","retryMaxTimes":{retries}}}'.encode()
    return Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def test_tables_survive(tmp_path: Path) -> None:
    async def tables(dialer: Dialer, broker: Victim) -> tuple[dict[str, int], dict[str, int]]:
        reply = await call(dialer, broker, Command(code=RequestCode.GET_ALL_TOPIC_CONFIG))
        topics, _ = decode_topic_configs(reply.body)
        reply = await call(dialer, broker, Command(code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        groups, _ = decode_group_configs(reply.body)
        return (
            {name: topic.write_queue_nums for name, topic in topics.items() if name.startswith("made-")},
            {name: group.retry_max_times for name, group in groups.items() if name.startswith("made-")},
        )

    async def main() -> None:
        broker = Victim(tmp_path, "durable")
        async with Dialer() as dialer:
            await broker.start()
            await call(dialer, broker, creation("made-1", 3))
            await broker.kill()
            await broker.start()
            assert await tables(dialer, broker) == ({"made-1": 3}, {})
            await call(dialer, broker, group_creation("made-a", 5))
            await broker.kill()
            await broker.start()
            assert await tables(dialer, broker) == ({"made-1": 3}, {"made-a": 5})
            await asyncio.gather(*(call(dialer, broker, creation(f"made-{number}", 2)) for number in range(2, 20)))
            await call(dialer, broker, DeleteTopicRequest(topic="made-1").command())
            await broker.kill()
            await broker.start()
            assert await tables(dialer, broker) == ({f"made-{number}": 2 for number in range(2, 20)}, {"made-a": 5})
            await call(dialer, broker, DeleteGroupRequest(group_name="made-a").command())
            await broker.kill()
            await broker.start()
            assert (await tables(dialer, broker))[1] == {}
            await broker.kill()

    asyncio.run(main())

"""Heartbeats: what their answer promises."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest

from kappamq.broker.config_store import ConfigFile
from kappamq.broker.handlers.clients import ClientHandlers
from kappamq.broker.locks import QueueLocks
from kappamq.broker.router import Handler
from kappamq.model.subscription import ConsumerMembership, Heartbeat, Subscription
from kappamq.wire.bodies import encode_heartbeat
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from tests.unit.broker.admin_desk import Desk, Peer


class Telling:
    """Name servers that hear of new topics when the test says so."""

    def __init__(self) -> None:
        self.count = 0
        self.heard = asyncio.Event()

    async def __call__(self) -> None:
        self.count += 1
        await self.heard.wait()


def make(desk: Desk, root: Path, telling: Telling) -> Handler:
    locks = QueueLocks(clock=desk.clock, lease_seconds=60)
    handlers = ClientHandlers(
        topics=desk.topics,
        groups=desk.groups,
        members=desk.members,
        locks=locks,
        locks_file=ConfigFile(root / "locks.json", locks.as_file),
        sql_filter=True,
        wait_told=telling,
    )
    return handlers.table()[RequestCode.HEART_BEAT]


def heartbeat(*groups: str, producers: tuple[str, ...] = ()) -> Command:
    consumers = tuple(ConsumerMembership(group=group, subscriptions=(Subscription(topic="t"),)) for group in groups)
    body = encode_heartbeat(Heartbeat(client_id="c", consumers=consumers, producer_groups=producers))
    return Command(code=RequestCode.HEART_BEAT, request_id=7, body=body)


def test_a_new_group_is_answered_when_its_retry_topic_can_be_found(desk: Desk, tmp_path: Path) -> None:
    async def main() -> None:
        telling = Telling()
        work = make(desk, tmp_path, telling)(Peer().connection, heartbeat("g", "h"))
        assert isinstance(work, Coroutine)
        # The group is complete before anybody is asked to wait.
        assert desk.topics.find("%RETRY%g") is not None
        assert desk.members.consumer_ids("g") == ["c"]
        async with asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(work)
            await asyncio.sleep(0)
            assert telling.count == 1
            assert not answering.done()
            telling.heard.set()
        answer = answering.result()
        assert answer is not None
        assert (answer.code, answer.request_id) == (0, 7)

    asyncio.run(main())


@pytest.mark.parametrize("again", [heartbeat("g"), heartbeat(producers=("p",)), heartbeat("bad group")])
def test_a_heartbeat_that_makes_no_topic_is_answered_at_once(desk: Desk, tmp_path: Path, again: Command) -> None:
    telling = Telling()
    beat = make(desk, tmp_path, telling)
    desk.topics.ensure("%RETRY%g", 1)
    desk.groups.get_or_create("g")
    answer = beat(Peer().connection, again)
    assert isinstance(answer, Command)
    assert answer.code == 0
    assert telling.count == 0

"""Dead letters of a running cluster: seen, selected, and sent once more."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator

import pytest

from kappamq.admin.admin import Admin
from kappamq.admin.dead_letters import Selection
from kappamq.cli.main import run
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.core.handling import RetryLater
from kappamq.errors import TopicNotFound, UsageError
from kappamq.model.message import Message, StoredMessage
from kappamq.testing import RunningCluster, start_cluster
from tests.patience import PATIENT

ORDERS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with start_cluster() as running:
        yield running


async def kill_messages(nameserver: str, topic: str, group: str, *, count: int = ORDERS) -> None:
    """Send messages and let a group give all of them up."""
    async with Producer(nameserver, group="shop", settings=PATIENT) as producer, Admin(nameserver) as admin:
        await admin.topics.create(topic, queues=1)
        for number in range(count):
            tags = "even" if number % 2 == 0 else "odd"
            properties = {"number": str(number)}
            await producer.send(Message(topic, b"%d" % number, tags=tags, keys=f"k{number}", properties=properties))
        async with PushConsumer(nameserver, group=group, start_from="first") as consumer:
            failed: set[bytes] = set()

            @consumer.on(topic)
            async def handle(message: StoredMessage) -> None:
                failed.add(message.body)
                raise RetryLater(f"cannot use {message.body.decode()}", delay_level=-1)

            await consumer.start()
            async with asyncio.timeout(60):
                while len(failed) < count or len(await letters(admin, group)) < count:
                    await asyncio.sleep(0.05)


async def letters(admin: Admin, group: str) -> list[str]:
    counts = {each.group: each.count for each in await admin.dead_letters.overview()}
    return ["letter"] * counts.get(group, 0)


async def read(nameserver: str, topic: str, count: int) -> list[StoredMessage]:
    """The first messages of a topic, and a look whether there are more."""
    async with LitePullConsumer(nameserver, group=f"reader-{topic}-{count}", topics=[topic], start_from="first") as it:
        found: list[StoredMessage] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += await it.poll(timeout=1)
        return found + await it.poll(timeout=0.2)


def test_dead_letters_are_listed_with_their_causes(cluster: RunningCluster) -> None:
    async def scenario() -> None:
        await kill_messages(cluster.nameserver, "seen", "seers")
        async with Admin(cluster.nameserver) as admin:
            [summary] = [each for each in await admin.dead_letters.overview() if each.group == "seers"]
            assert summary.count == ORDERS
            assert 0 < summary.oldest_at_ms <= summary.newest_at_ms
            found = [letter async for letter in admin.dead_letters.read("seers")]
            assert {letter.origin_topic for letter in found} == {"seen"}
            causes = {letter.cause for letter in found}
            assert causes == {f"RetryLater: cannot use {number}" for number in range(ORDERS)}
            [one] = [letter async for letter in admin.dead_letters.read("seers", Selection(key="k2"))]
            assert (one.message.body, one.message.retry_count) == (b"2", 1)
            origin = await admin.messages.show(str(one.origin_id))
            assert (origin.topic, origin.body) == ("seen", b"2")
            late = Selection(since_ms=summary.newest_at_ms + 1)
            assert [letter async for letter in admin.dead_letters.read("seers", late)] == []

    asyncio.run(scenario())


def test_a_redrive_sends_each_once_even_in_parts(cluster: RunningCluster) -> None:
    async def scenario() -> None:
        await kill_messages(cluster.nameserver, "parts", "partners")
        async with Admin(cluster.nameserver) as admin:
            redrive = admin.dead_letters.redrive
            dry = await redrive("partners", is_dry=True)
            assert (dry.selected, dict(dry.sent)) == (ORDERS, {"parts": ORDERS})
            odd = await redrive("partners", Selection(tag="odd"))
            assert (odd.selected, odd.skipped, odd.sent_count) == (2, 0, 2)
            steps: list[tuple[int, int]] = []
            rest = await redrive("partners", on_progress=lambda done, total: steps.append((done, total)))
            assert (rest.selected, rest.skipped, rest.sent_count) == (ORDERS, 2, 2)
            assert steps == [(number + 1, ORDERS) for number in range(ORDERS)]
            nothing = await redrive("partners")
            assert (nothing.skipped, nothing.sent_count) == (ORDERS, 0)
            forced = await redrive("partners", Selection(key="k3"), again=True)
            assert forced.sent_count == 1
        found = (await read(cluster.nameserver, "parts", 2 * ORDERS + 1))[ORDERS:]
        assert sorted(each.body for each in found) == [b"0", b"1", b"2", b"3", b"3"]
        assert len({each.message_id for each in found}) == ORDERS + 1
        first = min(found, key=lambda each: each.body)
        assert (first.tags, first.keys, first.properties["number"]) == ("even", ("k0",), "0")
        assert first.properties["KAPPA_REDRIVEN_FROM"] == "%DLQ%partners"
        assert "RETRY_TOPIC" not in first.properties

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_redrive_killed_midway_is_finished_by_the_next(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 300

    async def sent_so_far() -> int:
        async with Cluster(cluster.nameserver) as calls:
            [queue] = await calls.queues_of("killed")
            return await calls.max_offset(queue) - count

    async def wait_for_some(process: asyncio.subprocess.Process) -> None:
        while await sent_so_far() < count // 10:
            assert process.returncode is None, "the redrive ended before it could be killed"

    async def scenario() -> int:
        await kill_messages(cluster.nameserver, "killed", "victims", count=count)
        arguments = ("dlq", "redrive", "victims", "-n", cluster.nameserver)
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "kappamq", *arguments)
        try:
            async with asyncio.timeout(60):
                await wait_for_some(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        return await sent_so_far()

    before = asyncio.run(scenario())
    assert 0 < before < count
    assert run(["dlq", "redrive", "victims", "--json", "-n", cluster.nameserver]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["selected"], report["skipped"], report["sent"]) == (count, before, {"killed": count - before})
    found = asyncio.run(read(cluster.nameserver, "killed", 2 * count))[count:]
    assert sorted(int(each.body) for each in found) == list(range(count))
    assert {each.properties["KAPPA_REDRIVEN_FROM"] for each in found} == {"%DLQ%victims"}


def test_nothing_is_sent_when_a_target_does_not_exist(cluster: RunningCluster) -> None:
    async def scenario() -> None:
        await kill_messages(cluster.nameserver, "gone", "goners", count=2)
        async with Admin(cluster.nameserver) as admin:
            with pytest.raises(TopicNotFound):
                await admin.dead_letters.redrive("goners", to="no-such-topic")
            with pytest.raises(UsageError, match="where the dead letters are"):
                await admin.dead_letters.redrive("goners", to="%DLQ%goners")
            await admin.topics.delete("gone")
            with pytest.raises(TopicNotFound, match="gone"):
                await admin.dead_letters.redrive("goners")
            assert "no-such-topic" not in await admin.topics.names()
            assert "gone" not in await admin.topics.names()
            await admin.topics.create("saved", queues=1)
            assert (await admin.dead_letters.redrive("goners", to="saved")).sent == {"saved": 2}

    asyncio.run(scenario())


def test_the_commands_show_and_redrive(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(kill_messages(cluster.nameserver, "told", "tellers", count=2))

    def dlq(*arguments: str) -> str:
        assert run(["dlq", *arguments, "-n", cluster.nameserver]) == 0
        return capsys.readouterr().out

    assert any(line.split()[:2] == ["tellers", "2"] for line in dlq("list").splitlines())
    assert {"group", "count"} <= json.loads(dlq("list", "--json"))[0].keys()
    assert "cannot use 1" in dlq("show", "tellers", "--key", "k1")
    assert json.loads(dlq("show", "tellers", "--since", "-1h", "--json"))[0]["origin_topic"] == "told"
    assert "2 of 2 dead letters of tellers would be redriven" in dlq("redrive", "tellers", "--dry-run")
    assert json.loads(dlq("redrive", "tellers", "--json"))["sent"] == {"told": 2}
    assert "0 of 2 dead letters of tellers redriven, 2 left out" in dlq("redrive", "tellers")
    assert run(["dlq", "redrive", "tellers", "--to", "nowhere", "-n", cluster.nameserver]) == 1
    assert "nowhere" in capsys.readouterr().err

"""Order under stress: keys stay in order while members of an ordered group join, leave and are killed."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kappamq.admin.admin import Admin
from kappamq.broker.settings import BrokerSettings
from kappamq.client.aio.producer import Producer
from kappamq.client.settings import ProducerSettings
from kappamq.model.message import Message
from kappamq.testing.cluster import SMALL_STORE, run_cluster
from tests.e2e.order_member import LEASE_SECONDS

MESSAGES = 100_000
KEYS = 100
QUEUES = 8
TOPIC = "ordered"
SECONDS_MAX = 480
SETTINGS = replace(BrokerSettings(name="template", store=SMALL_STORE), lock_lease_seconds=LEASE_SECONDS)


@dataclass(frozen=True, slots=True)
class Note:
    """One call of a handler."""

    member: str
    queue_id: int
    queue_offset: int
    key: bytes
    number: int
    started: int
    ended: int


class Member:
    """A consumer in a process of its own."""

    def __init__(self, name: str, nameserver: str, directory: Path) -> None:
        self.name = name
        self.path = directory / name
        self.path.touch()
        script = Path(__file__).with_name("order_member.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), nameserver, TOPIC, "workers", str(self.path)], stdin=subprocess.PIPE
        )

    def notes(self) -> list[Note]:
        lines = [line.split(b" ") for line in self.path.read_bytes().splitlines()]
        return [Note(self.name, int(a), int(b), c, int(d), int(e), int(f)) for a, b, c, d, e, f in lines]

    async def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await asyncio.to_thread(self.process.wait, 60) == 0

    async def kill(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait, 60)
        assert self.process.stdin is not None
        self.process.stdin.close()


@asynccontextmanager
async def members_of(nameserver: str, directory: Path) -> AsyncIterator[list[Member]]:
    members: list[Member] = []
    try:
        yield members
    finally:
        for member in members:
            if member.process.poll() is None:
                await member.kill()


async def produce(nameserver: str) -> None:
    # Broker and producer share this process, and the machine with others: patience is not what is tested here.
    settings = ProducerSettings(send_timeout_ms=60_000, inflight_max=256)
    async with Producer(nameserver, group="p", settings=settings) as producer:
        receipts = []
        for number in range(MESSAGES):
            key = f"key{number % KEYS}"
            await producer.room()
            receipts.append(producer.send_soon(Message(TOPIC, f"{key} {number // KEYS}".encode()), sharding_key=key))
        await asyncio.gather(*receipts)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_keys_stay_in_order_and_queues_have_one_owner(tmp_path: Path) -> None:
    async def scenario() -> list[Note]:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(run_cluster(settings=SETTINGS))
            async with Admin(cluster.nameserver) as admin:
                await admin.topics.create(TOPIC, queues=QUEUES)
            members = await stack.enter_async_context(members_of(cluster.nameserver, tmp_path))

            def join(name: str) -> Member:
                members.append(Member(name, cluster.nameserver, tmp_path))
                return members[-1]

            async def handled(count: int) -> None:
                """Wait until the members have noted so many calls."""
                while sum(member.path.read_bytes().count(b"\n") for member in members) < count:
                    assert all(member.process.poll() is None or member.name in gone for member in members)
                    await asyncio.sleep(0.1)

            gone: set[str] = set()
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(produce(cluster.nameserver))
            first, killed = join("first"), join("killed")
            await handled(MESSAGES // 10)
            join("joined")
            await handled(MESSAGES * 3 // 10)
            gone.add(killed.name)
            await killed.kill()
            await handled(MESSAGES * 4 // 10)
            gone.add(first.name)
            await first.leave()
            join("last")
            await handled(MESSAGES)
            while len({(note.key, note.number) for member in members for note in member.notes()}) < MESSAGES:
                await asyncio.sleep(0.5)
            for member in members[2:]:
                gone.add(member.name)
                await member.leave()
            return [note for member in members for note in member.notes()]

    async def within_time() -> list[Note]:
        async with asyncio.timeout(SECONDS_MAX):
            return await scenario()

    notes = asyncio.run(within_time())
    check_first_deliveries(notes)
    repeated = sum(map(check_queue, by_queue(notes).values()))
    assert {note.member for note in notes} == {"first", "killed", "joined", "last"}
    print(f"deliveries {len(notes)} of {MESSAGES}, repeated after the kill {repeated}")


def by_queue(notes: list[Note]) -> dict[int, list[Note]]:
    queues: dict[int, list[Note]] = defaultdict(list)
    for note in sorted(notes, key=lambda note: note.started):
        queues[note.queue_id].append(note)
    return queues


def check_first_deliveries(notes: list[Note]) -> None:
    """Nothing is lost, and the first delivery of each number of a key comes after that of the number before."""
    first: dict[tuple[bytes, int], int] = {}
    for note in notes:
        place = (note.key, note.number)
        first[place] = min(first.get(place, note.started), note.started)
    for key in {key for key, _ in first}:
        times = [first[key, number] for number in range(MESSAGES // KEYS)]
        assert times == sorted(times)


def check_queue(notes: list[Note]) -> int:
    """One owner at a time, and no step back but after the kill. Returns how many messages came again."""
    repeated = 0
    for before, after in itertools.pairwise(notes):
        assert before.ended <= after.started, f"two at once: {before} and {after}"
        step = after.queue_offset - before.queue_offset
        if step != 1:
            assert (before.member, after.member != "killed") == ("killed", True), f"{before} then {after}"
            assert step <= 0, f"skipped: {before} then {after}"
            assert after.started - before.ended > 1_000_000_000, "the dead member's lock must have kept others out"
            repeated += 1 - step
    return repeated

"""kill -9 while messages wait: delayed, timed and transactional ones come exactly once all the same."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kappamq.errors import TransportError
from tests.e2e.raw_client import RawClient, RawClients

ROUNDS = 4
SENDERS = 4
TOPIC = "orders"
COMMIT = 8


@contextmanager
def broker_process(data: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A broker that is killed at the end, if not before."""
    script = Path(__file__).with_name("serve_broker.py")
    arguments = [str(data), "durable", str(4 * 1024 * 1024)]
    with subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the broker did not start"
            yield process, json.loads(line)["address"]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(60)


class Ledger:
    """What producers know."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()


async def produce(client: RawClient, ledger: Ledger, sender: int, round_: int) -> None:
    """Send waiting messages of all kinds until the broker is gone."""
    number = 0
    rng = random.Random(sender)
    try:
        while True:
            body = f"{round_}:{sender}:{number}".encode()
            number += 1
            ledger.sent.add(body)
            kind = rng.choice(("level", "timer", "transaction"))
            if kind == "level":
                await client.send(TOPIC, body, DELAY="1")
            elif kind == "timer":
                await client.send(TOPIC, body, TIMER_DELAY_MS=str(rng.randrange(500, 2500)))
            else:
                half = await client.send(TOPIC, body, TRAN_MSG="true", PGROUP="producers", flags=4)
                reply = await client.end(half, COMMIT)
                assert reply.code == 0, reply.remark
            ledger.acknowledged.add(body)
    except TransportError:
        return


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_waiting_messages_come_once_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    ledger = Ledger()

    async def send_until_killed(number: int, victim: subprocess.Popen[bytes], address: str) -> None:
        async with RawClients() as clients, asyncio.TaskGroup() as tasks:
            for sender in range(SENDERS):
                tasks.create_task(produce(clients.connect(address), ledger, sender, number))
            async with asyncio.timeout(60):
                while len(ledger.acknowledged) <= (number + 1) * SENDERS:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1.7 + 0.37 * number)
            victim.send_signal(signal.SIGKILL)

    for number in range(ROUNDS):
        with broker_process(tmp_path) as (victim, address):
            asyncio.run(send_until_killed(number, victim, address))

    async def look(address: str) -> Counter[bytes]:
        async with RawClients() as clients:
            client = clients.connect(address)
            found: Counter[bytes] = Counter()
            deadline = time.monotonic() + 90
            quiet_since = time.monotonic()
            # What was promised must come; then a while for what must not: a second copy.
            while not ledger.acknowledged <= set(found) or time.monotonic() - quiet_since < 4:
                assert time.monotonic() < deadline, f"missing: {sorted(ledger.acknowledged - set(found))[:5]}"
                batch = await client.pull(TOPIC, 0, sum(found.values()), wait_ms=500)
                if batch:
                    quiet_since = time.monotonic()
                found.update(message.body for message in batch)
            return found

    with broker_process(tmp_path) as (_, address):
        found = asyncio.run(look(address))
    assert len(ledger.acknowledged) > ROUNDS * SENDERS
    assert set(found) <= ledger.sent
    assert {body: count for body, count in found.items() if count != 1} == {}

"""kill -9 while producers and consumers are at work: what was acknowledged is there, what was seen stays.

The rounds build on one store directory, so that every recovery starts from what the one before left.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kappamq.errors import TransportError
from kappamq.model.record import decode_records
from kappamq.net.dialer import Dialer
from kappamq.store.check import check_store
from kappamq.testing.cluster import SMALL_STORE
from kappamq.wire.codes import ResponseCode
from kappamq.wire.headers import PullRequest, SendRequest

ROUNDS = int(os.environ.get("KAPPAMQ_KILL_ROUNDS", "15"))
QUEUES = 4
SENDERS = 6
WINDOW = 8
SEGMENT_BYTES = 4 * 1024 * 1024
TOPIC = "killed"


@dataclass
class Ledger:
    """What the outside world knows, to be compared with what a restarted broker says."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)
    verified: dict[int, int] = field(default_factory=dict)
    order: dict[tuple[int, int], int] = field(default_factory=dict)


class Victim:
    """A broker process."""

    def __init__(self, data: Path, flush: str) -> None:
        self._data = data
        self._flush = flush
        self.address = ""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        script = Path(__file__).with_name("serve_broker.py")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, script, self._data, self._flush, str(SEGMENT_BYTES), stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = await self.process.stdout.readline()
        assert line, "the broker did not start"
        self.address = json.loads(line)["address"]

    async def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


def body_of(rng: random.Random, sender: int, number: int) -> bytes:
    size = rng.choice((0, 10, 100, 1000, 5000, 60_000))
    return f"{sender}:{number}:".encode() + rng.randbytes(size)


async def produce(address: str, ledger: Ledger, sender: int, first: int, rng: random.Random) -> int:
    """Send to one queue over an own connection, until the broker dies; returns the next number."""
    async with Dialer() as dialer:
        return await produce_over(dialer, address, ledger, sender, first, rng)


async def produce_over(
    dialer: Dialer, address: str, ledger: Ledger, sender: int, first: int, rng: random.Random
) -> int:
    queue_id = sender % QUEUES
    number = first
    in_flight: set[asyncio.Future[None]] = set()
    connection = await dialer.connect(address)

    def send_one(number: int) -> asyncio.Future[None]:
        body = body_of(rng, sender, number)
        ledger.sent.add(body)
        request = SendRequest(
            producer_group="p",
            topic=TOPIC,
            queue_id=queue_id,
            born_at_ms=int(time.time() * 1000),
            default_topic_queues=QUEUES,
            properties=f"KEYS\x01k{sender}-{number}\x02",
        )
        reply = connection.begin(request.command(body=body), timeout_ms=30_000)

        async def settle() -> None:
            answer = await reply
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            ledger.acknowledged[queue_id, int(answer.fields["queueOffset"])] = body

        return asyncio.ensure_future(settle())  # noqa: TID251 - awaited below, with what it raises

    try:
        while True:
            while len(in_flight) < WINDOW:
                in_flight.add(send_one(number))
                number += 1
            await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in in_flight if task.done()]:
                task.result()
                in_flight.discard(task)
    except TransportError:
        outcomes = await asyncio.gather(*in_flight, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, TransportError) for outcome in outcomes)
        return number


async def consume(dialer: Dialer, address: str, ledger: Ledger, queue_id: int, start: int) -> None:
    """Read one queue as it grows, until the broker dies."""
    try:
        while True:
            reply = await pull(dialer, address, queue_id, start, wait_ms=1000)
            if reply is None:
                continue
            for message in decode_records(reply[1]):
                ledger.seen[queue_id, message.queue_offset] = message.body
            start = reply[0]
    except TransportError:
        return


async def pull(dialer: Dialer, address: str, queue_id: int, start: int, *, wait_ms: int) -> tuple[int, bytes] | None:
    request = PullRequest(
        group="c",
        topic=TOPIC,
        queue_id=queue_id,
        start=start,
        count_max=256,
        flags=PullRequest.SUBSCRIPTION | (PullRequest.SUSPEND if wait_ms else 0),
        suspend_ms=wait_ms,
        subscription="*",
    )
    reply = await dialer.call_raw(address, request.command(), timeout_ms=30_000)
    if reply.code == ResponseCode.SUCCESS:
        return int(reply.fields["nextBeginOffset"]), reply.body
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        await asyncio.sleep(0.01)
    return None


async def something_seen(ledger: Ledger, count: int) -> None:
    """Wait until more messages than `count` were acknowledged and read."""
    async with asyncio.timeout(60):
        while min(len(ledger.acknowledged), len(ledger.seen)) <= count:
            await asyncio.sleep(0.005)


async def verify(dialer: Dialer, address: str, ledger: Ledger, *, everything: bool) -> None:
    """Compare what the broker serves with the ledger: nothing acknowledged or seen is missing, none is invented."""
    for queue_id in range(QUEUES):
        start = 0 if everything else ledger.verified.get(queue_id, 0)
        expected = start
        while (reply := await pull(dialer, address, queue_id, start, wait_ms=0)) is not None:
            for message in decode_records(reply[1]):
                assert message.queue_offset == expected, "queue offsets are dense"
                expected += 1
                key = (queue_id, message.queue_offset)
                assert message.body in ledger.sent, "no message is invented"
                assert ledger.acknowledged.get(key, message.body) == message.body
                assert ledger.seen.get(key, message.body) == message.body
                sender, number, _ = message.body.split(b":", 2)
                if not everything:
                    last = ledger.order.get((queue_id, int(sender)), -1)
                    assert int(number) > last, "messages of one connection keep their order"
                    ledger.order[queue_id, int(sender)] = int(number)
            start = reply[0]
        for known in (ledger.acknowledged, ledger.seen):
            newest = max((offset for queue, offset in known if queue == queue_id), default=-1)
            assert newest < expected, f"queue {queue_id}: {newest} was promised, the queue ends at {expected}"
        ledger.verified[queue_id] = expected


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("flush", ["durable", "async"])
def test_kill_rounds(tmp_path: Path, flush: str) -> None:
    rounds = ROUNDS if flush == "durable" else max(ROUNDS // 10, 1)
    seed = int(os.environ.get("KAPPAMQ_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}: repeat with KAPPAMQ_SEED={seed}")
    rng = random.Random(seed)

    async def main() -> None:
        ledger = Ledger()
        victim = Victim(tmp_path, flush)
        numbers = [0] * SENDERS
        for _ in range(rounds):
            await victim.start()
            async with Dialer() as dialer:
                await verify(dialer, victim.address, ledger, everything=False)
                async with asyncio.TaskGroup() as tasks:
                    senders = [
                        tasks.create_task(
                            produce(victim.address, ledger, sender, numbers[sender], random.Random(rng.random()))
                        )
                        for sender in range(SENDERS)
                    ]
                    for queue_id in range(QUEUES):
                        tasks.create_task(
                            consume(dialer, victim.address, ledger, queue_id, ledger.verified.get(queue_id, 0))
                        )
                    if min(len(ledger.acknowledged), len(ledger.seen)) <= rounds:
                        # The first death comes to a broker that has promised something.
                        await something_seen(ledger, rounds)
                    await asyncio.sleep(rng.uniform(0.02, 0.6))  # The moment of death is the test's random input.
                    await victim.kill()
                numbers = [sender.result() for sender in senders]
        await victim.start()
        async with Dialer() as dialer:
            await verify(dialer, victim.address, ledger, everything=True)
        assert victim.process is not None
        await victim.kill()
        assert len(ledger.acknowledged) > rounds
        assert len(ledger.seen) > rounds
        print(f"{rounds} rounds, {len(ledger.acknowledged)} acknowledged, {len(ledger.seen)} seen")

    asyncio.run(main())
    report = check_store(tmp_path, replace(SMALL_STORE, segment_bytes=SEGMENT_BYTES))
    assert not report.violations, report.violations[:5]

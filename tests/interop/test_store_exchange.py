"""One store directory, two brokers in turn: what one wrote the other serves, also after kill -9, and back again."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kappamq.model.ids import parse_offset_id
from kappamq.model.message import StoredMessage
from kappamq.model.record import decode_records
from kappamq.net.dialer import Dialer
from kappamq.store.check import check_store
from kappamq.store.settings import StoreSettings
from kappamq.testing import start_cluster
from kappamq.testing.cluster import SMALL_STORE
from kappamq.wire.codes import ResponseCode
from kappamq.wire.headers import PullRequest, QueryMessageRequest, SendRequest, ViewMessageRequest
from tests.interop.conftest import skip_loudly
from tests.interop.rocketmq import Broker as RealBroker
from tests.interop.rocketmq import Unreachable

pytestmark = pytest.mark.interop

CALL_MS = 30_000
SETTLED_SECONDS_MAX = 60.0
QUEUES = 4
TOPICS = ("exchange-one", "exchange-two")
SEGMENT_BYTES = 4 * 1024 * 1024
SMALL = replace(SMALL_STORE, segment_bytes=SEGMENT_BYTES, queue_segment_bytes=2000)
SMALL_KEYS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": str(SMALL.index_slots),
    "maxIndexNum": str(SMALL.index_entries),
}
DEFAULT = replace(StoreSettings(), disk_delete_ratio=0.97, disk_force_ratio=0.98, disk_full_ratio=0.99)


@dataclass
class Ledger:
    """Everything acknowledged by either broker."""

    stored: dict[tuple[str, int, int], tuple[bytes, str, int]] = field(default_factory=dict)
    """(topic, queue, offset) → body, key, log offset"""
    number: int = 0


@contextmanager
def ours(data: Path, small: bool, *, kill: bool) -> Iterator[str]:
    script = Path(__file__).parents[1] / "faults" / "serve_broker.py"
    arguments = [str(data), "durable", str(SEGMENT_BYTES if small else 1 << 30), "2000" if small else "default"]
    with subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "our broker did not start"
            yield json.loads(line)["address"]
        finally:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(60)


@contextmanager
def theirs(data: Path, small: bool, nameserver: str, *, kill: bool) -> Iterator[str]:
    try:
        broker = RealBroker(nameserver, store=data, flush="SYNC_FLUSH", settings=SMALL_KEYS if small else None)
    except Unreachable as reason:
        skip_loudly(reason)
    try:
        yield broker.address
    finally:
        if kill:
            broker.kill()
        else:
            broker.stop()


async def write(dialer: Dialer, address: str, ledger: Ledger, count: int) -> None:
    rng = random.Random(ledger.number)
    for _ in range(count):
        number = ledger.number
        ledger.number += 1
        topic, queue_id = TOPICS[number % 2], number % 7 % QUEUES
        body = f"{number}:".encode() + rng.randbytes(rng.choice((0, 50, 700, 30_000)))
        request = SendRequest(
            producer_group="p",
            topic=topic,
            queue_id=queue_id,
            default_topic_queues=QUEUES,
            born_at_ms=int(time.time() * 1000),
            properties=f"KEYS\x01key-{number} all\x02TAGS\x01T{number % 3}\x02UNIQ_KEY\x01{number:032X}\x02",
        )
        reply = await dialer.call(address, request.command(body=body), timeout_ms=CALL_MS)
        _, log_offset = parse_offset_id(reply.fields["msgId"])
        ledger.stored[topic, queue_id, int(reply.fields["queueOffset"])] = (body, f"key-{number}", log_offset)


async def verify(dialer: Dialer, address: str, ledger: Ledger) -> None:
    """Every message by offset, by id, and by key."""
    served: dict[tuple[str, int, int], bytes] = {}
    for topic in TOPICS:
        for queue_id in range(QUEUES):
            start = 0
            end = sum(key[:2] == (topic, queue_id) for key in ledger.stored)
            while (reply := await pull(dialer, address, topic, queue_id, start, end=end)) is not None:
                for message in decode_records(reply[1]):
                    served[topic, queue_id, message.queue_offset] = message.body
                start = reply[0]
    assert served == {key: body for key, (body, _, _) in ledger.stored.items()}
    for (topic, _, _), (body, key, log_offset) in sorted(ledger.stored.items())[::7]:
        view = ViewMessageRequest(log_offset=log_offset, topic=topic).command()
        (message,) = decode_records((await dialer.call(address, view, timeout_ms=CALL_MS)).body)
        assert message.body == body
        found = await query(dialer, address, topic, key)
        # RocketMQ indexes a little later, and the last record before a crash again: the same message may come twice.
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while not found and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            found = await query(dialer, address, topic, key)
        assert {(message.log_offset, message.body) for message in found} == {(log_offset, body)}


async def pull(
    dialer: Dialer, address: str, topic: str, queue_id: int, start: int, *, end: int
) -> tuple[int, bytes] | None:
    """The next offset and records from `start` on; nothing when the queue ends there, which it should not before `end`.

    RocketMQ acknowledges a message before its queue shows it.
    """
    request = PullRequest(
        group="reader",
        topic=topic,
        queue_id=queue_id,
        start=start,
        count_max=32,
        flags=PullRequest.SUBSCRIPTION,
        subscription="*",
    )
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    while True:
        reply = await dialer.call_raw(address, request.command(), timeout_ms=CALL_MS)
        if reply.code == ResponseCode.SUCCESS:
            return int(reply.fields["nextBeginOffset"]), reply.body
        if start >= end and reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return None
        assert time.monotonic() < deadline, (reply.code, reply.remark)
        await asyncio.sleep(0.02)


async def query(dialer: Dialer, address: str, topic: str, key: str) -> list[StoredMessage]:
    request = QueryMessageRequest(topic=topic, key=key, count_max=32, begin_ms=0, end_ms=2**62)
    reply = await dialer.call_raw(address, request.command(), timeout_ms=CALL_MS)
    return list(decode_records(reply.body)) if reply.code == ResponseCode.SUCCESS else []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("small", "kill"), [(False, False), (True, True)])
def test_a_store_travels_back_and_forth(tmp_path: Path, small: bool, kill: bool) -> None:
    ledger = Ledger()
    data = tmp_path / "store"

    async def visit(address: str, count: int) -> None:
        async with Dialer() as dialer:
            if ledger.number:
                await verify(dialer, address, ledger)
            await write(dialer, address, ledger, count)
            await verify(dialer, address, ledger)

    with start_cluster(brokers=0) as cluster:
        for _ in range(2):
            with ours(data, small, kill=kill) as address:
                asyncio.run(visit(address, 300))
            with theirs(data, small, cluster.nameserver, kill=kill) as address:
                asyncio.run(visit(address, 200))
        with ours(data, small, kill=kill) as address:
            asyncio.run(visit(address, 10))
    report = check_store(data, SMALL if small else DEFAULT)
    assert not report.violations, report.violations[:5]


@pytest.mark.timeout(600)
def test_a_store_that_rocketmq_began_and_lost_to_a_kill(tmp_path: Path) -> None:
    ledger = Ledger()
    data = tmp_path / "store"

    async def visit(address: str, count: int) -> None:
        async with Dialer() as dialer:
            if ledger.number:
                await verify(dialer, address, ledger)
            await write(dialer, address, ledger, count)
            await verify(dialer, address, ledger)

    with start_cluster(brokers=0) as cluster:
        with theirs(data, True, cluster.nameserver, kill=True) as address:
            asyncio.run(visit(address, 300))
        with ours(data, True, kill=True) as address:
            asyncio.run(visit(address, 200))
        with theirs(data, True, cluster.nameserver, kill=True) as address:
            asyncio.run(visit(address, 100))

"""How late do delayed and timed messages come when many are due at once and others send?

Half of the messages wait for a delay level, half for an instant, all due within a few seconds. Beside them a producer
sends plain messages at a fixed rate. Lateness is the store time of the delivered copy minus the moment it was due; an
instant counts as due at the end of its second, as everywhere in RocketMQ.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import OURS, running
from benchmarks.generator import GeneratorFailed, Load
from benchmarks.results import CACHE, Json, save, table
from kappamq.admin.admin import Admin
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.producer import Producer
from kappamq.client.core.receiving import decode_pull
from kappamq.model.message import Message, StoredMessage

MESSAGES: Final = 20_000
QUICK_MESSAGES: Final = 1000
RATE: Final = 5000.0
LEVEL: Final = 3
LEVEL_MS: Final = 10_000
PRECISION_MS: Final = 1000
WAIT_SECONDS_MAX: Final = 120.0
TOPICS: Final = ("by-level", "by-instant")


def main(arguments: list[str]) -> int:
    """Measure with and without others who send, print the table, save the report."""
    chosen = _parser().parse_args(arguments)
    count = chosen.messages or (QUICK_MESSAGES if chosen.quick else MESSAGES)
    rows: list[Json] = []
    chosen.directory.mkdir(parents=True, exist_ok=True)
    for rate in (0.0, chosen.rate):
        with (
            tempfile.TemporaryDirectory(dir=chosen.directory, prefix="lateness-") as place,
            running(OURS, "durable", Path(place)) as broker,
        ):
            load = _sending(broker.address, rate, count) if rate else None
            rows += [row | {"rate": rate} for row in asyncio.run(_measure(broker.nameserver, count))]
            if load is not None:
                load.join()
    print(_table(rows))
    print(save("lateness", {"quick": chosen.quick, "messages": count, "rows": rows}))
    return 1 if any(row["early"] for row in rows) else 0


def _sending(address: str, rate: float, count: int) -> threading.Thread:
    load = Load(connections=4, in_flight=64, rate=rate)

    def send() -> None:
        try:
            generator.run(
                load, address, "plain", seconds=LEVEL_MS / 1000 + 15 + count / 5000, warmup_seconds=0, create=True
            )
        except GeneratorFailed as failure:
            print(failure)

    thread = threading.Thread(target=send, name="plain sends")
    thread.start()
    return thread


async def _measure(nameserver: str, count: int) -> list[Json]:
    async with (
        Admin(nameserver) as admin,
        Producer(nameserver, group="lateness") as producer,
        Cluster(nameserver) as calls,
    ):
        for topic in TOPICS:
            await admin.topics.create(topic, queues=4)
            await producer.queues_of(topic)
        # Far enough ahead that the last is sent before the first is due, also where sends are slow.
        instant_ms = int(time.time() * 1000) + LEVEL_MS + 3000 + count // 5
        for number in range(count // 2):
            await producer.room()
            producer.send_soon(Message(TOPICS[0], b"%d" % number), delay_level=LEVEL)
            await producer.room()
            producer.send_soon(Message(TOPICS[1], b"%d" % number), deliver_at=instant_ms + number % 3000)
        await producer.flush()
        waiting = {
            message.body: message.stored_at_ms
            async for message in _read(calls, "SCHEDULE_TOPIC_XXXX", count // 2, queue_id=LEVEL - 1)
        }
        levels = [
            message.stored_at_ms - waiting[message.body] - LEVEL_MS
            async for message in _read(calls, TOPICS[0], count // 2)
        ]
        instants = [
            _late_ms(message.stored_at_ms, int(message.properties["TIMER_DELIVER_MS"]))
            async for message in _read(calls, TOPICS[1], count // 2)
        ]
    return [_summary("delay level", levels), _summary("instant", instants)]


def _late_ms(stored_at_ms: int, instant_ms: int) -> int:
    """After the end of the second of an instant; negative only when it came before the instant itself."""
    if stored_at_ms < instant_ms:
        return stored_at_ms - instant_ms
    return max(0, stored_at_ms - -(-instant_ms // PRECISION_MS) * PRECISION_MS)


async def _read(calls: Cluster, topic: str, count: int, queue_id: int | None = None) -> AsyncIterator[StoredMessage]:
    """So many messages of a topic; raises `TimeoutError` when they do not come."""
    queues = [queue for queue in await calls.queues_of(topic) if queue_id in (None, queue.queue_id)]
    starts = dict.fromkeys(queues, 0)
    found = 0
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while found < count:
        for queue in queues:
            raw = await calls.pull_raw(queue, starts[queue], group="lateness", count_max=1000)
            starts[queue] = max(starts[queue], raw.next_offset)
            for message in decode_pull(raw.body, broker=queue.broker) if raw.body else ():
                found += 1
                yield message
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {count} messages of {topic} came in {WAIT_SECONDS_MAX:.0f} s")
        await asyncio.sleep(0.2)  # Looking is not to be what makes them late.


def _summary(kind: str, late_ms: list[int]) -> Json:
    late_ms.sort()
    return {
        "kind": kind,
        "count": len(late_ms),
        "early": sum(late < 0 for late in late_ms),
        "p50": late_ms[len(late_ms) // 2],
        "p99": late_ms[len(late_ms) * 99 // 100],
        "max": late_ms[-1],
    }


def _table(rows: list[Json]) -> str:
    cells = [
        [row["kind"], f"{row['rate']:,.0f}", f"{row['count']:,}", *(str(row[key]) for key in _FIGURES)] for row in rows
    ]
    return table(
        ("waits for", "plain sends/s", "messages", "early", "p50 late ms", "p99 late ms", "max late ms"), cells
    )


_FIGURES: Final = ("early", "p50", "p99", "max")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks lateness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages: does it run")
    parser.add_argument("--messages", type=int, help=f"how many wait ({MESSAGES:,})")
    parser.add_argument("--rate", type=float, default=RATE, help="plain sends per second beside them")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the store goes")
    return parser

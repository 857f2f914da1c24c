"""How many messages per second does one Python process send and consume, and what do they cost it?

Our broker runs in its own process and answers from the page cache: what is measured is the client. Rounds alternate
between the ways to send and to consume. The processor time is this process's.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from benchmarks.brokers import OURS, RunningBroker, available, running
from benchmarks.results import Json, save, spread, table
from kappamq.client import blocking
from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.loop_thread import loop_factory
from kappamq.client.settings import ConsumerSettings, ProducerSettings
from kappamq.kernel import KERNEL
from kappamq.model.message import Message

TOPIC: Final = "benchmark-client"
MESSAGES: Final = 100_000
BODY_BYTES: Final = 128
ROUNDS: Final = 5
IN_FLIGHT: Final = 1024
GATHERED: Final = 256
PULL_BATCH: Final = 1024
WAYS: Final = (
    "send_all",
    "send_soon",
    "send, gathered",
    "send, tasks",
    "async for, batches",
    "async for, messages",
    "blocking batches",
    "handler, async",
    "handler, threads",
)

Work = Callable[[], Awaitable[int]]


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of each round")
    parser.add_argument("--body", type=int, default=BODY_BYTES, help="bytes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--way", choices=WAYS, action="append", help="only these")
    parser.add_argument("--flush", choices=("async", "durable"), default="async")
    parser.add_argument("--directory", type=Path, help="where the store goes")
    parser.add_argument("--quick", action="store_true", help="few messages, one round")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages, chosen.rounds = 5_000, 1
    available([OURS])
    directory = Path(mkdtemp(prefix="benchmark-client-", dir=chosen.directory))
    try:
        with running(OURS, chosen.flush, directory) as broker:
            figures = _rounds(broker, chosen)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    rows = [
        (way, f"{rate.median:,.0f}", f"{rate.percent:.0f} %", f"{cpu.median:.2f}")
        for way, (rate, cpu) in (
            (way, (spread(r for r, _ in rounds), spread(c for _, c in rounds))) for way, rounds in figures.items()
        )
    ]
    print(table(("way", "per second", "+-", "CPU s per million"), rows))
    print(save("client", _report(chosen, figures)))
    return 0


def _report(chosen: argparse.Namespace, figures: dict[str, list[tuple[float, float]]]) -> Json:
    return {
        "quick": chosen.quick,
        "kernel": KERNEL,
        "messages": chosen.messages,
        "body_bytes": chosen.body,
        "flush": chosen.flush,
        "ways": {
            way: [{"per_second": round(rate), "cpu_seconds_per_million": round(cpu, 3)} for rate, cpu in rounds]
            for way, rounds in figures.items()
        },
    }


def _rounds(broker: RunningBroker, chosen: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    ways = chosen.way or WAYS
    figures: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    _run(_send_soon, broker, chosen)  # Makes the topic, and what the consumers of the first round read.
    for number in range(chosen.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            if way == "blocking batches":
                figures[way].append(_consume_blocking(broker, chosen))
            else:
                figures[way].append(_run(_WAYS[way], broker, chosen))
    return figures


def _run(
    way: Callable[[str, int, int], Awaitable[tuple[float, float]]], broker: RunningBroker, chosen: argparse.Namespace
) -> tuple[float, float]:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        seconds, cpu = runner.run(_awaited(way(broker.nameserver, chosen.messages, chosen.body)))
    return chosen.messages / seconds, cpu * 1e6 / chosen.messages


async def _awaited(work: Awaitable[tuple[float, float]]) -> tuple[float, float]:
    return await work


async def _timed(work: Awaitable[object]) -> tuple[float, float]:
    started, cpu = time.perf_counter(), time.process_time()
    await work
    return time.perf_counter() - started, time.process_time() - cpu


# ── Sending ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _messages(count: int, body: int) -> Iterable[Message]:
    payload = bytes(65 + number % 26 for number in range(body))
    return (Message(TOPIC, payload, tags="t", keys=f"key-{number}") for number in range(count))


def _producer(nameserver: str) -> Producer:
    return Producer(nameserver, group="benchmark", settings=ProducerSettings(inflight_max=IN_FLIGHT))


async def _send_all(nameserver: str, count: int, body: int) -> tuple[float, float]:
    async with _producer(nameserver) as producer:
        await producer.send(next(iter(_messages(1, body))))
        return await _timed(producer.send_all(_messages(count, body)))


async def _send_soon(nameserver: str, count: int, body: int) -> tuple[float, float]:
    async def work(producer: Producer) -> None:
        receipts = []
        for message in _messages(count, body):
            await producer.room()
            receipts.append(producer.send_soon(message))
        await asyncio.gather(*receipts)

    async with _producer(nameserver) as producer:
        await producer.send(next(iter(_messages(1, body))))
        return await _timed(work(producer))


async def _send_gathered(nameserver: str, count: int, body: int) -> tuple[float, float]:
    async def work(producer: Producer) -> None:
        messages = list(_messages(count, body))
        for first in range(0, count, GATHERED):
            await asyncio.gather(*(producer.send(message) for message in messages[first : first + GATHERED]))

    async with _producer(nameserver) as producer:
        await producer.send(next(iter(_messages(1, body))))
        return await _timed(work(producer))


async def _send_in_tasks(nameserver: str, count: int, body: int) -> tuple[float, float]:
    """Many tasks, each of which awaits one send after the other."""

    async def work(producer: Producer) -> None:
        messages = iter(list(_messages(count, body)))

        async def send() -> None:
            for message in messages:
                await producer.send(message)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(GATHERED):
                tasks.create_task(send())

    async with _producer(nameserver) as producer:
        await producer.send(next(iter(_messages(1, body))))
        return await _timed(work(producer))


# ── Consuming ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _consumer_settings() -> ConsumerSettings:
    return ConsumerSettings(pull_batch=PULL_BATCH)


async def _consume_batches(nameserver: str, count: int, _: int) -> tuple[float, float]:
    async def work(consumer: LitePullConsumer) -> None:
        left = count
        async for batch in consumer.batches():
            left -= len(batch)
            if left <= 0:
                return

    return await _timed(_consume(nameserver, work))


async def _consume_messages(nameserver: str, count: int, _: int) -> tuple[float, float]:
    async def work(consumer: LitePullConsumer) -> None:
        left = count
        async for _message in consumer:
            left -= 1
            if not left:
                return

    return await _timed(_consume(nameserver, work))


async def _consume(nameserver: str, work: Callable[[LitePullConsumer], Awaitable[None]]) -> None:
    async with LitePullConsumer(
        nameserver, group=_new_group(), topics=[TOPIC], start_from="first", settings=_consumer_settings()
    ) as consumer:
        await work(consumer)


async def _handle_async(nameserver: str, count: int, _: int) -> tuple[float, float]:
    done, left = asyncio.Event(), count

    async def handle(_message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    return await _timed(_handle(nameserver, handle, done))


async def _handle_in_threads(nameserver: str, count: int, _: int) -> tuple[float, float]:
    done, loop, left = asyncio.Event(), asyncio.get_running_loop(), iter(range(count, 0, -1))

    def handle(_message: object) -> None:
        if next(left, 0) == 1:  # Threads may share an iterator of a range: taking the next is one step.
            loop.call_soon_threadsafe(done.set)

    return await _timed(_handle(nameserver, handle, done))


async def _handle(nameserver: str, handler: Callable[[object], Awaitable[None] | None], done: asyncio.Event) -> None:
    async with PushConsumer(
        nameserver, group=_new_group(), start_from="first", settings=_consumer_settings()
    ) as consumer:
        consumer.add_handler(TOPIC, handler)
        await consumer.start()
        await done.wait()


def _consume_blocking(broker: RunningBroker, chosen: argparse.Namespace) -> tuple[float, float]:
    started, cpu = time.perf_counter(), time.process_time()
    left = chosen.messages
    with blocking.LitePullConsumer(
        broker.nameserver, group=_new_group(), topics=[TOPIC], start_from="first", settings=_consumer_settings()
    ) as consumer:
        while left > 0:
            left -= len(consumer.poll())
    seconds = time.perf_counter() - started
    return chosen.messages / seconds, (time.process_time() - cpu) * 1e6 / chosen.messages


def _new_group() -> str:
    """Groups without progress read from the first message on."""
    return f"benchmark-{time.monotonic_ns()}"


_WAYS: Final = {
    "send_all": _send_all,
    "send_soon": _send_soon,
    "send, gathered": _send_gathered,
    "async for, batches": _consume_batches,
    "async for, messages": _consume_messages,
    "send, tasks": _send_in_tasks,
    "handler, async": _handle_async,
    "handler, threads": _handle_in_threads,
}

"""Concurrent consumption with a clock of the test: messages whose handler is stuck."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from kappamq.client.aio.assignment import Assignment
from kappamq.client.aio.concurrent import OVERDUE_ROUNDS_MAX, ConcurrentHandling
from kappamq.client.aio.offset_store import OffsetStore
from kappamq.client.aio.send_back import SendBack
from kappamq.client.core.handling import Handler
from kappamq.client.core.process_queue import ProcessQueue
from kappamq.client.settings import PushSettings
from kappamq.clock import ManualClock
from kappamq.model.message import Queue, StoredMessage
from tests.unit.client.aio.fake_cluster import eventually

FIFTEEN_MINUTES_MS = 15 * 60 * 1000


class Returned:
    """Stands for the way back to the broker: notes what it is given, takes it or not."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, str | None]] = []
        self.accepts = True

    async def send_back(self, message: StoredMessage, queue: Queue, *, delay_level: int, cause: str | None) -> bool:
        self.calls.append((message.queue_offset, delay_level, cause))
        return self.accepts


class Offsets:
    def __init__(self) -> None:
        self.committed: list[int] = []

    def update(self, queue: Queue, committed_offset: int, *, only_forward: bool = True) -> None:
        self.committed.append(committed_offset)


class Stage:
    """A consumer of one queue whose handler waits until it is told to go on."""

    def __init__(self, count: int, *, workers: int = 32) -> None:
        self.clock = ManualClock()
        self.returned, self.offsets = Returned(), Offsets()
        self.begun: list[int] = []
        self.go_on = asyncio.Event()
        self.assignment = Assignment(Queue("orders", "b", 0), ProcessQueue(now_ms=self.clock.now_ms()), 0)
        self.handling = ConcurrentHandling(
            PushSettings(concurrency=workers),
            store=cast(OffsetStore, self.offsets),
            send_back=cast(SendBack, self.returned),
            handler_of=lambda _: Handler(self.handle),
            clock=self.clock,
            threads=ThreadPoolExecutor(1),
        )
        self.workers = self.handling.resize(workers)
        self.messages = [
            StoredMessage("orders", b"", 0, offset, 0, 0, 0, 0, b"", 0, b"", 0, 0, "", 0, 0) for offset in range(count)
        ]

    async def handle(self, message: StoredMessage) -> None:
        self.begun.append(message.queue_offset)
        await self.go_on.wait()

    async def look(self) -> None:
        """What the consumer does every quarter of an hour."""
        await self.handling.send_back_overdue([self.assignment])


async def test_a_message_stuck_for_a_quarter_of_an_hour_is_sent_back_and_let_go() -> None:
    stage = Stage(2)
    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(stage.handling.work()) for _ in range(stage.workers)]
        stage.handling.submit(stage.assignment, stage.messages)
        await eventually(lambda: stage.begun == [0, 1])
        stage.clock.advance(ms=FIFTEEN_MINUTES_MS)
        stage.clock.step(ms=10 * FIFTEEN_MINUTES_MS)  # Somebody sets the wall clock: that is no time spent.
        await stage.look()
        assert stage.returned.calls == []
        stage.clock.advance(ms=1)
        await stage.look()
        cause = "the handler took longer than 900000 ms"
        assert stage.returned.calls == [(0, 3, cause), (1, 3, cause)]
        assert stage.offsets.committed == [1, 2]
        assert stage.assignment.cached.message_count == 0
        # The handlers end after all: their messages are others' now, and nothing is sent back twice.
        stage.go_on.set()
        await eventually(lambda: stage.assignment.idle.is_set())
        assert len(stage.returned.calls) == 2
        assert stage.offsets.committed == [1, 2]
        for worker in workers:
            worker.cancel()


async def test_what_cannot_be_sent_back_stays() -> None:
    stage = Stage(1)
    stage.returned.accepts = False
    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(stage.handling.work()) for _ in range(stage.workers)]
        stage.handling.submit(stage.assignment, stage.messages)
        await eventually(lambda: stage.begun == [0])
        stage.clock.advance(ms=FIFTEEN_MINUTES_MS + 1)
        await stage.look()
        assert len(stage.returned.calls) == 1
        assert (stage.offsets.committed, stage.assignment.cached.message_count) == ([], 1)
        stage.go_on.set()
        await eventually(lambda: stage.offsets.committed == [1])
        for worker in workers:
            worker.cancel()


@pytest.mark.parametrize("count", [OVERDUE_ROUNDS_MAX, OVERDUE_ROUNDS_MAX + 4])
async def test_one_look_sends_back_a_limited_number(count: int) -> None:
    stage = Stage(count)
    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(stage.handling.work()) for _ in range(stage.workers)]
        stage.handling.submit(stage.assignment, stage.messages)
        await eventually(lambda: len(stage.begun) == count)
        stage.clock.advance(ms=FIFTEEN_MINUTES_MS + 1)
        await stage.look()
        assert len(stage.returned.calls) == OVERDUE_ROUNDS_MAX
        for worker in workers:
            worker.cancel()

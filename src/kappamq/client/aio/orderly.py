"""Orderly consumption: one message (or batch) of a queue after the other; a failure stops the queue for a while."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from kappamq.client.aio.assignment import Assignment
from kappamq.client.aio.concurrent import run_handler
from kappamq.client.aio.offset_store import OffsetStore
from kappamq.client.aio.send_back import SendBack
from kappamq.client.aio.slots import Slots
from kappamq.client.aio.tasks import OwnedTasks
from kappamq.client.aio.tracing import Tracer
from kappamq.client.core.handling import Handler, Progress, Verdict
from kappamq.client.settings import PushSettings
from kappamq.clock import Clock, elapsed_ms
from kappamq.model.message import StoredMessage

log = logging.getLogger(__name__)

YIELD_SECONDS: Final = 0.01
LOCK_SECONDS: Final = 0.1
PAUSE_MS_MIN: Final = 10
PAUSE_MS_MAX: Final = 30_000


class OrderlyHandling:
    """Runs at most one handler for each queue, and at most `concurrency` in all.

    With `needs_lock` (a group that shares messages) a queue is handled only while the broker's lock on it is fresh.
    """

    def __init__(
        self,
        settings: PushSettings,
        *,
        store: OffsetStore,
        send_back: SendBack | None,
        handler_of: Callable[[str], Handler | None],
        clock: Clock,
        threads: Executor,
        tasks: OwnedTasks,
        needs_lock: bool,
        tracer: Tracer | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._send_back = send_back
        self._handler_of = handler_of
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._needs_lock = needs_lock
        self._tracer = tracer
        self._slots = Slots(settings.concurrency)
        self._running: set[Assignment] = set()
        self._is_closing = False

    def submit(self, assignment: Assignment, messages: list[StoredMessage]) -> None:
        """Take over what a pull brought."""
        if assignment.cached.put(messages):
            assignment.begin_handling()
            self._running.add(assignment)
            self._tasks.start(self._consume(assignment), name=f"consume {assignment.queue.queue_id}")

    async def resize(self, concurrency: int) -> None:
        """Run so many handlers at once from now on."""
        await self._slots.resize(concurrency)

    async def drain(self) -> bool:
        """Start nothing new and wait for the handlers that run; False when they took too long."""
        self._is_closing = True
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1000):
                for assignment in list(self._running):
                    await assignment.idle.wait()
        except TimeoutError:
            log.warning("handlers still run at the end: their messages will be delivered again")
            return False
        return True

    async def _consume(self, assignment: Assignment) -> None:
        try:
            while not self._must_stop(assignment):
                async with self._slots:
                    pause = await self._run(assignment)
                if pause is None:
                    return
                await asyncio.sleep(pause)
        finally:
            self._running.discard(assignment)
            assignment.end_handling()

    async def _run(self, assignment: Assignment) -> float | None:
        """Handle messages until the turn is over: then the pause in seconds; `None` when there are no more."""
        turn_ends = elapsed_ms(self._clock) + self._settings.run_continuously_ms
        cached = assignment.cached
        while not self._must_stop(assignment):
            if elapsed_ms(self._clock) >= turn_ends:
                return YIELD_SECONDS
            if not self._may_handle(assignment):
                return LOCK_SECONDS
            handler, chunk = self._take(assignment)
            if not chunk:
                return None
            verdict = await run_handler(
                handler, chunk, self._threads, tracer=self._tracer, timeout_ms=self._settings.consume_timeout_ms
            )
            if self._may_handle(assignment):
                pause_ms = await self._conclude(assignment, verdict)
                assignment.room.set()
                if pause_ms is not None:
                    return min(max(pause_ms, PAUSE_MS_MIN), PAUSE_MS_MAX) / 1000
            elif not cached.is_dropped:
                cached.rollback()
        return None

    def _must_stop(self, assignment: Assignment) -> bool:
        return self._is_closing or assignment.cached.is_dropped

    def _may_handle(self, assignment: Assignment) -> bool:
        """Whether the queue is still ours alone. A dropped one is, until we let go of its lock."""
        cached = assignment.cached
        if not self._needs_lock:
            return not cached.is_dropped
        life_ms = self._settings.lock_life_ms
        return cached.is_locked and not cached.is_lock_expired(elapsed_ms(self._clock), life_ms=life_ms)

    def _take(self, assignment: Assignment) -> tuple[Handler | None, list[StoredMessage]]:
        first = assignment.cached.first
        handler = self._handler_of(first.topic) if first is not None else None
        batch_size = handler.batch_size if handler is not None else 1
        chunk = assignment.cached.take(batch_size, now_ms=self._clock.now_ms())
        # Retries of several topics share one queue: each handler gets its own.
        for position, message in enumerate(chunk):
            if message.topic != chunk[0].topic:
                assignment.cached.put_back(chunk[position:])
                return handler, chunk[:position]
        return handler, chunk

    async def _conclude(self, assignment: Assignment, verdict: Verdict) -> int | None:
        """Commit what is done; the pause in ms when something must wait."""
        cached = assignment.cached
        pause_ms = verdict.pause_ms if verdict.pause_ms is not None else self._settings.suspend_queue_ms
        if verdict.progress is Progress.ROLLBACK:
            cached.rollback()
            return pause_ms
        waiting = [message for message in verdict.failed if not await self._give_up(message, verdict.cause)]
        cached.put_back(waiting)
        if verdict.progress is Progress.COMMIT:
            committable = cached.commit()
            if committable is not None:
                offset = min([committable, *(message.queue_offset for message in waiting)])
                self._store.update(assignment.queue, offset, only_forward=False)
        for message in waiting:
            message.retry_count += 1
        return pause_ms if waiting else None

    async def _give_up(self, message: StoredMessage, cause: str | None) -> bool:
        """Whether a message failed too often and went to the dead letters; without a limit it never does."""
        retries_max = self._settings.retries_max
        if retries_max is None or message.retry_count < retries_max:
            return False
        if self._send_back is None:
            log.warning("message failed too often and is lost: broadcasting has no retry id=%s", message.message_id)
            return True
        return await self._send_back.send_copy(message, delay_level=0, retries_max=retries_max, cause=cause)

"""Concurrent consumption: messages of a queue are handled in any order; the oldest unfinished one holds the commit."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from kappamq.client.aio.assignment import Assignment
from kappamq.client.aio.calling import Raised, call_user
from kappamq.client.aio.offset_store import OffsetStore
from kappamq.client.aio.send_back import FIRST_DELAY_LEVEL, SendBack
from kappamq.client.aio.tracing import Tracer
from kappamq.client.core.handling import Handler, RetryLater, Verdict, chunks_of, judge_error, judge_return
from kappamq.client.core.priorities import Lanes, Priorities
from kappamq.client.core.tracing import Outcome
from kappamq.client.settings import PushSettings
from kappamq.clock import Clock, elapsed_ms
from kappamq.model.message import StoredMessage

log = logging.getLogger(__name__)

OVERDUE_ROUNDS_MAX = 16
"""Messages of one queue that one look for overdue handlers may send back."""

Chunk = tuple[Assignment, Handler | None, list[StoredMessage]]


class ConcurrentHandling:
    """A pool of workers that run handlers. How much waits for them is bounded by the limits of the queues."""

    def __init__(
        self,
        settings: PushSettings,
        *,
        store: OffsetStore,
        send_back: SendBack | None,
        handler_of: Callable[[str], Handler | None],
        clock: Clock,
        threads: Executor,
        tracer: Tracer | None = None,
        priorities: Priorities | None = None,
    ) -> None:
        """Without `send_back` (broadcasting) failed messages are logged and lost."""
        self._settings = settings
        self._store = store
        self._send_back = send_back
        self._handler_of = handler_of
        self._clock = clock
        self._threads = threads
        self._tracer = tracer
        self._priorities = priorities or Priorities()
        self._chunks: Lanes[Chunk] = Lanes()
        self._waiting = asyncio.Semaphore(0)  # Counts the chunks.
        self._workers = 0
        self._workers_max = 0
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closing = False

    def submit(self, assignment: Assignment, messages: list[StoredMessage]) -> None:
        """Take over what a pull brought."""
        assignment.cached.put(messages)
        for handler, chunk in chunks_of(messages, self._handler_of):
            self._put((assignment, handler, chunk))

    def _put(self, chunk: Chunk) -> None:
        self._chunks.append(self._priorities.of(chunk[2][0]), chunk)
        self._waiting.release()

    async def work(self) -> None:
        """One worker that `resize` asked for: runs until cancelled, or until there are too many."""
        try:
            while not self._is_closing:
                await self._waiting.acquire()
                if self._workers > self._workers_max:
                    self._waiting.release()
                    return
                await self._work_once()
        finally:
            self._workers -= 1

    def resize(self, concurrency: int) -> int:
        """Run so many handlers at once from now on. Returns how many workers the caller must start for that."""
        self._workers_max = concurrency
        missing = max(0, concurrency - self._workers)
        self._workers += missing
        return missing

    async def _work_once(self) -> None:
        assignment, handler, chunk = self._chunks.pop()
        if assignment.cached.is_dropped or self._is_closing:
            return
        self._busy += 1
        self._idle.clear()
        assignment.begin_handling()
        try:
            await self._consume(assignment, handler, chunk)
        finally:
            assignment.end_handling()
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def drain(self) -> bool:
        """Start nothing new and wait for the handlers that run; False when they took too long."""
        self._is_closing = True
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            log.warning("handlers still run at the end: their messages will be delivered again count=%d", self._busy)
            return False
        return True

    async def _consume(self, assignment: Assignment, handler: Handler | None, chunk: list[StoredMessage]) -> None:
        cached = assignment.cached
        cached.mark_started(chunk, elapsed_ms=elapsed_ms(self._clock))
        verdict = await run_handler(
            handler, chunk, self._threads, tracer=self._tracer, timeout_ms=self._settings.consume_timeout_ms
        )
        if cached.is_dropped:
            return  # Somebody else has the queue and these messages now.
        if not verdict.failed:
            self._finish(assignment, chunk)
            return
        failed = [message for message in verdict.failed if cached.contains(message)]
        kept = await self._return(assignment, failed, verdict)
        if cached.is_dropped:
            return
        if kept:
            self._again_later(assignment, handler, kept)
        waiting = {message.queue_offset for message in kept}
        self._finish(assignment, [message for message in chunk if message.queue_offset not in waiting])

    def _finish(self, assignment: Assignment, messages: list[StoredMessage]) -> None:
        committable = assignment.cached.remove(messages, now_ms=self._clock.now_ms())
        if committable is not None:
            self._store.update(assignment.queue, committable)
        assignment.room.set()

    async def _return(
        self, assignment: Assignment, failed: list[StoredMessage], verdict: Verdict
    ) -> list[StoredMessage]:
        """Send messages back; those that could not be are returned."""
        if self._send_back is None:
            for message in failed:
                log.warning("message failed and is lost: broadcasting has no retry message_id=%s", message.message_id)
            return []
        kept: list[StoredMessage] = []
        for message in failed:
            is_sent = await self._send_back.send_back(
                message, assignment.queue, delay_level=verdict.delay_level, cause=verdict.cause
            )
            if not is_sent:
                message.retry_count += 1
                kept.append(message)
        return kept

    def _again_later(self, assignment: Assignment, handler: Handler | None, messages: list[StoredMessage]) -> None:
        delay = self._settings.local_retry_ms / 1000
        asyncio.get_running_loop().call_later(delay, self._put, (assignment, handler, messages))

    async def send_back_overdue(self, assignments: list[Assignment]) -> None:
        """Send back the oldest message of each queue whose handler takes too long, so that others may go on."""
        if self._send_back is None:
            return
        for assignment in assignments:
            for _ in range(OVERDUE_ROUNDS_MAX):
                message = assignment.cached.first_if_overdue(
                    timeout_ms=self._settings.consume_timeout_ms, elapsed_ms=elapsed_ms(self._clock)
                )
                if message is None or assignment.cached.is_dropped:
                    break
                log.warning("handler takes too long: message sent back message_id=%s", message.message_id)
                is_sent = await self._send_back.send_back(
                    message,
                    assignment.queue,
                    delay_level=FIRST_DELAY_LEVEL,
                    cause=f"the handler took longer than {self._settings.consume_timeout_ms} ms",
                )
                if not is_sent or assignment.cached.is_dropped:
                    break
                self._finish(assignment, [message])


async def run_handler(
    handler: Handler | None,
    chunk: list[StoredMessage],
    threads: Executor,
    *,
    timeout_ms: int,
    tracer: Tracer | None = None,
) -> Verdict:
    """Let the handler have the messages and judge the outcome. One over `timeout_ms` is traced as too slow."""
    if handler is None:
        log.error("no handler for topic %s: message will come again", chunk[0].topic)
        return Verdict([], chunk)
    if tracer is None:
        return await _run_untraced(handler, chunk, threads)
    begun = tracer.begin_handling(chunk)
    verdict = await _run_untraced(handler, chunk, threads)
    failed = {message.message_id for message in verdict.failed}
    failed_as = Outcome.RAISED if verdict.is_error else Outcome.FAILED
    tracer.end_handling(
        begun, lambda message_id: failed_as if message_id in failed else Outcome.SUCCESS, timeout_ms=timeout_ms
    )
    return verdict


async def _run_untraced(handler: Handler, chunk: list[StoredMessage], threads: Executor) -> Verdict:
    outcome = await call_user(handler.function, handler.argument(chunk), threads=threads)
    if not isinstance(outcome, Raised):
        return judge_return(chunk, outcome, handler)
    if isinstance(outcome.error, RetryLater):
        log.info("handler wants a message again message_id=%s reason=%s", chunk[0].message_id, outcome.error)
    else:
        log.warning(
            "handler failed: message will come again message_id=%s", chunk[0].message_id, exc_info=outcome.error
        )
    return judge_error(chunk, outcome.error, handler)

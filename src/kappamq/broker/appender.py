"""The way into the log: records in order of arrival, acknowledged when the promised durability is reached.

    submit ─▶ staged ─▶ write(): one append for all of one turn ─▶ waiting ─▶ flushed ─▶ published ─▶ done()

A turn is one pass of the event loop over all connections that have something to read.

One thread runs `fdatasync` (group commit): whatever was appended meanwhile shares the next one. In `async` mode nobody
waits for it; records become visible with the write, and the thread flushes at a steady pace.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kappamq.clock import Clock
from kappamq.errors import Busy, DiskFull, KappaError, StorageError
from kappamq.model.record import NewRecord
from kappamq.store.dispatch import Arrival, Batch
from kappamq.store.plain_runs import PlainRun, RunBatch
from kappamq.store.store import Appended, Store

if TYPE_CHECKING:
    from kappamq.store._syncing import Syncer

log = logging.getLogger(__name__)

ASYNC_FLUSH_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 30.0

Done = Callable[[list[Appended] | KappaError, bool], None]
"""Called once: with places, or with what went wrong; the flag says that the disk did not confirm in time."""

RunDone = Callable[[RunBatch | KappaError, bool], None]
"""The same for a run of packed sends."""


@dataclass(slots=True)
class _Submission:
    records: Sequence[NewRecord]
    done: Done
    atomic: bool
    wait: bool


@dataclass(slots=True)
class _RunSubmission:
    run: PlainRun
    done: RunDone


@dataclass(slots=True)
class _Waiting:
    end: int
    since: float
    places: list[Appended]
    done: Done
    is_answered: bool = False
    count: int = 1

    def answer(self, fault: KappaError | None, *, is_late: bool = False) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.done(self.places if fault is None else fault, is_late)


@dataclass(slots=True)
class _WaitingRun:
    end: int
    since: float
    batch: RunBatch
    done: RunDone
    count: int
    is_answered: bool = False

    def answer(self, fault: KappaError | None, *, is_late: bool = False) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.done(self.batch if fault is None else fault, is_late)


class Appender:
    """Owned by the event loop; only the flush itself runs in a thread."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        durable: bool,
        on_arrivals: Callable[[list[Arrival]], None],
        unacknowledged_max: int,
        flush_timeout_seconds: float,
        on_run: Callable[[RunBatch], None] = lambda _: None,
        syncer: "Syncer | None" = None,
    ) -> None:
        """With a `syncer` its thread makes records durable, for those who wait for that; else one of Python."""
        self._syncer = syncer if durable else None
        self._store = store
        self._on_run = on_run
        self._clock = clock
        self._durable = durable
        self._on_arrivals = on_arrivals
        self._unacknowledged_max = unacknowledged_max
        self._flush_timeout_seconds = flush_timeout_seconds
        self._staged: list[_Submission | _RunSubmission] = []
        self.open_run: PlainRun | None = None
        """The run that was submitted last, while nothing follows it and it is not written: it may still grow."""
        self._waiting: deque[_Waiting | _WaitingRun] = deque()
        self._unacknowledged = 0
        self._loop = asyncio.get_running_loop()
        self._is_write_due = False
        self._wake = threading.Event()
        self._is_stopping = False
        work = self._flush_forever if self._syncer is None else self._syncer.run
        self._thread = threading.Thread(target=work, name="kappamq-flush", daemon=True)
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._preparation: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._thread.start()
        if self._syncer is not None:
            self._loop.add_reader(self._syncer.fileno(), self._synced)
        self._prepare_ahead()

    async def stop(self) -> None:
        """Write and flush what was submitted, answer it, end the thread."""
        self.write()
        self._is_stopping = True
        self._wake.set()
        if self._syncer is not None:
            self._syncer.stop()
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
        if self._syncer is not None:
            self._loop.remove_reader(self._syncer.fileno())
            self._synced()
        if self._preparation is not None:
            await self._preparation  # What it makes must be closed with the store.
        # The thread's last report was posted to the loop before it ended: let it run.
        await asyncio.sleep(0)

    async def wait_failed(self) -> None:
        """Raise when the disk failed for good: the broker must not go on."""
        await self._failed

    @property
    def unacknowledged(self) -> int:
        """Submissions that wait for the disk; each send of a run counts."""
        return self._unacknowledged

    @property
    def room(self) -> int:
        """How many more may be submitted now."""
        return self._unacknowledged_max - self._unacknowledged

    def begin_turn(self) -> None:
        """Whoever calls this calls `write` as well, when all of the turn is submitted."""
        self._is_write_due = True

    def submit(self, records: Sequence[NewRecord], done: Done, *, atomic: bool = False, wait: bool = True) -> None:
        """Take records to be stored. `atomic` keeps them in one segment; without `wait`, done() follows the write.

        Raises `Busy` at the limit of what may wait for the disk. Nothing is visible or acknowledged before `done`.
        """
        if self._unacknowledged >= self._unacknowledged_max:
            raise Busy("[OVERLOAD]system busy, start flow control for a while: too many sends wait for the disk")
        self.open_run = None
        self._stage(_Submission(records, done, atomic, wait), 1)

    def submit_run(self, run: PlainRun, done: RunDone) -> None:
        """Take a run of packed sends, of no more than `room`, between what is submitted before and after it."""
        self.open_run = run
        self._stage(_RunSubmission(run, done), run.count)

    def extend_run(self, count: int) -> None:
        """The open run has grown by that many, no more than `room`."""
        self._unacknowledged += count

    def _stage(self, submission: "_Submission | _RunSubmission", count: int) -> None:
        self._staged.append(submission)
        self._unacknowledged += count
        if not self._is_write_due:
            self._is_write_due = True
            self._loop.call_soon(self.write)

    async def store(self, records: Sequence[NewRecord], *, atomic: bool = False) -> list[Appended]:
        """Store records of the broker's own and wait until they are as durable as a send."""
        future: asyncio.Future[list[Appended]] = self._loop.create_future()

        def done(outcome: list[Appended] | KappaError, _: bool) -> None:
            if future.done():
                return
            if isinstance(outcome, KappaError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(records, done, atomic=atomic)
        return await future

    def write(self) -> None:
        """Append everything that was submitted since the last call."""
        self._is_write_due = False
        if not self._staged:
            return
        self.open_run = None
        staged, self._staged = self._staged, []
        run: list[_Submission] = []
        for submission in staged:
            if isinstance(submission, _RunSubmission):
                self._append(run)
                self._append_run(submission)
                run = []
            elif submission.atomic:
                self._append(run)
                self._append([submission])
                run = []
            else:
                run.append(submission)
        self._append(run)
        if self._durable:
            self._request_sync()
        else:
            self._advance()
        self._prepare_ahead()

    def _prepare_ahead(self) -> None:
        if self._store.needs_segment and (self._preparation is None or self._preparation.done()):
            self._preparation = self._loop.run_in_executor(None, self._prepare)

    def _prepare(self) -> None:
        try:
            self._store.prepare_next_segment()
        except (OSError, StorageError) as fault:
            log.warning("next segment could not be prepared: will be made on demand fault=%s", fault)

    def _append(self, run: list[_Submission]) -> None:
        if not run:
            return
        records = run[0].records if len(run) == 1 else [record for submission in run for record in submission.records]
        try:
            places = self._store.append(records, atomic=run[0].atomic)
        except KappaError as fault:
            if len(run) > 1 and not isinstance(fault, DiskFull):
                # One bad record must not fail its neighbours: each tells its own story.
                for submission in run:
                    self._append([submission])
                return
            self._unacknowledged -= len(run)
            for submission in run:
                submission.done(fault, False)
            return
        since = self._clock.monotonic()
        at = 0
        for submission in run:
            mine = places[at : at + len(submission.records)]
            at += len(submission.records)
            done = submission.done
            waiting = _Waiting(mine[-1].end, since, mine, done)
            if self._durable and not submission.wait:
                waiting.is_answered = True
                done(mine, False)
            self._waiting.append(waiting)

    def _append_run(self, submission: _RunSubmission) -> None:
        try:
            batch = self._store.append_run(submission.run)
        except KappaError as fault:
            self._unacknowledged -= submission.run.count
            submission.done(fault, False)
            return
        since = self._clock.monotonic()
        self._waiting.append(_WaitingRun(batch.end, since, batch, submission.done, submission.run.count))

    def _advance(self) -> None:
        """Make visible what the watermark allows, then answer for it, then wake those who wait for messages."""
        batches = self._store.publish_batches()
        published = self._store.published
        waiting = self._waiting
        while waiting and waiting[0].end <= published:
            entry = waiting.popleft()
            self._unacknowledged -= entry.count
            entry.answer(None)
        for batch in batches:
            if isinstance(batch, Batch):
                self._on_arrivals(batch.arrivals)
            else:
                self._on_run(batch)

    def expire(self) -> None:
        """Answer sends that the disk did not confirm in time: they are stored, perhaps not for good.

        Also lets the store go on with entries that found no space on the disk before. Called every second.
        """
        self._advance()
        oldest = self._clock.monotonic() - self._flush_timeout_seconds
        for entry in self._waiting:
            if entry.since > oldest:
                break
            entry.answer(None, is_late=True)

    # ── The flush thread ────────────────────────────────────────────────────────────────────────────────────────────

    def _flush_forever(self) -> None:
        while True:
            self._wake.wait(None if self._durable else ASYNC_FLUSH_SECONDS)
            self._wake.clear()
            try:
                flushed = self._store.flush()
            except (StorageError, OSError) as fault:
                self._post(self._flush_failed, fault)
                return
            self._post(self._flushed, flushed)
            if self._is_stopping:
                return

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # The loop has closed: nobody waits any more.
            self._is_stopping = True

    def _request_sync(self) -> None:
        if self._syncer is None:
            self._wake.set()
            return
        files = self._store.files_to_flush()
        assert files is not None, "a syncer needs files of the operating system"
        self._syncer.request(*files)

    def _synced(self) -> None:
        assert self._syncer is not None
        log_offset, fault = self._syncer.take()
        if fault:
            self._flush_failed(self._store.note_sync_failed(fault))
            return
        is_news = log_offset > self._store.flushed
        self._store.mark_flushed(log_offset)
        self._advance()
        if is_news:
            self._store.write_flush_mark()

    def _flushed(self, log_offset: int) -> None:
        self._store.mark_flushed(log_offset)
        if self._durable:
            self._advance()

    def _flush_failed(self, fault: Exception) -> None:
        """After a failed sync the page cache may lie: nothing that waits can be promised, the broker must stop."""
        log.error("disk sync failed: the broker stops fault=%s", fault)
        error = fault if isinstance(fault, KappaError) else StorageError(f"disk sync failed: {fault}")
        while self._waiting:
            entry = self._waiting.popleft()
            self._unacknowledged -= entry.count
            entry.answer(error)
        if not self._failed.done():
            self._failed.set_exception(error)

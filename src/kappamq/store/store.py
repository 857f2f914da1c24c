"""The store: append records, make them durable, let them become visible, read them back.

    append ─▶ written ─▶ flush (another thread) ─▶ mark_flushed ─▶ publish ─▶ visible to fetch and query

One owner thread calls everything, except what is marked [any thread]. Those read only: numbers that grow and are set
last, and tuples and dictionaries that are replaced or grow by one atomic step; nothing they hold is ever unmapped
under them. `flush` and `checkpoint` sync files through the kernel, which needs no agreement with a writer.
"""

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kappamq.clock import Clock
from kappamq.errors import (
    CorruptRecord,
    DiskFull,
    OffsetOutOfRange,
    StorageError,
)
from kappamq.kernel import valid_size
from kappamq.kernel.verify_reference import NO_CRC
from kappamq.model.message import KEY_SEPARATOR
from kappamq.model.properties import Name, property_of
from kappamq.model.record import BLANK_BYTES, RECORD_BYTES_MIN, NewRecord, decode_mark
from kappamq.model.selector import Selector
from kappamq.store import reading
from kappamq.store.checkpoint import (
    ABORT_NAME,
    SESSION_BYTES,
    FlushMark,
    OwnCheckpoint,
    QueueMark,
    TimeCheckpoint,
    load_times,
    save_abort,
    save_own,
    save_times,
)
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import ConsumeQueue, QueueFiles
from kappamq.store.dispatch import Arrival, Batch
from kappamq.store.files import (
    FULL_DISK_ERRORS,
    PASSING_ERRORS,
    File,
    FileSystem,
    RealFileSystem,
    make_directory_durably,
    storage_error,
)
from kappamq.store.hot_reads import HotReads
from kappamq.store.key_index import KeyIndex
from kappamq.store.log_scan import RecordFacts, read_facts, stored_at, why_invalid
from kappamq.store.placing import Appended, Placement
from kappamq.store.plain_runs import PlainRun, RunBatch, place_run
from kappamq.store.queue_table import QueueTable
from kappamq.store.reading import Fetched, FetchLimit, FetchStatus, HotEntries, QueueEntry
from kappamq.store.recovery import Recovery, RecoveryReport, arrivals_between
from kappamq.store.retention import DiskState, RetentionReport, SegmentAge, deletable
from kappamq.store.segment import Segment
from kappamq.store.settings import StoreSettings
from kappamq.store.verified import VerifiedRanges

__all__ = [
    "Appended",
    "Arrival",
    "DiskState",
    "FetchLimit",
    "FetchStatus",
    "Fetched",
    "QueryResult",
    "QueueEntry",
    "RecoveryReport",
    "RetentionReport",
    "Store",
    "StoreSettings",
]

QUERY_MAX: Final = 64
"""Most messages one query by key returns."""
INDEX_TRUST_MS: Final = 60_000
"""How far ahead of now RocketMQ is told that the index is complete; a checkpoint must follow within this time."""
INDEX_RETRY_SECONDS: Final = 1.0
INDEX_CATCH_UP_RECORDS: Final = 2000
"""Records that one `publish` adds to an index that fell behind."""
UNINDEXED_MAX: Final = 10_000
"""Published batches whose keys may wait for the index; what comes after them is read from the log again."""
INDEX_BYTES_AT_ONCE: Final = 1 << 20
"""Packed keys that go into the index together."""
RECORD_OVERHEAD_MAX: Final = 65_536
"""What a record may take beyond the body."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Records found by key, oldest first."""

    records: list[bytes]
    indexed_at_ms: int
    """Store time of the newest record in the index."""
    indexed_to: int


class _Unindexed(NamedTuple):
    """Keys of published records between two log offsets."""

    start: int
    end: int
    keys: bytes | Batch
    stored_at_ms: int


class Store:
    """One open store directory."""

    def __init__(self, root: Path, settings: StoreSettings, *, clock: Clock, files: FileSystem, lock: File) -> None:
        """Use `Store.open`."""
        self.root = root
        self.settings = settings
        self._clock = clock
        self._files = files
        self._lock = lock
        self._log = CommitLog(files, root / "commitlog", segment_bytes=settings.segment_bytes)
        self._pool = QueueFiles(files, file_bytes=settings.queue_file_bytes, open_max=settings.queue_files_open_max)
        self._queues = QueueTable(self._pool, root / "consumequeue", hold_above=settings.hold_entries_above)
        self._index = KeyIndex(
            files, root / "index", slots=settings.index_slots, entries=settings.index_entries, clock=clock
        )
        self._session = os.urandom(SESSION_BYTES)
        self._flush_mark: FlushMark | None = None
        self._pending: deque[Batch | RunBatch] = deque()
        self._unindexed: deque[_Unindexed] = deque()
        self._failure = ""
        self._is_disk_full = False
        self._dispatch_block = ""
        """Why durable records cannot become visible just now."""
        self._is_closed = False
        self._index_retry_at = 0.0
        self.hot_reads = HotReads(self._log, hot_bytes=settings.hot_bytes, clock=clock)
        self._written_ms = 0
        self._published_ms = 0
        self._published_records = 0
        self._checkpoint_log_offset = 0
        self._checkpoint_records = 0
        self._entries_written_to = 0
        self._held_left = 0
        self._held_mark = 0
        self.published = 0
        self.recovery = RecoveryReport()

    # Life

    @classmethod
    def open(cls, root: Path, settings: StoreSettings, *, clock: Clock, files: FileSystem | None = None) -> "Store":
        """Lock, recover and mark as in use.

        Raises `StoreLocked` when another process has it, `CorruptRecord` when the log is damaged where it was
        acknowledged, `StorageError` when the directory is not such a store or the disk fails.
        """
        files = files if files is not None else RealFileSystem()
        try:
            make_directory_durably(files, root)
            lock = files.lock(root / "lock")
        except OSError as error:
            raise storage_error(f"opening the store in {root} failed", error) from error
        store = cls(root, settings, clock=clock, files=files, lock=lock)
        try:
            lock.pwrite(b"lock", 0)
            lock.sync()
            _refuse_other_layouts(files, root)
            make_directory_durably(files, root / "commitlog")
            store._recover()
        except OSError as error:
            store._release()
            raise storage_error(f"opening the store in {root} failed", error) from error
        except BaseException:
            store._release()
            raise
        return store

    def _recover(self) -> None:
        recovery = Recovery(
            self._files, self.root, self.settings, log=self._log, queues=self._queues, index=self._index
        )
        self.recovery = recovery.run()
        self.published = self.hot_reads.session_start = self._log.written
        self.hot_reads.trusted_from = self.recovery.verified_from
        self._written_ms = self._published_ms = self.latest_stored_at()
        save_abort(self._files, self.root, self._session)
        self._flush_mark = FlushMark(self._files, self.root, self._session)
        self._flush_mark.write(self._log.flushed)
        self.checkpoint()

    def close(self) -> None:
        """Make all durable and visible, and mark the store as stopped in order; a failed one stays as it is."""
        if self._is_closed:
            return
        self._is_closed = True
        is_clean = False
        try:
            if not self._failure:
                self.mark_flushed(self.flush())
                self.publish()
                while self.write_held_entries(queues_max=self._queues.holding):
                    pass
                self._index_retry_at = 0.0
                self.index_published(limit=None)
                is_clean = not self._pending and not self._queues.holding and self._index.indexed_to >= self.published
                self._checkpoint(is_clean=is_clean)
        finally:
            is_clean = is_clean and not self._failure
            self._release(is_clean=is_clean)

    def _release(self, *, is_clean: bool = False) -> None:
        self._is_closed = True
        try:
            self._log.close(remove_unused=is_clean)
            self._pool.close()
            self._index.close()
            if self._flush_mark is not None:
                self._flush_mark.close()
            if is_clean:
                self._files.unlink(self.root / ABORT_NAME)
                self._files.sync_directory(self.root)
        finally:
            self._lock.close()

    # Writing

    @property
    def written(self) -> int:
        """End of the log."""
        return self._log.written

    @property
    def flushed(self) -> int:
        """Log offset below which all is on disk, as far as `mark_flushed` was told."""
        return self._log.flushed

    @property
    def is_writable(self) -> bool:
        """Whether `append` can work now."""
        return not (self._failure or self._is_closed or self._is_disk_full or self._dispatch_block)

    @property
    def failure(self) -> str:
        """Why the store takes no more writes until it is opened again; empty while it works."""
        return self._failure

    def append(self, records: Sequence[NewRecord], *, atomic: bool = False) -> list[Appended]:
        """Give the records their places and write them; all or none.

        They are not durable before `flush`, and not visible before `publish`. With `atomic` they stay in one segment.
        Raises `InvalidMessage` for a record that can never be stored, `DiskFull` while there is no space (try again),
        `StorageError` when the store has failed; no offset is used up then.
        """
        if not self.is_writable:
            raise self._refusal()
        now_ms = self._clock.now_ms()
        try:
            batch = Placement(self._log, self._queues, self.settings, now_ms=now_ms).encode(records, atomic=atomic)
        except OSError as error:
            raise storage_error("making the next segment failed", error) from error
        self._write(batch.parts, end=batch.end)
        for queue, following in batch.following.items():
            queue.next = following
        if batch.arrivals:
            self._pending.append(Batch(batch.end, batch.arrivals, now_ms))
            self._written_ms = now_ms
        return batch.appended

    def append_run(self, run: PlainRun) -> RunBatch:
        """The same for packed sends; on return `run` has their places and no longer the bytes they came in."""
        if not self.is_writable:
            raise self._refusal()
        now_ms = self._clock.now_ms()
        self._queues.find_targets(run)
        try:
            batch = place_run(run, self._log, self.settings, now_ms=now_ms)
        except OSError as error:
            raise storage_error("making the next segment failed", error) from error
        try:
            self._write(batch.parts, end=batch.end)
        except StorageError:
            batch.take_back()
            raise
        batch.release()
        self._pending.append(batch)
        self._written_ms = now_ms
        return batch

    def _write(self, parts: Sequence[tuple[Segment, int, bytes]], *, end: int) -> None:
        try:
            self._log.write(parts, end=end)
        except DiskFull:
            raise
        except (OSError, StorageError) as error:
            # Not about space, or what a failed write left could not be cleared: the end of the log is in doubt.
            self._fail(str(error))
            raise StorageError(self._failure) from error

    def flush(self) -> int:
        """Sync everything written so far; returns the log offset that is durable now. [any thread]

        Does not publish: hand the result to `mark_flushed` in the owner's thread. When syncing fails, the kernel may
        have dropped what it could not write, so trying again proves nothing: the store fails for good.
        """
        if self._failure:
            raise StorageError(self._failure)
        try:
            durable = self._log.flush()
        except OSError as error:
            self._fail(f"syncing the commit log failed ({error}): records not yet acknowledged may be lost")
            raise StorageError(self._failure) from error
        if self._flush_mark is not None and durable > self._log.flushed:
            try:
                self._flush_mark.write(durable)
            except OSError:
                # A full disk: the mark stays lower than it could be, which only makes recovery less strict.
                return durable
        return durable

    def files_to_flush(self) -> tuple[list[int], int] | None:
        """What `flush` would sync: open files, and the log offset below which all is durable then.

        For who syncs them elsewhere, and calls `mark_flushed` or `note_sync_failed` with the outcome, and then
        `write_flush_mark`. `None` without real files. They stay open until that log offset is noted.
        """
        return self._log.files_to_flush()

    def write_flush_mark(self) -> None:
        """Let recovery know what `mark_flushed` was told. Nobody needs to wait for it: the records are on disk."""
        if self._flush_mark is not None:
            try:
                self._flush_mark.write(self._log.flushed)
            except OSError:
                pass  # As in `flush`.

    def note_sync_failed(self, number: int) -> StorageError:
        """Syncing them failed with this error: the store fails for good, as in `flush`."""
        self._fail(f"syncing the commit log failed ({os.strerror(number)}): records not yet acknowledged may be lost")
        return StorageError(self._failure)

    def mark_flushed(self, log_offset: int) -> None:
        """Let records below `log_offset`, which `flush` returned, become visible at the next `publish`."""
        if log_offset > self._log.flushed:
            self._log.flushed = log_offset

    def publish(self) -> list[Arrival]:
        """Add queue and index entries of all records below the watermark; returns them, in log order.

        Without disk space for the entries nothing is returned and appends are refused; calling again goes on.
        """
        batches = self.publish_batches()
        self.index_published()
        return [
            arrival
            for batch in batches
            for arrival in (batch.arrivals if isinstance(batch, Batch) else batch.arrivals())
        ]

    def publish_batches(self) -> list[Batch | RunBatch]:
        """The same, returning whole batches; their keys are in the index after the next `index_published`."""
        if self._failure:
            return []
        watermark = self._log.flushed if self.settings.visible == "flushed" else self._log.written
        ready: list[Batch | RunBatch] = []
        for batch in self._pending:
            if batch.end > watermark:
                break
            ready.append(batch)
        if not ready:
            return []
        try:
            self._queues.put_batches(ready, may_hold=True)
        except OSError as error:
            if error.errno not in PASSING_ERRORS:
                self._fail(f"writing consume queues failed ({error})")
            self._dispatch_block = f"consume queues cannot be written ({error.strerror})"
            return []
        self._dispatch_block = ""
        end = ready[-1].end
        for _ in ready:
            self._pending.popleft()
        self._note_unindexed(ready)
        self._published_ms = ready[-1].stored_at_ms
        self._published_records += sum([batch.count for batch in ready])
        self.published = end
        return ready

    @property
    def holding(self) -> int:
        """Queues that have entries in memory alone."""
        return self._queues.holding

    def write_held_entries(self, *, queues_max: int) -> bool:
        """Write queue entries that wait in memory, of so many queues at most; whether more wait since before the first
        of these calls. Call it every second, until nothing waits.
        """
        queues = self._queues
        if self._failure:
            return False
        if self._held_left == 0:
            self._held_left, self._held_mark = queues.holding, self.published
        try:
            self._held_left -= queues.write_held(min(queues_max, self._held_left))
        except OSError as error:
            if error.errno not in PASSING_ERRORS:
                self._fail(f"writing consume queues failed ({error})")
            self._dispatch_block = f"consume queues cannot be written ({error.strerror})"
            self._held_left = 0
            return False
        if not self._pending:
            self._dispatch_block = ""
        if self._held_left == 0:
            self._entries_written_to = self._held_mark
        return self._held_left > 0

    def _note_unindexed(self, batches: Sequence[Batch | RunBatch]) -> None:
        start = self.published
        for batch in batches:
            if not self.settings.is_indexed:
                self._index.indexed_to = batch.end
            elif len(self._unindexed) < UNINDEXED_MAX:
                keys = batch if isinstance(batch, Batch) else batch.keys
                self._unindexed.append(_Unindexed(start, batch.end, keys, batch.stored_at_ms))
            start = batch.end

    def index_published(self, *, limit: int | None = INDEX_CATCH_UP_RECORDS) -> None:
        """Add the keys of published records to the index. [any thread, one at a time]

        Call it a few times a second, and before a query that must not miss the newest. Without disk space the index
        falls behind; what it lacks then is read from the log, `limit` records in one call at most.
        """
        index = self._index
        waiting = self._unindexed
        published = self.published  # Before what waits is looked at: what is published later waits, too.
        while waiting and not self._failure:
            first = waiting[0]
            if index.indexed_to < first.start:
                self._catch_up_index(first.start, limit=limit)
                if index.indexed_to < first.start:
                    return
            if not self._index_waiting():
                self._index_retry_at = self._clock.monotonic() + INDEX_RETRY_SECONDS
                return
        if not self._failure:
            self._catch_up_index(published, limit=limit)

    @property
    def is_index_behind(self) -> bool:
        """Whether `index_published` has something to do."""
        return self._index.indexed_to < self.published

    def _index_waiting(self) -> bool:
        """Index what waits first, packed keys together; `False` when there is no disk space."""
        index = self._index
        waiting = self._unindexed
        if self._clock.monotonic() < self._index_retry_at:
            return False
        first = waiting[0]
        count = 1
        if first.end <= index.indexed_to:
            pass  # Read from the log meanwhile.
        elif isinstance(first.keys, Batch):
            if not index.put(first.keys.arrivals):
                return False
        else:
            runs: list[tuple[bytes, int]] = []
            size = 0
            # Not by iterating: the owner adds to it meanwhile.
            for position in range(len(waiting)):
                item = waiting[position]
                if isinstance(item.keys, Batch) or (runs and item.start != first.end) or size > INDEX_BYTES_AT_ONCE:
                    break
                runs.append((item.keys, item.stored_at_ms))
                size += len(item.keys)
                first = item
            if not index.put_packed(runs):
                return False
            count = len(runs)
        index.indexed_to = max(index.indexed_to, first.end)
        for _ in range(count):
            waiting.popleft()
        return True

    def _catch_up_index(self, end: int, *, limit: int | None) -> None:
        """Index what was published while there was no space for it, up to a log offset."""
        index = self._index
        if index.indexed_to >= end or self._clock.monotonic() < self._index_retry_at:
            return
        behind: list[Arrival] = []
        for arrival in arrivals_between(self._log, index.indexed_to, end, self.settings.delay_levels_ms):
            behind.append(arrival)
            if limit is not None and len(behind) >= limit:
                end = arrival.log_offset + arrival.size
                break
        if index.put(behind):
            index.indexed_to = end
        else:
            self._index_retry_at = self._clock.monotonic() + INDEX_RETRY_SECONDS

    @property
    def needs_segment(self) -> bool:
        """Whether `prepare_next_segment` should run now, in a thread."""
        log = self._log
        return log.needs_pages or log.needs_segment or (self.settings.is_indexed and self._index.needs_spare)

    def prepare_next_segment(self) -> None:
        """Make the next segment, the next index file and pages of memory ahead of need. [any thread, one at a time]

        Without disk space nothing happens: `append` will say so when it needs the segment.
        """
        try:
            if self._log.needs_pages:
                self._log.prepare_pages()
            if self.settings.is_indexed and self._index.needs_spare:
                self._index.prepare_spare()
            if self._log.needs_segment:
                self._log.prepare_segment()
        except OSError as error:
            if error.errno not in FULL_DISK_ERRORS:
                raise storage_error("making the next segment failed", error) from error

    def _fail(self, reason: str) -> None:
        if not self._failure:
            self._failure = f"{reason}. The store takes no more writes: restart the broker once the disk is well"

    def _refusal(self) -> StorageError:
        if self._failure:
            return StorageError(self._failure)
        if self._is_closed:
            return StorageError("the store is closed: open it again")
        if self._dispatch_block:
            return DiskFull(f"{self._dispatch_block}: free some space, writing then goes on by itself")
        return DiskFull(
            f"the disk of {self.root} is more than {self.settings.disk_full_ratio:.0%} full: "
            "free some space, writing then goes on by itself"
        )

    # Checkpoint

    @property
    def needs_checkpoint(self) -> bool:
        """Whether enough was published since the last checkpoint to make the next start slow."""
        return (
            self.published - self._checkpoint_log_offset >= self.settings.checkpoint_bytes
            or self._published_records - self._checkpoint_records >= self.settings.checkpoint_records
        )

    def checkpoint(self) -> None:
        """Sync queues and index up to `published`, then say so in the checkpoint files. [any thread, one at a time]

        Call it every few seconds while `published` moves: a start after a crash reads the log again from here.
        """
        self._checkpoint(is_clean=False)

    def _checkpoint(self, *, is_clean: bool) -> None:
        if self._failure:
            raise StorageError(self._failure)
        # The order carries the proof. First the offset, then the queues (which may be ahead of it by now, never
        # behind), then the syncs, then the statement that all of it is on disk.
        published = self.published
        written_to = self._entries_written_to if self._queues.holding else published
        dispatched = min(written_to, self._index.indexed_to)
        records = self._published_records
        queues_ms, log_ms = self._published_ms, self._written_ms
        marks = tuple(QueueMark(queue.topic, queue.queue_id, queue.min_offset, queue.written) for queue in self._queues)
        index_files = self._index.files
        header = index_files[-1].header() if index_files else bytes(40)
        flushed = self.flush()
        try:
            self._pool.sync()
            self._index.sync()
            index_ms = index_files[-1].end_ms if index_files else 0
            times = TimeCheckpoint(
                log_ms=log_ms,
                queues_ms=queues_ms,
                # RocketMQ deletes an index file that ends after this time when it opens a crashed store, and then lacks
                # its older keys. A kill leaves the index whole, so it is told to keep what the next minute brings.
                index_ms=index_ms if is_clean or not index_files else self._clock.now_ms() + INDEX_TRUST_MS,
                confirmed=flushed,
            )
            own = OwnCheckpoint(
                session=self._session,
                log_start=self._log.min_offset,
                crc_from=self.hot_reads.session_start if self.settings.append_crc else NO_CRC,
                flushed=flushed,
                dispatched=dispatched,
                is_clean=is_clean,
                head_before=load_times(self._files, self.root).head(),
                head_after=times.head(),
                index_header=header,
                index_files=tuple((file.name, file.end_log) for file in index_files),
                queues=marks,
            )
            save_own(self._files, self.root, own)
            save_times(self._files, self.root, times)
            if self._flush_mark is not None:
                self._flush_mark.sync()
        except OSError as error:
            if error.errno in FULL_DISK_ERRORS:
                return  # The checkpoint before this one still holds.
            self._fail(f"writing the checkpoint failed ({error})")
            raise StorageError(self._failure) from error
        self._checkpoint_log_offset = dispatched
        self._checkpoint_records = records

    # Reading

    def fetch(
        self, topic: str, queue_id: int, start: int, *, limit: FetchLimit, selector: Selector | None = None
    ) -> Fetched:
        """Visible records of a queue from `start` on; raises `CorruptRecord` when the first is damaged. [any thread]"""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return Fetched(FetchStatus.NO_MATCHED_LOGIC_QUEUE, [], 0, 0, 0)
        return reading.fetch(
            self._log,
            queue,
            start,
            limit=limit,
            selector=selector,
            trusted_from=self.hot_reads.trusted_from,
            verified=self.hot_reads.verified.get((topic, queue_id)),
        )

    def warm(self, topic: str, queue_id: int, start: int, *, count: int) -> int:
        """Bring messages into memory and verify them, while other threads go on. [any thread]

        Returns the queue offset up to which they can be handed out; tell `mark_verified`.
        """
        queue = self._queues.get((topic, queue_id))
        return reading.warm(self._log, queue, start, count=count) if queue is not None else start

    def mark_verified(self, topic: str, queue_id: int, start: int, end: int) -> None:
        """Remember what `warm` found, so that nobody else has to verify it again."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None and start < min(end, queue.warm_from):
            verified = self.hot_reads.verified.setdefault((topic, queue_id), VerifiedRanges())
            verified.add(start, min(end, queue.warm_from))

    def hot_entries(self, topic: str, queue_id: int, start: int, count: int) -> HotEntries | None:
        """What a fetch of everything would hand out at once, without touching the disk; `None`: look closer."""
        return self.hot_reads.entries(self._queues.get((topic, queue_id)), start, count)

    def is_behind(self, topic: str, queue_id: int, start: int) -> bool:
        """Whether messages from `start` on are probably not in memory, or were not verified at the start."""
        return self.hot_reads.is_behind(self._queues.get((topic, queue_id)), start)

    def is_cold(self, topic: str, queue_id: int, start: int, count: int = 1) -> bool:
        """Whether a fetch would probably touch the disk or verify records, and should run in a thread."""
        queue = self._queues.get((topic, queue_id))
        hot_reads = self.hot_reads
        return hot_reads.is_behind(queue, start) and hot_reads.entries(queue, start, count, counts=False) is None

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue, for who asks for many of its messages; not for writing to it."""
        return self._queues.get((topic, queue_id))

    def read(self, log_offset: int, size: int | None = None) -> bytes:
        """The visible record that begins at `log_offset`, verified. [any thread]

        Raises `OffsetOutOfRange` when the log does not have it, `CorruptRecord` when there is no valid record.
        """
        segment = self._log.segment_at(log_offset)
        if segment is None or not self._log.min_offset <= log_offset < self.published:
            raise OffsetOutOfRange(
                f"log offset {log_offset} is not stored: the log goes from {self._log.min_offset} to {self.published}"
            )
        at = log_offset - segment.start
        limit = min(segment.end, self.published) - segment.start
        found = valid_size(segment.map, at, limit, log_offset)
        if not found or (size is not None and found != size):
            wanted = f" of {size} bytes" if size is not None else ""
            reason = f"it has {found} bytes" if found else why_invalid(segment.map, at, log_offset=log_offset)
            raise CorruptRecord(
                f"there is no valid record{wanted} at log offset {log_offset}: {reason}", log_offset=log_offset
            )
        return segment.map[at : at + found]

    def query(self, topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int) -> QueryResult:
        """The newest records of `topic` whose KEYS or unique id hold `key`, oldest first. [any thread]"""
        limit = min(limit, QUERY_MAX)
        newest = self._index.files[-1].end_ms if self._index.files else 0
        found: list[tuple[int, bytes]] = []
        # Hashes collide: look at more than asked for, and keep what really has the key.
        for log_offset in self._index.find(topic, key, limit=limit * 4, begin_ms=begin_ms, end_ms=end_ms):
            try:
                record = self.read(log_offset)
            except (OffsetOutOfRange, CorruptRecord):
                continue
            facts = read_facts(record, 0)
            if facts.topic == topic and begin_ms <= facts.stored_at_ms <= end_ms and _has_key(facts, key):
                found.append((log_offset, record))
                if len(found) >= limit:
                    break
        return QueryResult([record for _offset, record in sorted(found)], newest, self._index.indexed_to)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        return self._queues.get((topic, queue_id)) is not None

    def queues(self) -> list[tuple[str, int]]:
        """All queues that exist, as (topic, number)."""
        return [(queue.topic, queue.queue_id) for queue in self._queues]

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset that the next visible message of a queue will have."""
        queue = self._queues.get((topic, queue_id))
        return queue.end if queue is not None else 0

    def offset_at(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"] = "LOWER"
    ) -> int:
        """Queue offset for a store time. [any thread]"""
        queue = self._queues.get((topic, queue_id))
        return reading.offset_at(self._log, queue, timestamp_ms, boundary) if queue is not None else 0

    def stored_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of a message; -1 when it is not there. [any thread]"""
        queue = self._queues.get((topic, queue_id))
        return reading.stored_at_of(self._log, queue, queue_offset) if queue is not None else -1

    def earliest_stored_at(self) -> int:
        """Store time of the oldest record; -1 for an empty log."""
        segment = self._log.segment_at(self._log.min_offset)
        if segment is None or self._log.min_offset >= self._log.written:
            return -1
        size, _magic = decode_mark(memoryview(segment.map)[:BLANK_BYTES], 0)
        return stored_at(segment.map, 0) if size >= RECORD_BYTES_MIN else -1

    def latest_stored_at(self) -> int:
        """Store time of the newest record that a queue points to; 0 for an empty log."""
        return max((reading.stored_at_of(self._log, queue, queue.end - 1) for queue in self._queues), default=0)

    @property
    def min_log_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_log_offset(self) -> int:
        """End of the visible log."""
        return self.published

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> list[QueueEntry]:
        """Entries of a queue that exist in a range. [any thread]"""
        queue = self._queues.get((topic, queue_id))
        return reading.entries(queue, start, count) if queue is not None else []

    # Deleting

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic, durably; its records stay in the log until retention takes them."""
        for batch in self._pending:
            batch.forget(topic)
        self._queues.remove_topic(topic)
        self.hot_reads.forget_topic(topic)
        self.checkpoint()

    def plan_retention(self) -> RetentionReport:
        """Decide what may go now and stop using it; `delete_files` then deletes the files of the report."""
        now_ms = self._clock.now_ms()
        ages = [
            SegmentAge(segment.start, segment.end, self._files.modified_at_ms(segment.path))
            for segment in self._log.segments
        ]
        # What is not flushed, not published or not yet in a checkpoint is needed to recover.
        keep_from = min(self._log.flushed, self.published, self._index.indexed_to, self._checkpoint_log_offset)
        floor, reason = deletable(
            ages,
            self.settings,
            now_ms=now_ms,
            hour=_local_hour(now_ms),
            used_ratio=self.disk_state().used_ratio,
            keep_from=keep_from,
        )
        if reason == "none":
            return RetentionReport(self._log.min_offset, reason)
        self.hot_reads.forget_windows()
        paths = self._log.drop_before(floor)
        for queue in self._queues:
            paths += queue.trim(floor)
        paths += self._index.forget_before(floor)
        return RetentionReport(self._log.min_offset, reason, tuple(paths))

    def delete_files(self, paths: Iterable[Path]) -> None:
        """Delete files that a plan has given up. [any thread]"""
        try:
            for path in paths:
                self._files.unlink(path)
        except OSError as error:
            raise storage_error("deleting expired files failed", error) from error

    def enforce_retention(self) -> RetentionReport:
        """Plan and delete in one go."""
        report = self.plan_retention()
        self.delete_files(report.paths)
        return report

    def disk_state(self) -> DiskState:
        """Look at the disk; appends are refused or allowed again accordingly. [any thread]"""
        space = self._files.space(self.root)
        ratio = space.used_ratio
        if ratio > self.settings.disk_full_ratio:
            self._is_disk_full = True
        elif ratio <= self.settings.disk_force_ratio:
            self._is_disk_full = False
        is_full = self._is_disk_full or bool(self._dispatch_block)
        reason = str(self._refusal()) if is_full and not self._failure else ""
        return DiskState(ratio, space.usable, is_full, reason)


def _has_key(facts: RecordFacts, key: str) -> bool:
    text = facts.properties_text
    if property_of(text, Name.UNIQUE_ID) == key:
        return True
    return key in (property_of(text, Name.KEYS) or "").split(KEY_SEPARATOR)


def _local_hour(now_ms: int) -> int:
    return time.localtime(now_ms / 1000).tm_hour


def _refuse_other_layouts(files: FileSystem, root: Path) -> None:
    """Raise `StorageError` for directories of RocketMQ that keep queues or log in another form."""
    if files.list_directory(root / "batchconsumequeue"):
        raise StorageError(
            f"{root} has topics of the type BatchCQ, which KappaMQ does not read: move them to normal topics"
        )
    for name in files.list_directory(root):
        if name.startswith("dledger-"):
            raise StorageError(f"{root} is a DLedger store, which KappaMQ does not read: export it with RocketMQ")
        if name == "consumequeue_rocksdb":
            raise StorageError(f"{root} keeps its queues in RocksDB: start it once in RocketMQ with storeType=default")

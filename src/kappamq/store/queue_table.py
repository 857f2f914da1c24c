"""All consume queues by topic and number, and the one place that adds entries to them."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

from kappamq.errors import InvalidName, StorageError
from kappamq.model.config import QUEUES_MAX
from kappamq.model.names import check_topic
from kappamq.store.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue, QueueFiles
from kappamq.store.dispatch import Arrival, Batch
from kappamq.store.plain_runs import PlainRun, RunBatch

GAP_ENTRIES_MAX: Final = 1_000_000
"""Longest gap in the numbers of a queue that is bridged with blank entries."""


class QueueTable:
    """The consume queues of a store. Lookups run in any thread; everything else in the owner's."""

    def __init__(self, pool: QueueFiles, directory: Path, *, hold_above: int = 0) -> None:
        """With more than `hold_above` queues in one call, `put_batches` may leave entries in memory."""
        self.pool = pool
        self._hold_above = hold_above
        self._directory = directory
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.get = self._queues.get
        self.gaps: set[ConsumeQueue] = set()
        """Queues whose next record, found in the log, has a higher number than expected: entries are missing."""
        self._holding: deque[ConsumeQueue] = deque()
        """Each of them has `is_holding` set."""
        self.bridges_gaps = False
        """Fill gaps with blank entries: the log itself has no record for them."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def load(self) -> None:
        """Find the queues on disk. Directories that cannot be queues are left alone, as RocketMQ does."""
        files = self.pool.files
        for topic in files.list_directory(self._directory):
            for name in files.list_directory(self._directory / topic):
                if name.isascii() and name.isdigit():
                    queue = ConsumeQueue(self.pool, self._directory / topic / name, topic, int(name))
                    queue.is_sound = queue.load()
                    self._queues[topic, int(name)] = queue

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A new, empty queue. The name is checked here, as it becomes a directory."""
        check_topic(topic)
        if not 0 <= queue_id < QUEUES_MAX:
            raise InvalidName(f"queue {queue_id} of topic {topic!r} is out of range: use 0 to {QUEUES_MAX - 1}")
        queue = ConsumeQueue(self.pool, self._directory / topic / str(queue_id), topic, queue_id)
        self._queues[topic, queue_id] = queue
        return queue

    def obtain(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if need be."""
        return self.get((topic, queue_id)) or self.add(topic, queue_id)

    def find_targets(self, run: PlainRun) -> None:
        """Let the targets of a packed run know their queues, made if need be."""
        for target in run.targets.lost(run.rows):
            topic, queue_id = run.targets.name_of(target)
            run.targets.set_tail(target, self.obtain(topic.decode(), queue_id))

    def remove_topic(self, topic: str) -> int:
        """Delete all queues of a topic; returns how many."""
        gone = [key for key in self._queues if key[0] == topic]
        for key in gone:
            self._queues.pop(key).destroy()
        self.pool.files.remove_directory(self._directory / topic)
        return len(gone)

    def put(self, arrivals: Sequence[Arrival]) -> None:
        """Add the entries of records in log order: one write per queue. Entries that exist already are passed over.

        On an `OSError` some queues may have got theirs; calling again with the same arrivals adds the rest.
        """
        self.put_batches([Batch(0, list(arrivals))])

    def put_batches(self, batches: Sequence[Batch | RunBatch], *, may_hold: bool = False) -> None:
        """The same for batches in log order. With `may_hold` some entries reach the files only by `write_held`."""
        touched: list[ConsumeQueue] = []
        try:
            for batch in batches:
                if isinstance(batch, Batch):
                    self._stage(batch.arrivals, touched)
                else:
                    self._stage_run(batch, touched, may_hold=may_hold)
            holds = may_hold and len(touched) > self._hold_above
            if holds:
                self._note_holding([queue for queue in touched if not queue.is_holding])
            for queue in touched:
                queue.write_buffer(may_hold=holds)
        except OSError:
            for queue in touched:
                queue.discard_buffer()
            raise

    @property
    def holding(self) -> int:
        """Queues that may have entries in memory alone."""
        return len(self._holding)

    def write_held(self, count_max: int) -> int:
        """Write what so many queues hold, those that wait longest first; returns of how many."""
        done = 0
        while self._holding and done < count_max:
            queue = self._holding[0]
            if not queue.is_deleted:
                queue.write_held()
            queue.is_holding = False
            self._holding.popleft()
            done += 1
        return done

    def _note_holding(self, queues: Sequence[ConsumeQueue]) -> None:
        for queue in queues:
            queue.is_holding = True
        self._holding += queues

    def _stage_run(self, batch: RunBatch, touched: list[ConsumeQueue], *, may_hold: bool) -> None:
        if may_hold:
            fresh, left = batch.run.targets.hold(batch.queue_rows, batch.units, batch.end)
            self._holding += cast("list[ConsumeQueue]", fresh)  # What `find_targets` has set.
            if not left:
                return
        else:
            left = list(range(len(batch.queues)))
        queues = batch.queues
        for run in [queues[number] for number in left]:
            queue = self.obtain(run.topic, run.queue_id)
            if run.start != queue.tail:
                # Some are there already, or numbers began anew: each is looked at.
                self._stage(list(batch.arrivals_of(run)), touched)
                continue
            if not queue.buffer:
                touched.append(queue)
            queue.buffer.append(run.units)
            queue.tail = run.end

    def _stage(self, arrivals: Sequence[Arrival], touched: list[ConsumeQueue]) -> None:
        get = self.get
        pack = UNIT.pack
        for topic, queue_id, queue_offset, code, _stored, _text, log_offset, size, _keys, has_entry in arrivals:
            if not has_entry:
                continue
            queue = get((topic, queue_id)) or self.add(topic, queue_id)
            if queue_offset != queue.tail and not self._accept(queue, queue_offset, log_offset):
                continue
            buffer = queue.buffer
            if not buffer:
                touched.append(queue)
            buffer.append(pack(log_offset, size, code))
            queue.tail = queue_offset + 1

    def _accept(self, queue: ConsumeQueue, queue_offset: int, log_offset: int) -> bool:
        """Whether a record that is not the expected next one of its queue gets an entry; adjusts the queue for it."""
        if log_offset < queue.log_end:
            return False
        if queue_offset < queue.tail:
            # The topic was deleted and made again: its numbers began anew, and what is later in the log counts.
            queue.write_buffer()
            if queue_offset <= queue.min_offset:
                queue.cut(0, log_end=queue.log_end)
                queue.restart_at(queue_offset)
            else:
                queue.cut(queue_offset, log_end=queue.log_end)
            return True
        if queue.tail == queue.min_offset and not queue.stored_max:
            queue.restart_at(queue_offset)
            return True
        if not self.bridges_gaps:
            self.gaps.add(queue)
            return False
        missing = queue_offset - queue.tail
        if missing > GAP_ENTRIES_MAX:
            raise StorageError(
                f"queue {queue.queue_id} of {queue.topic!r} lacks {missing} records before log offset {log_offset}: "
                "restore the commit log from a copy"
            )
        queue.write_buffer()
        # The log offset keeps the entries in order; no record can be that long, so they read as deleted messages.
        queue.buffer += [UNIT.pack(queue.log_end, BLANK_SIZE, 0)] * missing
        queue.tail = queue_offset
        queue.write_buffer()
        queue.log_end = log_offset
        return True

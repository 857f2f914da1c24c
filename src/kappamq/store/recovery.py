"""Opening a store: find the end of the log, verify, cut, and derive again what queues and index lack.

The log is the truth. What a checkpoint proves to be on disk bounds the work; everything behind it is derived anew. The
rules, and why a hole in the log is sometimes a torn tail and sometimes damage, are in docs/decisions/0002-recovery.md.

Nothing is changed on disk before the decision that the log is not damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from kappamq.errors import CorruptRecord, InvalidName, StorageError
from kappamq.kernel import valid_size
from kappamq.kernel.verify_reference import NO_CRC
from kappamq.store.checkpoint import ABORT_NAME, OwnCheckpoint, TimeCheckpoint, load_flushed, load_own, load_times
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import BLANK_SIZE, ConsumeQueue
from kappamq.store.dispatch import Arrival, derive, is_code_of
from kappamq.store.files import FULL_DISK_ERRORS, FileSystem
from kappamq.store.key_index import IndexFile, KeyIndex
from kappamq.store.log_scan import (
    find_valid_record,
    is_blank_mark,
    is_in_place,
    read_facts,
    stored_at,
    valid_records,
    why_invalid,
)
from kappamq.store.queue_table import QueueTable
from kappamq.store.settings import StoreSettings

RESCAN_BATCH: Final = 4096
"""Records whose entries are written together while the log is read again."""


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What opening a store found and did."""

    was_clean: bool = False
    """The last user stopped in order."""
    was_foreign: bool = False
    """The last user was another broker, or our checkpoint is missing."""
    log_start: int = 0
    log_end: int = 0
    verified_from: int = 0
    """Checksums were verified from this log offset on."""
    rescanned_from: int = 0
    records_rescanned: int = 0
    discarded_bytes: int = 0
    """Length of the torn tail: bytes behind the end that were never acknowledged as durable."""
    damage: str = ""
    """Damage that `on_damage = truncate` cut away."""
    rebuilt_queues: list[str] = field(default_factory=list)
    rebuilt_index: bool = False
    skipped_topics: set[str] = field(default_factory=set)
    """Names in the log that cannot be topics; their records have no queue."""


class Recovery:
    """One opening of a store; `run` leaves log, queues and index ready."""

    def __init__(
        self,
        files: FileSystem,
        root: Path,
        settings: StoreSettings,
        *,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
    ) -> None:
        self._files = files
        self._root = root
        self._settings = settings
        self._log = log
        self._queues = queues
        self._index = index
        self._report = RecoveryReport()
        self._last_ms = 0
        self._rebuilding: set[ConsumeQueue] = set()
        self._crc_from = NO_CRC
        self._is_exact = False
        """The last user stopped in order and the log ends where it did then."""
        self._is_index_blocked = not settings.is_indexed

    def run(self) -> RecoveryReport:
        """Recover. Raises `CorruptRecord` for damage and `StorageError` for a directory that cannot be ours."""
        report = self._report
        own = load_own(self._files, self._root)
        times = load_times(self._files, self._root)
        has_abort = self._files.exists(self._root / ABORT_NAME)
        report.was_foreign = own is None
        report.was_clean = not has_abort and (own is None or own.is_clean)
        self._log.load()
        self._queues.load()
        index_files_lost = bool(self._index.load())
        flushed = 0
        if own is not None:
            self._crc_from = own.crc_from
            flushed = max(own.flushed, load_flushed(self._files, self._root, own.session))
        self._check_log_present(flushed)
        rescan_from = self._find_rescan_start(own, times)
        end = self._find_end(rescan_from, flushed, times)
        self._is_exact = own is not None and report.was_clean and end == own.dispatched
        rescan_from = min(rescan_from, end)
        self._log.cut(end)
        for queue in self._queues:
            queue.extend_tail()
        for segment in self._log.segments:
            if segment.end > flushed:
                segment.sync()
        if not report.was_clean or report.was_foreign:
            self._adopt_names()
        low = min(rescan_from, self._settle_queues(own, rescan_from))
        if self._settings.is_indexed:
            low = min(low, self._settle_index(own, rescan_from, is_file_lost=index_files_lost))
        else:
            self._index.indexed_to = end
        self._rescan(low, rescan_from, end)
        if self._index.indexed_to >= rescan_from and not self._is_index_blocked:
            self._index.indexed_to = end
        self._finish_queues()
        report.log_start, report.log_end, report.rescanned_from = self._log.min_offset, end, low
        return report

    def _adopt_names(self) -> None:
        """Sync what a killed process made and did not sync: names now, queues with the next checkpoint."""
        for directory in (self._root, self._log.directory, self._root / "index"):
            if self._files.exists(directory):
                self._files.sync_directory(directory)
        for queue in self._queues:
            queue.adopt(is_foreign=self._report.was_foreign)

    # The end of the log

    def _check_log_present(self, flushed: int) -> None:
        held = self._log.segments[-1].end if self._log.segments else 0
        if held < flushed:
            raise CorruptRecord(
                f"the commit log in {self._log.directory} ends at {held}, but was acknowledged as durable up to "
                f"{flushed}: restore the missing files, or delete kappamq.checkpoint to go on without them",
                log_offset=held,
            )

    def _find_rescan_start(self, own: OwnCheckpoint | None, times: TimeCheckpoint) -> int:
        """Log offset below which queues and index are known to be complete."""
        segments = self._log.segments
        if not segments:
            return 0
        if own is not None:
            return max(own.dispatched, self._log.min_offset)
        if self._report.was_clean:
            # RocketMQ dispatches in log order, so after a clean stop all below the furthest queue is dispatched.
            ends = [self._foreign_end(queue, segments[-1].end) for queue in self._queues]
            return max([self._log.min_offset, *(log_end for _end, log_end in ends)])
        # RocketMQ: start at the newest segment whose first record is older than the checkpoint's times.
        for segment in reversed(segments):
            if valid_size(segment.map, 0, segment.end - segment.start, segment.start):
                first_ms = stored_at(segment.map, 0)
                if first_ms and first_ms <= times.rescan_ms:
                    return segment.start
        return segments[0].start

    def _verify_start(self, rescan_from: int) -> int:
        """Where verifying begins: a record boundary some way below the rescan."""
        segment = self._log.segment_at(rescan_from) or (self._log.segments[-1] if self._log.segments else None)
        wanted = max(self._log.min_offset, rescan_from - self._settings.verify_bytes)
        if segment is None or rescan_from <= wanted:
            return rescan_from
        start = self._log.segment_at(wanted)
        assert start is not None
        if wanted == start.start:
            return wanted
        limit = min(start.end, rescan_from) - start.start
        found = find_valid_record(start.map, wanted - start.start, limit, log_start=start.start)
        return start.start + found if found is not None else min(start.end, rescan_from)

    def _find_end(self, rescan_from: int, flushed: int, times: TimeCheckpoint) -> int:
        """End of the valid log. Decides between a torn tail, which is cut, and damage, which is reported."""
        verify_from = self._verify_start(rescan_from)
        self._report.verified_from = verify_from
        end = self._walk(verify_from)
        tail = self._tail_after(end)
        if end >= flushed and not (self._report.was_foreign and self._is_flushed_behind(end, times)):
            self._report.discarded_bytes = max(0, tail - end)
            return end
        reason = self._reason(end)
        text = (
            f"the commit log is damaged at offset {end} ({reason}), and records behind it were acknowledged: "
            f"nothing was changed. Run 'kappamq store check {self._root}' to see how far it goes, restore the file "
            "from a copy, or start with on_damage = 'truncate' to give up everything from there on"
        )
        if self._settings.on_damage == "refuse":
            raise CorruptRecord(text, log_offset=end)
        self._report.damage = text
        self._report.discarded_bytes = max(tail, flushed) - end
        return end

    def _walk(self, log_offset: int) -> int:
        """Follow valid records and blank marks as far as they go."""
        while (segment := self._log.segment_at(log_offset)) is not None:
            limit = segment.end - segment.start
            at = log_offset - segment.start
            last = -1
            for position, size in valid_records(
                segment.map, at, limit, log_start=segment.start, crc_from=self._crc_from
            ):
                last = position
                at = position + size
            if last >= 0:
                self._last_ms = stored_at(segment.map, last)
            if not is_blank_mark(segment.map, at, limit):
                return segment.start + at
            log_offset = segment.end
        return log_offset

    def _tail_after(self, end: int) -> int:
        """Log offset behind the last byte that is not zero; `end` when only zeros follow."""
        tail = end
        for segment in self._log.segments:
            if segment.end > end and (found := segment.data_end(max(end, segment.start))) is not None:
                tail = found
        return tail

    def _is_flushed_behind(self, end: int, times: TimeCheckpoint) -> bool:
        """Without a checkpoint of ours: is there a valid record behind `end` that RocketMQ says it had flushed?

        Stale records behind the end, which RocketMQ leaves there, are older than the last good one and do not count.
        """
        for segment in self._log.segments:
            if segment.end <= end:
                continue
            position: int | None = segment.next_data(max(end + 1, segment.start))
            while position is not None:
                limit = segment.end - segment.start
                found = find_valid_record(segment.map, position - segment.start, limit, log_start=segment.start)
                if found is None:
                    break
                if self._last_ms <= stored_at(segment.map, found) <= times.log_ms:
                    return True
                position = segment.start + found + 1
        return False

    def _reason(self, end: int) -> str:
        segment = self._log.segment_at(end)
        if segment is None:
            return "the segment is missing"
        return why_invalid(segment.map, end - segment.start, log_offset=end)

    # Consume queues

    def _settle_queues(self, own: OwnCheckpoint | None, rescan_from: int) -> int:
        """Let each queue end where it provably agrees with the log; returns where the log must be read again from."""
        low = rescan_from
        if own is None:
            for queue in self._queues:
                end, _log_end = self._foreign_end(queue, rescan_from)
                low = min(low, self._keep(queue, end, start=queue.first_stored))
            return low
        marks = {(mark.topic, mark.queue_id): mark for mark in own.queues}
        for queue in self._queues:
            mark = marks.pop((queue.topic, queue.queue_id), None)
            if mark is None:
                # Made after the checkpoint: all its records are read again.
                queue.cut(0, log_end=0)
                continue
            start = max(mark.min_offset, queue.first_stored)
            if start > mark.min_offset and own.log_start == self._log.min_offset:
                queue.is_sound = False  # Its first files are gone, but not because retention took the records.
            queue.min_offset = start
            end = mark.end
            if not self._is_exact and queue.is_sound:
                end = queue.first_at(rescan_from, min(start, end), end)
            low = min(low, self._keep(queue, end, start=start))
        for mark in marks.values():
            queue = self._queues.add(mark.topic, mark.queue_id)
            if mark.end > mark.min_offset:
                self._rebuild(queue)
                low = self._log.min_offset
            elif mark.end:
                queue.restart_at(mark.end)
        return low

    def _rebuild(self, queue: ConsumeQueue) -> None:
        self._rebuilding.add(queue)
        self._report.rebuilt_queues.append(f"{queue.topic}/{queue.queue_id}")

    def _foreign_end(self, queue: ConsumeQueue, log_end: int) -> tuple[int, int]:
        """Entries of a queue that point below `log_end`, by bisection; and the log offset behind the last one."""
        start, end = queue.first_stored, queue.stored_max
        if not queue.is_sound or queue.has_short_tail:
            return start, 0
        while start < end:
            middle = (start + end) // 2
            unit = queue.unit(middle)
            if unit is not None and unit[1] > 0 and 0 <= unit[0] < log_end:
                start = middle + 1
            else:
                end = middle
        while start > queue.first_stored:
            last = queue.unit(start - 1)
            if last is None or last[1] == BLANK_SIZE:
                return start, 0
            if self._agrees(queue, start - 1):
                return start, last[0] + last[1]
            start = self._last_agreeing(queue, queue.first_stored, start - 1)
        return start, 0

    def _keep(self, queue: ConsumeQueue, end: int, *, start: int) -> int:
        """Keep the entries below `end` if the last one agrees with the log, else those up to the last that does.

        Returns the log offset from which the queue must be derived again.
        """
        wanted = end
        if not queue.is_sound:
            end = start
        elif end > start and not self._agrees(queue, end - 1):
            end = self._last_agreeing(queue, start, end - 1)
        last = queue.unit(end - 1) if end > start else None
        log_end = last[0] + last[1] if last is not None and last[1] != BLANK_SIZE else 0
        if end == wanted and queue.is_sound:
            queue.settle(end, log_end=log_end)
            if queue.has_data_behind():
                queue.cut(end, log_end=log_end)
            return self._log.written
        self._rebuild(queue)
        queue.min_offset = min(queue.min_offset, end)
        if end <= start:
            queue.min_offset = 0
            queue.cut(0, log_end=0)
        else:
            queue.cut(end, log_end=log_end)
        return max(log_end, self._log.min_offset)

    def _last_agreeing(self, queue: ConsumeQueue, start: int, end: int) -> int:
        """A place in [start, end] such that the entry before it agrees with the log; `start` when none does."""
        while start < end:
            middle = (start + end) // 2
            if self._agrees(queue, middle):
                start = middle + 1
            else:
                end = middle
        return start

    def _agrees(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether the log has the record that an entry names, with the same number and tag code."""
        unit = queue.unit(queue_offset)
        if unit is None:
            return False
        log_offset, size, code = unit
        if size == BLANK_SIZE or 0 <= log_offset < self._log.min_offset:
            return size > 0
        segment = self._log.segment_at(log_offset)
        if segment is None or log_offset + size > min(self._log_end(), segment.end):
            return False
        at = log_offset - segment.start
        if not is_in_place(segment.map, at, log_offset=log_offset, size=size):
            return False
        facts = read_facts(segment.map, at)
        if (facts.topic, facts.queue_id, facts.queue_offset) != (queue.topic, queue.queue_id, queue_offset):
            return False
        derived = derive(facts, log_offset, size, self._settings.delay_levels_ms)
        return is_code_of(queue.topic, code, derived.tags_code)

    def _log_end(self) -> int:
        # Before the end is known, every byte that the files have room for may belong to the log.
        return max(self._log.written, self._log.segments[-1].end if self._log.segments else 0)

    def _finish_queues(self) -> None:
        for queue in self._queues:
            if queue.end and queue.min_offset < queue.end:
                queue.min_offset = self._first_real(queue)
                if self._log.min_offset:
                    for path in queue.trim(self._log.min_offset):
                        self._files.unlink(path)
            queue.settle(queue.end, log_end=queue.log_end)

    def _first_real(self, queue: ConsumeQueue) -> int:
        """First entry that is not a filler, as a queue has before its first message if that is not number 0."""
        start = max(queue.min_offset, queue.first_stored)
        unit = queue.unit(start)
        if unit is None or unit[1] != BLANK_SIZE:
            return start
        end = queue.end
        while start < end:
            middle = (start + end) // 2
            unit = queue.unit(middle)
            if unit is not None and unit[1] == BLANK_SIZE:
                start = middle + 1
            else:
                end = middle
        return start

    # Key index

    def _settle_index(self, own: OwnCheckpoint | None, rescan_from: int, *, is_file_lost: bool) -> int:
        """Keep what provably indexes the log below some offset; returns that offset."""
        index = self._index
        complete_to = rescan_from
        if own is not None:
            known = dict(own.index_files)
            index.drop([file for file in index.files if file.name not in known])
            present = {file.name for file in index.files}
            if any(name not in present and last >= self._log.min_offset for name, last in own.index_files):
                is_file_lost = True
            elif index.files:
                last = index.files[-1]
                if not (self._is_exact and last.header() == own.index_header):
                    last.read_header(own.index_header)
                    complete_to = self._roll_back_index(rescan_from, suspect=last)
        elif index.files and not self._report.was_clean:
            complete_to = min(complete_to, self._trust_foreign_index(rescan_from))
        elif not index.files:
            is_file_lost = True
        if is_file_lost:
            index.drop(index.files)
            complete_to = self._log.min_offset
        self._report.rebuilt_index = complete_to < rescan_from
        index.indexed_to = complete_to
        return complete_to

    def _roll_back_index(self, log_offset: int, *, suspect: IndexFile) -> int:
        """Remove all entries of records from `log_offset` on; the slots of `suspect` are derived anew in any case.

        Returns the log offset below which the index is complete: lower than asked for when there is no disk space.
        """
        index = self._index
        while index.files:
            last = index.files[-1]
            count = last.entries_below(log_offset, last.count)
            if count > 1:
                if count < last.count or last is suspect:
                    offset = last.entry(count - 1)[1]
                    segment = self._log.segment_at(offset)
                    end_ms = stored_at(segment.map, offset - segment.start) if segment is not None else last.end_ms
                    try:
                        last.roll_back(count, end_ms=end_ms)
                    except OSError as error:
                        if error.errno not in FULL_DISK_ERRORS:
                            raise
                        return self._give_up(last, log_offset)
                return log_offset
            index.drop([last])
        return log_offset

    def _trust_foreign_index(self, rescan_from: int) -> int:
        """After a crash of RocketMQ: keep what is in order below the rescan, drop files that are not."""
        index = self._index
        while index.files:
            last = index.files[-1]
            if last.count > 1 and last.is_ordered(last.count, log_end=self._log.written):
                return self._roll_back_index(rescan_from, suspect=last)
            rescan_from = self._give_up(last, rescan_from)
        return self._log.min_offset

    def _give_up(self, last: IndexFile, log_offset: int) -> int:
        """Drop the last index file; its keys are found again by reading the log from where the file before it ends."""
        self._index.drop([last])
        files = self._index.files
        return min(log_offset, files[-1].end_log if files else self._log.min_offset)

    # Reading the log again

    def _rescan(self, start: int, rescan_from: int, end: int) -> None:
        """Derive entries from the log: all behind `rescan_from`, and of what must be rebuilt, all from `start` on."""
        for batch in self._batches(start, end):
            self._report.records_rescanned += len(batch)
            self._put(batch, rescan_from)
        gaps = set(self._queues.gaps)
        if not gaps:
            return
        # The log has later records of these queues but their entries do not lead up to them: derive all of them. Should
        # the log itself lack some, the second pass bridges them.
        self._queues.gaps.clear()
        self._queues.bridges_gaps = True
        self._rebuilding.clear()
        for queue in gaps:
            queue.min_offset = 0
            queue.cut(0, log_end=0)
            self._rebuild(queue)
        for batch in self._batches(self._log.min_offset, end):
            self._queues.put([arrival for arrival in batch if self._is_rebuilding(arrival)])
        self._queues.bridges_gaps = False

    def _put(self, batch: list[Arrival], rescan_from: int) -> None:
        self._queues.put(
            [
                arrival
                for arrival in batch
                if self._is_rebuilding(arrival) or (arrival.log_offset >= rescan_from and self._has_valid_name(arrival))
            ]
        )
        index = self._index
        batch_end = batch[-1].log_offset + batch[-1].size
        if self._is_index_blocked or index.indexed_to >= batch_end:
            return
        if index.put([arrival for arrival in batch if arrival.log_offset >= index.indexed_to]):
            index.indexed_to = batch_end
        else:
            self._is_index_blocked = True  # No disk space: the store catches up once there is some.

    def _batches(self, start: int, end: int) -> Iterator[list[Arrival]]:
        arrivals = arrivals_between(self._log, start, end, self._settings.delay_levels_ms)
        while batch := list(islice(arrivals, RESCAN_BATCH)):
            yield batch

    def _is_rebuilding(self, arrival: Arrival) -> bool:
        return bool(self._rebuilding) and self._queues.get((arrival.topic, arrival.queue_id)) in self._rebuilding

    def _has_valid_name(self, arrival: Arrival) -> bool:
        if not arrival.has_queue_entry:
            return False
        if self._queues.get((arrival.topic, arrival.queue_id)) is None:
            try:
                self._queues.add(arrival.topic, arrival.queue_id)
            except InvalidName:
                self._report.skipped_topics.add(arrival.topic)
                return False
        return True


def arrivals_between(log: CommitLog, start: int, end: int, delay_levels_ms: tuple[int, ...]) -> Iterator[Arrival]:
    """What the records of a range of the log mean for queues and index. Raises `CorruptRecord` where one is damaged."""
    while start < end:
        segment = log.segment_at(start)
        if segment is None:
            raise StorageError(
                f"the segment of log offset {start} is missing in {log.directory}: restore it from a copy"
            )
        view = segment.map
        at = start - segment.start
        limit = min(segment.end, end) - segment.start
        for position, size in valid_records(view, at, limit, log_start=segment.start):
            yield derive(read_facts(view, position), segment.start + position, size, delay_levels_ms)
            at = position + size
        if at == limit:
            start = segment.start + at
        elif is_blank_mark(view, at, segment.end - segment.start):
            start = segment.end
        else:
            log_offset = segment.start + at
            raise CorruptRecord(
                f"the commit log is damaged at offset {log_offset} ({why_invalid(view, at, log_offset=log_offset)}): "
                "run 'kappamq store check' to see how far it goes, and restore the file from a copy",
                log_offset=log_offset,
            )

"""Verify every invariant of a store directory that no broker uses; change nothing.

The log is read once, record by record. On the way the consume queues it implies are built up in memory and the index
entries are followed along; afterwards both are compared with the files. In a store that was not stopped in order, only
what its checkpoint vouches for must be there: the rest is derived again at the next start.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import byteorder
from typing import Final

from kappamq.clock import SystemClock
from kappamq.errors import InvalidName, StorageError
from kappamq.kernel import java_hash, valid_size
from kappamq.kernel.verify_reference import NO_CRC
from kappamq.model.names import check_topic
from kappamq.model.properties import Name, property_of
from kappamq.store.checkpoint import ABORT_NAME, OwnCheckpoint, load_flushed, load_own, load_times
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue, QueueFiles
from kappamq.store.dispatch import Arrival, derive, is_code_of
from kappamq.store.files import FileSystem, RealFileSystem
from kappamq.store.key_index import HEADER_BYTES, SLOT_BYTES, IndexFile, KeyIndex, key_hash
from kappamq.store.log_scan import (
    find_valid_record,
    is_blank_mark,
    read_facts,
    stored_at,
    valid_records,
    why_invalid,
)
from kappamq.store.queue_table import QueueTable
from kappamq.store.settings import UNIT_BYTES, StoreSettings

VIOLATIONS_MAX: Final = 1000
"""Findings after which the check stops collecting."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant. `where` names the file or structure."""

    where: str
    log_offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.where}: log offset {self.log_offset}: {self.text}"


@dataclass(slots=True)
class CheckReport:
    """What a check found."""

    violations: list[Violation] = field(default_factory=list)
    is_clean_stop: bool = True
    log_start: int = 0
    log_end: int = 0
    complete_to: int = 0
    """Log offset below which queues and index were required to be complete."""
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_entries: int = 0
    tail_bytes: int = 0
    """Bytes behind the end of the log that the next start will cut away."""

    @property
    def is_sound(self) -> bool:
        return not self.violations

    def add(self, where: str, log_offset: int, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(where, log_offset, text))


def check_store(root: Path, settings: StoreSettings, *, files: FileSystem | None = None) -> CheckReport:
    """Check a store directory. Raises `StoreLocked` while a broker uses it, `StorageError` if it cannot be read."""
    files = files if files is not None else RealFileSystem()
    if not files.exists(root / "commitlog"):
        raise StorageError(f"{root} has no commit log: name the store directory of a broker")
    lock = files.lock(root / "lock") if files.exists(root / "lock") else None
    try:
        return _Check(files, root, settings).run()
    finally:
        if lock is not None:
            lock.close()


class _ExpectedQueue:
    """The entries that the log implies for one queue."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.units = bytearray()

    @property
    def end(self) -> int:
        return self.start + len(self.units) // UNIT_BYTES


class _Check:
    def __init__(self, files: FileSystem, root: Path, settings: StoreSettings) -> None:
        self._files = files
        self._root = root
        self._settings = settings
        self._log = CommitLog(files, root / "commitlog", segment_bytes=settings.segment_bytes)
        pool = QueueFiles(files, file_bytes=settings.queue_file_bytes, open_max=settings.queue_files_open_max)
        self._queues = QueueTable(pool, root / "consumequeue")
        self._index = KeyIndex(
            files, root / "index", slots=settings.index_slots, entries=settings.index_entries, clock=SystemClock()
        )
        self._expected: dict[tuple[str, int], _ExpectedQueue] = {}
        self._topic_hashes: dict[str, int] = {}
        self._last_ms = 0
        self._crc_from = NO_CRC
        self._report = CheckReport()

    def run(self) -> CheckReport:
        report = self._report
        own = load_own(self._files, self._root)
        report.is_clean_stop = not self._files.exists(self._root / ABORT_NAME) and (own is None or own.is_clean)
        flushed = max(own.flushed, load_flushed(self._files, self._root, own.session)) if own is not None else 0
        self._crc_from = own.crc_from if own is not None else NO_CRC
        self._log.load(writable=False)
        self._queues.load()
        self._load_index()
        try:
            report.log_start = self._log.min_offset
            report.complete_to = self._complete_to(own)
            self._check_log(flushed)
            self._check_checkpoint(own, flushed)
            self._check_queues(own)
            for file in self._index.files:
                self._check_chains(file)
        finally:
            self._log.close(remove_unused=False)
            self._queues.pool.close()
            self._index.close()
        return report

    def _load_index(self) -> None:
        opened: list[IndexFile] = []
        for name in self._index.names():
            path = self._root / "index" / name
            try:
                opened.append(
                    IndexFile.open(
                        self._files, path, slots=self._settings.index_slots, entries=self._settings.index_entries
                    )
                )
            except StorageError as fault:
                self._report.add(f"index/{name}", 0, str(fault))
        self._index.files = tuple(opened)

    def _complete_to(self, own: OwnCheckpoint | None) -> int:
        if self._report.is_clean_stop:
            return self._log.segments[-1].end if self._log.segments else 0
        if own is not None:
            return own.dispatched
        rescan_ms = load_times(self._files, self._root).rescan_ms
        for segment in reversed(self._log.segments):
            is_valid = valid_size(segment.map, 0, segment.end - segment.start, segment.start)
            if is_valid and 0 < stored_at(segment.map, 0) <= rescan_ms:
                return segment.start
        return self._log.min_offset

    # The log

    def _check_log(self, flushed: int) -> None:
        entries = self._index_entries()
        entry = next(entries, None)
        for arrival in self._records(flushed):
            self._report.records += 1
            self._last_ms = arrival.stored_at_ms
            if arrival.log_offset >= self._report.complete_to:
                continue
            if arrival.has_queue_entry:
                self._expect(arrival)
            found: Counter[int] = Counter()
            while entry is not None and entry[1] <= arrival.log_offset:
                if entry[1] == arrival.log_offset:
                    found[entry[0]] += 1
                elif entry[1] >= self._log.min_offset:
                    self._report.add("index", entry[1], "an entry names an offset at which no record begins")
                entry = next(entries, None)
            self._check_keys(arrival, found)
        while entry is not None and entry[1] < self._report.complete_to:
            if entry[1] >= self._report.log_end:
                self._report.add(
                    "index", entry[1], f"an entry points behind the end of the log ({self._report.log_end})"
                )
            entry = next(entries, None)

    def _records(self, flushed: int) -> Iterator[Arrival]:
        """All valid records; reports what lies between them."""
        log_offset = self._log.min_offset
        while (segment := self._log.segment_at(log_offset)) is not None:
            view = segment.map
            limit = segment.end - segment.start
            at = log_offset - segment.start
            for position, size in valid_records(view, at, limit, log_start=segment.start, crc_from=self._crc_from):
                at = position + size
                facts = read_facts(view, position)
                yield derive(facts, segment.start + position, size, self._settings.delay_levels_ms)
            log_offset = segment.start + at
            if is_blank_mark(view, at, limit):
                log_offset = segment.end
                continue
            following = self._next_valid(log_offset)
            if log_offset >= flushed and (following is None or not self._report.is_clean_stop):
                break
            reason = why_invalid(view, at, log_offset=log_offset)
            if following is None:
                text = f"no valid record, though the log was flushed up to {flushed}: {reason}"
                self._report.add(f"commitlog/{segment.path.name}", log_offset, text)
                break
            text = f"no valid record ({reason}); the next one is at {following}"
            self._report.add(f"commitlog/{segment.path.name}", log_offset, text)
            log_offset = following
        self._report.log_end = log_offset
        tails = [
            segment.data_end(max(log_offset, segment.start))
            for segment in self._log.segments
            if segment.end > log_offset
        ]
        self._report.tail_bytes = max((tail - log_offset for tail in tails if tail is not None), default=0)

    def _next_valid(self, log_offset: int) -> int | None:
        for candidate in self._log.segments:
            if candidate.end <= log_offset:
                continue
            start = candidate.next_data(max(log_offset + 1, candidate.start))
            if start is None:
                continue
            limit = candidate.end - candidate.start
            found = find_valid_record(candidate.map, start - candidate.start, limit, log_start=candidate.start)
            if found is not None:
                return candidate.start + found
        return None

    def _expect(self, arrival: Arrival) -> None:
        key = (arrival.topic, arrival.queue_id)
        expected = self._expected.get(key)
        if expected is None:
            expected = self._expected[key] = _ExpectedQueue(arrival.queue_offset)
        if arrival.queue_offset < expected.end:
            # The topic was deleted and made again: its numbers began anew.
            if arrival.queue_offset <= expected.start:
                expected.start = arrival.queue_offset
                expected.units.clear()
            else:
                del expected.units[(arrival.queue_offset - expected.start) * UNIT_BYTES :]
        elif arrival.queue_offset > expected.end:
            text = f"record {arrival.queue_offset} of queue {key[1]} of topic {key[0]!r} follows {expected.end - 1}"
            self._report.add("commitlog", arrival.log_offset, text)
            expected.units += UNIT.pack(arrival.log_offset, BLANK_SIZE, 0) * (arrival.queue_offset - expected.end)
        expected.units += UNIT.pack(arrival.log_offset, arrival.size, arrival.tags_code)

    def _check_checkpoint(self, own: OwnCheckpoint | None, flushed: int) -> None:
        report = self._report
        if own is not None:
            if own.dispatched > own.flushed:
                report.add(
                    "kappamq.checkpoint", own.dispatched, f"entries are claimed beyond the flushed {own.flushed}"
                )
            if flushed > report.log_end and self._log.segments:
                report.add("kappamq.checkpoint", flushed, f"the log ends before, at {report.log_end}")
            if report.is_clean_stop and own.dispatched != report.log_end:
                report.add("kappamq.checkpoint", own.dispatched, f"the log of a clean store ends at {report.log_end}")
        times = load_times(self._files, self._root)
        if max(times.log_ms, times.queues_ms) > self._last_ms and report.records:
            report.add(
                "checkpoint",
                report.log_end,
                f"its times {times.log_ms} and {times.queues_ms} are ahead of the last record's, {self._last_ms}",
            )

    # Consume queues

    def _check_queues(self, own: OwnCheckpoint | None) -> None:
        marked = {(mark.topic, mark.queue_id) for mark in own.queues} if own is not None else None
        present = set()
        for queue in self._queues:
            present.add((queue.topic, queue.queue_id))
            self._report.queues += 1
            self._check_queue(queue)
        for key, expected in self._expected.items():
            # Without a mark in the checkpoint the topic was deleted, and only its records are left.
            if key in present or (marked is not None and key not in marked):
                continue
            if self._is_topic(key[0]):
                first = UNIT.unpack_from(expected.units)[0]
                self._report.add(
                    f"consumequeue/{key[0]}/{key[1]}", first, "the log has records, but the queue is missing"
                )

    def _is_topic(self, name: str) -> bool:
        try:
            check_topic(name)
        except InvalidName:
            return False
        return True

    def _check_queue(self, queue: ConsumeQueue) -> None:
        where = f"consumequeue/{queue.topic}/{queue.queue_id}"
        if queue.has_short_tail and not self._report.is_clean_stop:
            return  # Left by a crash; the next start puts it right.
        if not queue.is_sound or queue.has_short_tail:
            self._report.add(where, self._log.min_offset, "a file is missing between others, or too short")
            return
        expected = self._expected.get((queue.topic, queue.queue_id))
        if expected is None:
            self._check_surplus(queue, where, queue.first_stored)
            return
        offset = expected.start
        position = 0
        while position < len(expected.units):
            found = queue.units(offset, (len(expected.units) - position) // UNIT_BYTES)
            wanted = bytes(expected.units[position : position + len(found)]) if found else b""
            if not found or found != wanted:
                self._report_mismatch(queue, where, expected, offset)
                return
            position += len(found)
            offset += len(found) // UNIT_BYTES
        self._report.queue_entries += len(expected.units) // UNIT_BYTES
        self._check_surplus(queue, where, expected.end)

    def _report_mismatch(self, queue: ConsumeQueue, where: str, expected: _ExpectedQueue, offset: int) -> None:
        for queue_offset in range(offset, expected.end):
            log_offset, size, code = UNIT.unpack_from(expected.units, (queue_offset - expected.start) * UNIT_BYTES)
            unit = queue.unit(queue_offset)
            is_there = unit is not None and unit[:2] == (log_offset, size) and is_code_of(queue.topic, unit[2], code)
            if not is_there:
                text = f"entry {queue_offset} is {unit}, but the log says {(log_offset, size, code)}"
                self._report.add(where, log_offset, text)
                return

    def _check_surplus(self, queue: ConsumeQueue, where: str, end: int) -> None:
        """Behind the entries of the log there must be nothing that RocketMQ would take for one."""
        if not self._report.is_clean_stop:
            return
        unit = queue.unit(end)
        if unit is not None and unit[1] > 0 and unit[1] != BLANK_SIZE and unit[0] >= self._log.min_offset:
            self._report.add(where, unit[0], f"entry {end} is {unit}, but the log has no such record")

    # Key index

    def _index_entries(self) -> Iterator[tuple[int, int]]:
        """Hash and log offset of all entries, in the order of the log."""
        last = 0
        for file in self._index.files:
            for number in range(1, file.count):
                hashed, log_offset, _seconds, _older = file.entry(number)
                if log_offset < last and self._report.is_clean_stop:
                    self._report.add(f"index/{file.name}", log_offset, f"entry {number} goes back in the log")
                    continue
                last = log_offset
                self._report.index_entries += 1
                yield hashed, log_offset

    def _check_keys(self, arrival: Arrival, found: "Counter[int]") -> None:
        if not self._index.files or not self._settings.is_indexed:
            return
        topic_hash = self._topic_hashes.get(arrival.topic)
        if topic_hash is None:
            topic_hash = self._topic_hashes[arrival.topic] = java_hash(arrival.topic + "#")
        wanted = {key_hash(topic_hash, key) for key in arrival.keys}
        for hashed in wanted - found.keys():
            self._report.add("index", arrival.log_offset, f"the key with hash {hashed} is not indexed")
        # RocketMQ: 5.5 also indexes the tag, as `topic#T#tag`.
        tags = property_of(arrival.properties_text, Name.TAGS)
        allowed = wanted | {key_hash(topic_hash, f"T#{tags}")}
        for hashed in found.keys() - allowed:
            self._report.add(
                "index", arrival.log_offset, f"an entry with hash {hashed} names a record without that key"
            )

    def _check_chains(self, file: IndexFile) -> None:
        """Each entry must be reachable from its slot. A crash may leave slots wrong; they are derived again then."""
        if not self._report.is_clean_stop:
            return
        slots = self._settings.index_slots
        heads = array("i", bytes(slots * SLOT_BYTES))
        for number in range(1, file.count):
            hashed, log_offset, _seconds, older = file.entry(number)
            slot = hashed % slots
            if hashed < 0 or older != heads[slot]:
                text = f"entry {number} continues with {older} instead of {heads[slot]}"
                self._report.add(f"index/{file.name}", log_offset, text)
                return
            heads[slot] = number
        if byteorder == "little":
            heads.byteswap()
        if file.map[HEADER_BYTES : HEADER_BYTES + slots * SLOT_BYTES] != heads.tobytes():
            self._report.add(f"index/{file.name}", file.begin_log, "slots do not point to the newest entries")

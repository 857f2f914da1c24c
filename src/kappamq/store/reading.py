"""Reading queues: pull a range, find a time, look at entries. Runs in any thread beside the owner.

Records that this process wrote or verified at start are handed out as they are; older ones are verified first, many at
once by `warm`, which somebody calls in a thread ahead of who reads, or one by one by `fetch`.
"""

import builtins
from dataclasses import dataclass
from enum import Enum
from mmap import mmap
from typing import Final, Literal, NamedTuple

from kappamq.errors import CorruptRecord
from kappamq.kernel import gather_records, record_runs, valid_size, verify_entries
from kappamq.kernel.verify_reference import belongs_to
from kappamq.model.properties import decode_properties
from kappamq.model.selector import Selector
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue
from kappamq.store.log_scan import is_in_place, read_facts, stored_at, why_invalid
from kappamq.store.verified import VerifiedRanges

SCAN_ENTRIES_MAX: Final = 800
"""Entries that one fetch looks at when a filter matches few of them."""


UNTRUSTED: Final = 1 << 63
"""A log offset behind all records."""


class FetchStatus(Enum):
    """Outcome of a fetch; the names are RocketMQ's, as they travel in the remark of a pull reply."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class FetchLimit:
    """How much one fetch returns. The first message is always returned, whatever its size."""

    count: int = 32
    bytes_max: int = 256 * 1024
    scan_max: int = SCAN_ENTRIES_MAX


@dataclass(slots=True)
class Fetched:
    """Records of a queue in order. `records` holds runs of adjacent records, so it may be shorter than `count`."""

    status: FetchStatus
    records: list[bytes]
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    bytes: int = 0
    last_log_offset: int = 0

    @property
    def body(self) -> builtins.bytes:
        """All records, one after the other: the body of a pull reply."""
        return self.records[0] if len(self.records) == 1 else b"".join(self.records)


WARM_BYTES_MAX: Final = 4 * 1024 * 1024
"""Part of the log that is brought into memory in one go: a disk that is busy with more keeps a sync waiting."""
WARM_GAP_BYTES: Final = 64 * 1024
"""Records of other queues between two of ours are cheaper to read than to leave out, up to this size."""
WARM_ENTRIES_MIN: Final = 32
"""Entries that are looked at together, however far apart their records lie."""


class HotEntries(NamedTuple):
    """Entries of messages that are in memory and need no verifying, and the part of the log that holds the first."""

    units: bytes
    log: bytes | mmap
    log_start: int
    lowest: int
    min_offset: int
    max_offset: int


class QueueEntry(NamedTuple):
    """One entry of a consume queue."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int


def fetch(
    log: CommitLog,
    queue: ConsumeQueue,
    start: int,
    *,
    limit: FetchLimit,
    selector: Selector | None,
    trusted_from: int,
    verified: VerifiedRanges | None = None,
) -> Fetched:
    """Records from queue offset `start`. `trusted_from` is the log offset from which nothing needs verifying.

    `verified` are entries that were held against their records already.
    """
    end = queue.end
    min_offset = queue.min_offset
    if not min_offset <= start < end:
        return _outside(start, min_offset, end)
    everything = selector is None or selector.is_everything
    wanted = min(limit.count if everything else limit.scan_max, end - start)
    if start < queue.warm_from:
        # Entries that another process wrote are held against the records they name, once.
        verified_end = verified.end_of(start) if verified is not None else start
        trusted_from = 0 if verified_end > start else UNTRUSTED
        if verified_end > start:
            wanted = min(wanted, verified_end - start)
    data = queue.units(start, wanted)
    if not data:
        # RocketMQ: a missing file is passed over to the next one.
        return Fetched(FetchStatus.OFFSET_FOUND_NULL, [], _next_file(queue, start, end), min_offset, end)
    if everything and trusted_from != UNTRUSTED:
        fetched = _fetch_run(log, data, start, limit.bytes_max, trusted_from)
        if fetched is not None:
            fetched.min_offset = min_offset
            fetched.max_offset = end
            return fetched
    fetched = Fetched(FetchStatus.FOUND, [], start, min_offset, end)
    return _fetch_each(log, queue, data, fetched, limit=limit, selector=selector, trusted_from=trusted_from)


def warm(log: CommitLog, queue: ConsumeQueue, start: int, *, count: int) -> int:
    """Bring the records of up to `count` entries into memory and verify those that another process wrote.

    Returns the queue offset up to which they may be handed out as they are; `start` when not even the first may. Reads
    from files, as a page that must come from the disk through a map would stop the whole interpreter, and with it
    everybody who sends.
    """
    end = queue.end
    if not queue.min_offset <= start < end:
        return start
    count = min(count, end - start)
    queue.preload(start, count)
    units = _near(queue.units(start, count))
    segment = log.segment_at(UNIT.unpack_from(units)[0]) if units else None
    if segment is None:
        return start
    units = _before(units, segment.end)
    log_end = min(log.written, segment.end)
    runs = record_runs(units, start=segment.start, end=log_end, gap_bytes=WARM_GAP_BYTES, run_bytes_max=WARM_BYTES_MAX)
    segment.preload(runs)
    if start >= queue.warm_from:
        return start + len(units) // UNIT.size
    return start + verify_entries(
        units,
        segment.map,
        start=segment.start,
        end=log_end,
        topic=queue.topic.encode(),
        queue_id=queue.queue_id,
        queue_offset=start,
    )


def _near(units: bytes) -> bytes:
    """The first of these entries, as many as can be brought into memory in one go."""
    if not units:
        return b""
    first = UNIT.unpack_from(units)[0]
    while len(units) > WARM_ENTRIES_MIN * UNIT.size:
        last, size, _code = UNIT.unpack_from(units, len(units) - UNIT.size)
        if 0 <= last + size - first <= WARM_BYTES_MAX:
            return units
        units = units[: max(WARM_ENTRIES_MIN, len(units) // UNIT.size // 2) * UNIT.size]
    left = WARM_BYTES_MAX
    for index, (_log_offset, size, _code) in enumerate(UNIT.iter_unpack(units)):
        left -= size
        if left < 0:
            return units[: max(1, index) * UNIT.size]
    return units


def _before(units: bytes, log_offset: int) -> bytes:
    """The first of these entries, up to where one names a record at or behind a log offset; the first stays."""
    low, high = 1, len(units) // UNIT.size
    while low < high:
        middle = (low + high) // 2
        if UNIT.unpack_from(units, middle * UNIT.size)[0] < log_offset:
            low = middle + 1
        else:
            high = middle
    return units[: low * UNIT.size]


def _outside(start: int, min_offset: int, end: int) -> Fetched:
    if end == 0:
        return Fetched(FetchStatus.NO_MESSAGE_IN_QUEUE, [], 0, min_offset, end)
    if start < min_offset:
        return Fetched(FetchStatus.OFFSET_TOO_SMALL, [], min_offset, min_offset, end)
    if start == end:
        return Fetched(FetchStatus.OFFSET_OVERFLOW_ONE, [], start, min_offset, end)
    return Fetched(FetchStatus.OFFSET_OVERFLOW_BADLY, [], end, min_offset, end)


def _next_file(queue: ConsumeQueue, start: int, end: int) -> int:
    return min(end, max(start + 1, queue.next_file_offset(start)))


def _fetch_run(log: CommitLog, data: bytes, start: int, bytes_max: int, trusted_from: int) -> Fetched | None:
    """The usual case: all records are wanted and lie in the trusted part of one segment. `None`: look closer."""
    segment = log.segment_at(UNIT.unpack_from(data)[0])
    if segment is None:
        return None
    found = gather_records(data, segment.map, start=segment.start, lowest=trusted_from, bytes_max=bytes_max)
    if found is None:
        return None
    records, count, _first, last = found
    return Fetched(FetchStatus.FOUND, [records], start + count, 0, 0, count, len(records), last)


def _fetch_each(
    log: CommitLog,
    queue: ConsumeQueue,
    data: bytes,
    fetched: Fetched,
    *,
    limit: FetchLimit,
    selector: Selector | None,
    trusted_from: int,
) -> Fetched:
    condition = selector.condition if selector is not None else None
    run_start = run_end = -1
    removed = False
    start = fetched.next_offset
    for index, (log_offset, size, code) in enumerate(UNIT.iter_unpack(data)):
        if fetched.count and (fetched.count >= limit.count or fetched.bytes + size > limit.bytes_max):
            break
        fetched.last_log_offset = log_offset
        if size == BLANK_SIZE or log_offset < log.min_offset:
            removed = True
        elif selector is None or selector.matches_tag_code(code):
            fault = None
            if log_offset < trusted_from:
                fault = _fault(log, queue, start + index, log_offset, size)
            if fault is not None:
                if fetched.count:  # Hand out what is good; the next fetch starts at the bad one and says so.
                    break
                raise CorruptRecord(fault, log_offset=log_offset)
            if condition is None or condition.matches(_properties(log, log_offset)):
                if log_offset == run_end and log.segment_at(run_start) is log.segment_at(log_offset):
                    run_end += size
                else:
                    if run_end > run_start:
                        fetched.records.append(log.read(run_start, run_end - run_start))
                    run_start, run_end = log_offset, log_offset + size
                fetched.count += 1
                fetched.bytes += size
        fetched.next_offset = start + index + 1
    if run_end > run_start:
        fetched.records.append(log.read(run_start, run_end - run_start))
    if not fetched.count:
        fetched.status = FetchStatus.MESSAGE_WAS_REMOVING if removed else FetchStatus.NO_MATCHED_MESSAGE
    return fetched


def _fault(log: CommitLog, queue: ConsumeQueue, queue_offset: int, log_offset: int, size: int) -> str | None:
    """What is wrong with an entry or with the record that it names; `None` when nothing is."""
    segment = log.segment_at(log_offset)
    if segment is not None and log_offset + size <= min(log.written, segment.end):
        at = log_offset - segment.start
        found = valid_size(segment.map, at, segment.end - segment.start, log_offset)
        if found == size:
            topic = queue.topic.encode()
            if belongs_to(segment.map, at, topic=topic, queue_id=queue.queue_id, queue_offset=queue_offset):
                return None
        elif not found and is_in_place(segment.map, at, log_offset=log_offset, size=size):
            reason = why_invalid(segment.map, at, log_offset=log_offset)
            return f"the record at log offset {log_offset} is damaged ({reason}): run 'kappamq store check'"
    return (
        f"entry {queue_offset} in {queue.directory} names log offset {log_offset}, where its record is not: run "
        "'kappamq store check'; if only the queue is damaged, stop the broker and delete the directory to rebuild it"
    )


def _properties(log: CommitLog, log_offset: int) -> dict[str, str]:
    segment = log.segment_at(log_offset)
    if segment is None:
        return {}
    return decode_properties(read_facts(segment.map, log_offset - segment.start).properties_text)


def stored_at_of(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> int:
    """Store time of one message of a queue; -1 when it is not there (any more)."""
    if not queue.min_offset <= queue_offset < queue.end:
        return -1
    unit = queue.unit(queue_offset)
    if unit is None or unit[1] == BLANK_SIZE:
        return -1
    segment = log.segment_at(unit[0])
    return stored_at(segment.map, unit[0] - segment.start) if segment is not None else -1


def offset_at(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, boundary: Literal["LOWER", "UPPER"]) -> int:
    """Queue offset for a time: LOWER the first message stored at or after it, UPPER the last stored at or before it."""
    start, end = queue.min_offset, queue.end
    first = start
    while start < end:
        middle = (start + end) // 2
        found = stored_at_of(log, queue, middle)
        if found < timestamp_ms or (boundary == "UPPER" and found == timestamp_ms):
            start = middle + 1
        else:
            end = middle
    return start if boundary == "LOWER" else max(first, start - 1)


def entries(queue: ConsumeQueue, start: int, count: int) -> list[QueueEntry]:
    """Entries from `start` that exist."""
    start = max(start, queue.min_offset)
    found = queue.all_units(start, min(start + count, queue.end))
    return [QueueEntry(queue_offset, *unit) for queue_offset, unit in enumerate(found, start)]

"""`mode=files`: topics read straight from the files of their brokers, without asking the brokers.

A task is a stretch of the commit log. The consume queues say which records in it are wanted: no other is touched.
"""

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kappamq.admin.topics import is_system_topic
from kappamq.errors import CorruptRecord, TopicNotFound, UsageError
from kappamq.model.message import Queue
from kappamq.model.selector import Selector
from kappamq.spark.decoding import Wanted, decode_batch
from kappamq.spark.offsets import EARLIEST, LATEST, AtTime, Committed, End, Explicit, Place, QueueOffsets, describe
from kappamq.spark.options import ReadOptions
from kappamq.spark.planning import Bounds, DataLost, OffsetRange, loss_message, plan_ranges
from kappamq.spark.pushdown import Narrowing, narrow_offsets
from kappamq.spark.store_files import BLANK_SIZE, QueueFiles, Segment, StoreFiles

SPLIT_BYTES: Final = 128 * 1024 * 1024
BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 5 * 1024 * 1024
"""Of all records of a batch: one that fits memory that is kept for the next costs less on all its way."""
STRETCH_BYTES: Final = 32 * 1024 * 1024
"""Longest part of a segment in which a batch looks for its records."""

_PLACED: Final = np.dtype([("log_offset", "i8"), ("size", "i4"), ("queue", "i4"), ("offset", "i8")])
"""An entry and its place, in the byte order of this machine: to sort in that of the files takes many times as long."""
_CHECKED: Final = np.dtype(
    {
        "names": ["size", "queue", "offset", "log_offset"],
        "formats": [">i4", ">i4", ">i8", ">i8"],
        "offsets": [0, 12, 20, 28],
        "itemsize": 36,
    }
)


class LogPartition(InputPartition):
    """One task: records of some queues whose first byte lies in a stretch of one broker's log."""

    def __init__(self, broker: str, root: Path, log_range: tuple[int, int], ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__((broker, log_range))
        self.broker = broker
        self.root = root
        self.log_range = log_range
        self.ranges = ranges


@dataclass(frozen=True, slots=True)
class _Held:
    store: StoreFiles
    files: QueueFiles
    bounds: Bounds


def plan_store(options: ReadOptions, narrowing: Narrowing) -> Iterator[LogPartition]:
    """Tasks that read the table. Raises `DataLost`, `TopicNotFound` or `UsageError` as reading from brokers would."""
    if options.partition_rows_max is not None:
        raise UsageError("maxRecordsPerPartition does not apply to mode=files: use minPartitions for more tasks")
    held = dict(_held_queues(options, narrowing))
    bounds = {queue: each.bounds for queue, each in held.items()}
    begin = _resolve(options.start or End.EARLIEST, held, late_fails=options.late_start_fails)
    end = _resolve(options.end, held, late_fails=False)
    begin, end = narrow_offsets(
        begin, end, narrowing, lambda at_ms: {queue: each.files.offset_at(at_ms) for queue, each in held.items()}
    )
    ranges = plan_ranges(begin, end, bounds, fails_on_loss=options.fails_on_loss).ranges
    assert options.store_paths is not None
    for broker, root in options.store_paths.items():
        mine = tuple(range_ for range_ in ranges if range_.queue.broker == broker)
        # Executors have working directories of their own.
        yield from _split(broker, root.absolute(), mine, held, options.partitions_min)


def _held_queues(options: ReadOptions, narrowing: Narrowing) -> Iterator[tuple[Queue, _Held]]:
    assert options.store_paths is not None
    found = 0
    for broker, root in options.store_paths.items():
        store = StoreFiles(root)
        for topic in _topics(options, store):
            for queue_id in store.queue_ids(topic):
                queue = Queue(topic, broker, queue_id)
                if options.assigned and queue not in options.assigned:
                    continue
                found += 1
                if narrowing.allows(queue):
                    files = store.queue(topic, queue_id)
                    yield queue, _Held(store, files, files.bounds())
    if not found:
        paths = ", ".join(str(path) for path in options.store_paths.values())
        raise TopicNotFound(f"no queue of {options.subject!r} is in {paths}: check the topic and storePath")


def _topics(options: ReadOptions, store: StoreFiles) -> list[str]:
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        return [
            topic
            for topic in store.topics()
            if pattern.fullmatch(topic) and (options.includes_system or not is_system_topic(topic))
        ]
    return sorted(options.topics or {queue.topic for queue in options.assigned})


def _resolve(place: Place, held: Mapping[Queue, _Held], *, late_fails: bool) -> QueueOffsets:
    match place:
        case End.EARLIEST:
            return {queue: each.bounds.start for queue, each in held.items()}
        case End.LATEST:
            return {queue: each.bounds.end for queue, each in held.items()}
        case Committed():
            raise UsageError("group:<name> needs a running broker: use mode=pull, or give offsets as JSON")
        case Explicit(offsets):
            _check_complete(offsets, held)
            ends = {EARLIEST: lambda bounds: bounds.start, LATEST: lambda bounds: bounds.end}
            return {
                queue: ends[at](held[queue].bounds) if at in ends else at
                for queue, at in offsets.items()
                if queue in held
            }
        case AtTime(at_ms):
            times = dict.fromkeys(held, at_ms) if isinstance(at_ms, int) else at_ms
            _check_complete(times, held)
            found = {queue: held[queue].files.offset_at(times[queue]) for queue in held}
            late = [queue for queue, at in found.items() if _is_late(held[queue].bounds, at)]
            if late_fails and late:
                raise UsageError(
                    f"no message was stored at or after that time in {describe(late)}: use an earlier time, "
                    "or set startingOffsetsByTimestampStrategy=latest"
                )
            return found


def _check_complete(given: Mapping[Queue, int], held: Mapping[Queue, _Held]) -> None:
    """A queue that nothing is given for would be read from its beginning, or not at all."""
    if missing := held.keys() - given.keys():
        raise UsageError(f"no offset or time is given for {describe(missing)}: name every queue")


def _is_late(bounds: Bounds, at: int) -> bool:
    """Whether every message of a queue lies before `at`; one that holds nothing cannot be late."""
    return bounds.start < bounds.end <= at


def _split(
    broker: str,
    root: Path,
    ranges: tuple[OffsetRange, ...],
    held: Mapping[Queue, _Held],
    partitions_min: int | None,
) -> Iterator[LogPartition]:
    """Cut the stretch of the log that holds the ranges into tasks."""
    spans = [span for range_ in ranges if (span := _log_span(held[range_.queue].files, range_)) is not None]
    if not spans:
        return
    start, end = min(first for first, _ in spans), max(last for _, last in spans) + 1
    pieces = max(-(-(end - start) // SPLIT_BYTES), partitions_min or 1)
    for number in range(pieces):
        low, high = start + (end - start) * number // pieces, start + (end - start) * (number + 1) // pieces
        if low < high:
            yield LogPartition(broker, root, (low, high), ranges)


def _log_span(files: QueueFiles, range_: OffsetRange) -> tuple[int, int] | None:
    chosen = [entries[max(range_.start - first, 0) : max(range_.end - first, 0)] for first, entries in files.entries()]
    filled = [entries for entries in chosen if len(entries)]
    if not filled:
        return None
    return int(filled[0]["log_offset"][0]), int(filled[-1]["log_offset"][-1])


def read_slice(partition: LogPartition, columns: tuple[str, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Batches of a task, in the order of the log."""
    store = StoreFiles(partition.root)
    selector = options.selector
    parts = [_entries_in(store, range_, partition.log_range, selector) for range_ in partition.ranges]
    entries = np.concatenate(parts) if parts else np.empty(0, dtype=_PLACED)
    if len(parts) > 1:
        entries = entries[np.argsort(np.ascontiguousarray(entries["log_offset"]), kind="stable")]
    wanted = Wanted(columns, partition.broker, selector=selector)
    at = 0
    while at < len(entries):
        try:
            segment = store.segment_at(int(entries["log_offset"][at]))
            stop = int(np.searchsorted(entries["log_offset"], segment.end))
            yield from _decode_segment(segment, entries[at:stop], wanted)
        except FileNotFoundError as fault:
            if options.fails_on_loss:
                raise DataLost(loss_message([str(fault)])) from None
            stop = at + 1
        at = stop


def _entries_in(
    store: StoreFiles, range_: OffsetRange, log_range: tuple[int, int], selector: Selector | None
) -> npt.NDArray[Any]:
    """Entries of a range of a queue whose records begin in a stretch of the log and may match."""
    found: list[npt.NDArray[Any]] = []
    for first, entries in store.queue(range_.queue.topic, range_.queue.queue_id).entries():
        low, high = max(range_.start - first, 0), max(range_.end - first, 0)
        chosen = entries[low:high]
        if not len(chosen) or chosen["log_offset"][0] >= log_range[1] or chosen["log_offset"][-1] < log_range[0]:
            continue
        log_offsets = chosen["log_offset"].astype(np.int64)
        keep = (log_offsets >= log_range[0]) & (log_offsets < log_range[1]) & (chosen["size"] != BLANK_SIZE)
        if selector is not None and selector.tag_codes:
            codes = chosen["tags_code"].astype(np.int64).astype(np.int32)
            keep &= np.isin(codes, np.array(sorted(selector.tag_codes), dtype=np.int32))
        at = np.flatnonzero(keep)
        placed = np.empty(len(at), dtype=_PLACED)
        placed["log_offset"] = log_offsets[at]
        placed["size"] = chosen["size"][at]
        placed["offset"] = first + low + at
        placed["queue"] = range_.queue.queue_id
        found.append(placed)
    return np.concatenate(found) if found else np.empty(0, dtype=_PLACED)


def _decode_segment(segment: Segment, entries: npt.NDArray[Any], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    with segment.path.open("rb") as file:
        # Decoding copies what it wants; the mapping ends with the last view of it, that of an error included.
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    position = 0
    while position < len(entries):
        stop = _batch_end(entries, position)
        batch = entries[position:stop]
        low = int(batch["log_offset"][0]) - segment.start
        high = int(batch["log_offset"][-1]) + int(batch["size"][-1]) - segment.start
        if high > segment.size:
            raise _disagreement(segment, int(batch["log_offset"][-1]))
        window = mapped[low:high]
        starts = batch["log_offset"] - segment.start - low
        _check_agreement(window, starts, batch, segment)
        decoded = decode_batch(window, wanted, starts)
        if decoded.num_rows:
            yield decoded
        position = stop


def _batch_end(entries: npt.NDArray[Any], position: int) -> int:
    """End of a batch: few enough rows and bytes, in a short enough stretch of the file."""
    window = entries[position : position + BATCH_ROWS]
    near = np.searchsorted(window["log_offset"], window["log_offset"][0] + STRETCH_BYTES)
    fitting = np.searchsorted(np.cumsum(window["size"], dtype=np.int64), BATCH_BYTES, side="right")
    return position + max(int(min(near, fitting)), 1)


def _check_agreement(
    window: memoryview, starts: npt.NDArray[np.int64], entries: npt.NDArray[Any], segment: Segment
) -> None:
    """Raise `CorruptRecord` unless each entry and its record say the same of each other."""
    octets = np.frombuffer(window, dtype=np.uint8)
    if bool((starts + _CHECKED.itemsize > len(octets)).any()):
        raise _disagreement(segment, int(entries["log_offset"][-1]))
    heads = np.lib.stride_tricks.sliding_window_view(octets, _CHECKED.itemsize)[starts]
    records = np.ascontiguousarray(heads).view(_CHECKED).reshape(len(starts))
    is_bad = records["size"] != entries["size"]
    for name in ("queue", "offset", "log_offset"):
        is_bad |= records[name] != entries[name]
    if bool(is_bad.any()):
        raise _disagreement(segment, int(entries["log_offset"][int(np.argmax(is_bad))]))


def _disagreement(segment: Segment, log_offset: int) -> CorruptRecord:
    return CorruptRecord(
        f"a consume queue points at log offset {log_offset}, but {segment.path} holds another record there: "
        "start the broker once so that it repairs its queues, then read again",
        log_offset=log_offset,
    )

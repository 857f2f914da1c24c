"""Which offsets a batch reads and how they are cut into tasks. Pure: brokers are asked elsewhere."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from kappamq.errors import OffsetOutOfRange, UsageError
from kappamq.model.message import Queue
from kappamq.spark.offsets import QueueOffsets, describe
from kappamq.spark.options import ReadOptions


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a queue holds now: from the oldest message (inclusive) to the end (exclusive)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages of one queue from `start` (inclusive) to `end` (exclusive)."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


class DataLost(OffsetOutOfRange):
    """Messages that should have been read are gone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranges to read, and what had to be given up."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def plan_ranges(start: QueueOffsets, end: QueueOffsets, held: Mapping[Queue, Bounds], *, fails_on_loss: bool) -> Plan:
    """Ranges from `start` to `end`. A queue that `start` does not know is new and is read from offset 0 on.

    Raises `DataLost` when brokers no longer hold all of it, unless told to go on with the rest.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for queue in sorted(end):
        range_, loss = _plan_queue(queue, start.get(queue, 0), end[queue], held.get(queue))
        if loss:
            losses.append(loss)
        if range_.size:
            ranges.append(range_)
    if losses and fails_on_loss:
        raise DataLost(loss_message(losses))
    return Plan(tuple(ranges), tuple(losses))


def check_subject(offsets: QueueOffsets, options: ReadOptions) -> None:
    """Raise `UsageError` for offsets of a checkpoint that is about other topics altogether."""
    known = {queue.topic for queue in offsets}
    if options.pattern is not None:
        fitting = any(re.fullmatch(options.pattern, topic) for topic in known)
    else:
        fitting = not known.isdisjoint({*options.topics, *(queue.topic for queue in options.assigned)})
    if known and not fitting:
        raise UsageError(
            f"the checkpoint is about {', '.join(sorted(known)[:3])}, but the query reads {options.subject}: "
            "use a checkpoint directory of its own for each query"
        )


def loss_message(losses: list[str]) -> str:
    """One sentence for all losses, and the way out."""
    more = f" (and {len(losses) - 3} more queues)" if len(losses) > 3 else ""
    return (
        "; ".join(losses[:3]) + more + ": they expired, the topic was made anew, or the options name offsets that "
        "never were. To go on without them set failOnDataLoss=false; a new checkpoint directory starts a stream over"
    )


def _plan_queue(queue: Queue, start: int, end: int, held: Bounds | None) -> tuple[OffsetRange, str | None]:
    name = describe([queue])
    if held is None:
        if start >= end:
            return OffsetRange(queue, start, start), None
        return OffsetRange(queue, end, end), f"queue {name} is gone with offsets {start} to {end}"
    if start > held.end:
        loss = f"queue {name} ends at {held.end}, before offset {start}, where reading was to go on"
        return OffsetRange(queue, held.start, min(max(end, held.start), held.end)), loss
    if end > held.end:
        loss = f"queue {name} ends at {held.end}, but should be read up to {end}"
        return OffsetRange(queue, max(start, held.start), held.end), loss
    if start < held.start and start < end:
        lost_to = min(held.start, end)
        return OffsetRange(queue, lost_to, end), f"queue {name} has lost offsets {start} to {lost_to}"
    return OffsetRange(queue, start, end), None


def admit(start: QueueOffsets, latest: QueueOffsets, rows_max: int) -> QueueOffsets:
    """End offsets of a batch of at most `rows_max` messages, each queue's share by its backlog.

    Every queue with a backlog moves on as long as there are enough rows for one each.
    """
    backlog = {queue: latest[queue] - start.get(queue, 0) for queue in sorted(latest)}
    waiting = {queue: size for queue, size in backlog.items() if size > 0}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(latest)
    # One row for each that waits, where there are enough; what is left over goes by size.
    first = 1 if rows_max >= len(waiting) else 0
    rows = rows_max - first * len(waiting)
    rest = total - first * len(waiting)
    shares = {queue: first + (size - first) * rows // rest for queue, size in waiting.items()}
    left = rows_max - sum(shares.values())
    by_need = sorted(waiting, key=lambda queue: (-((waiting[queue] - first) * rows % rest), queue))
    for queue in by_need[:left]:
        shares[queue] += 1
    return {queue: start.get(queue, 0) + shares.get(queue, min(backlog[queue], 0)) for queue in latest}


def rows_for_bytes(backlog: Mapping[Queue, int], row_bytes: Mapping[Queue, float], bytes_max: int) -> int:
    """How many messages of this mixture fit into `bytes_max`; at least one, or nothing would ever move."""
    total = sum(backlog.values())
    size = sum(count * row_bytes.get(queue, 0.0) for queue, count in backlog.items())
    return total if size <= bytes_max else max(int(total * bytes_max / size), 1)


def split_ranges(
    ranges: tuple[OffsetRange, ...], *, partitions_min: int | None, partition_rows_max: int | None
) -> tuple[OffsetRange, ...]:
    """Cut ranges into tasks: at least `partitions_min` where there are as many messages, none over the row limit."""
    if partition_rows_max is not None:
        ranges = tuple(piece for range_ in ranges for piece in _cut(range_, -(-range_.size // partition_rows_max)))
    if partitions_min is None or not ranges or len(ranges) >= partitions_min:
        return ranges
    total = sum(range_.size for range_ in ranges)
    wanted = {range_: max(range_.size * partitions_min // total, 1) for range_ in ranges}
    missing = partitions_min - sum(wanted.values())
    # The largest pieces are cut once more until there are enough.
    for _ in range(missing):
        largest = max(wanted, key=lambda range_: (range_.size / wanted[range_], range_.queue))
        wanted[largest] += 1
    return tuple(piece for range_ in ranges for piece in _cut(range_, wanted[range_]))


def _cut(range_: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = max(min(pieces, range_.size), 1)
    cuts = [range_.start + range_.size * number // pieces for number in range(pieces + 1)]
    return [OffsetRange(range_.queue, first, last) for first, last in pairwise(cuts)]

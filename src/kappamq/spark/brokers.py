"""What planning needs to know of a cluster: topics, queues, their bounds, places in them, progress of groups."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, TypeVar

from kappamq.admin.reach import Reach
from kappamq.admin.topics import Topics
from kappamq.client.aio.cluster import Cluster
from kappamq.client.loop_thread import LoopThread
from kappamq.errors import GroupNotFound, KappaError, TopicNotFound, UsageError
from kappamq.model.message import Queue
from kappamq.spark.decoding import count_records
from kappamq.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    Committed,
    End,
    Explicit,
    Place,
    QueueOffsets,
    describe,
)
from kappamq.spark.options import ReadOptions
from kappamq.spark.planning import Bounds

log = logging.getLogger(__name__)

Value = TypeVar("Value")

ASKED_AT_ONCE_MAX: Final = 32
BACKOFF_FACTOR_MAX: Final = 32


class Brokers:
    """A cluster, asked with retries, from one thread. Use as a context manager."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._thread = LoopThread(lambda: Cluster(options.name_servers), name="kappamq spark planner")

    def __enter__(self) -> "Brokers":
        self._thread.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.close()

    def queues(self) -> list[Queue]:
        """All queues that the options name, as the name servers tell them now."""
        options = self._options
        if options.assigned:
            known = self._queues_of({queue.topic for queue in options.assigned})
            missing = options.assigned - set(known)
            if missing:
                raise UsageError(f"assign names queues that do not exist: {describe(missing)}; check the topic's route")
            return sorted(options.assigned)
        if options.pattern is None:
            return self._queues_of(options.topics)
        pattern = re.compile(options.pattern)
        names = self._thread.call(
            lambda cluster: self._patiently(
                lambda: Topics(Reach(cluster)).names(include_system=options.includes_system)
            )
        )
        topics = [name for name in names if pattern.fullmatch(name)]
        return self._queues_of(topics, missing_ok=True)

    def _queues_of(self, topics: Iterable[str], *, missing_ok: bool = False) -> list[Queue]:
        found: list[Queue] = []
        for topic in sorted(topics):
            try:
                found += self._thread.call(
                    lambda cluster, topic=topic: self._patiently(lambda: cluster.queues_of(topic))  # type: ignore[misc]
                )
            except TopicNotFound as fault:
                # A topic that matched the pattern may have been deleted meanwhile, or have no broker now.
                if not missing_ok:
                    raise TopicNotFound(
                        f"topic {topic!r} does not exist at {self._options.name_servers}: create it first",
                        code=fault.code,
                    ) from None
        return sorted(found)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """What each queue holds now."""

        async def ask(cluster: Cluster, queue: Queue) -> Bounds:
            first, last = await asyncio.gather(cluster.min_offset(queue), cluster.max_offset(queue))
            return Bounds(max(first, 0), max(last, 0))

        return self._ask_each(list(queues), ask)

    def ends(self, queues: Iterable[Queue]) -> QueueOffsets:
        """Offset after the last message of each queue."""
        return self._ask_each(list(queues), lambda cluster, queue: cluster.max_offset(queue))

    def resolve(self, place: Place, held: Mapping[Queue, Bounds], *, late_fails: bool = False) -> QueueOffsets:
        """Offset of a place in every queue of `held`. Raises `UsageError` for a place that does not fit the queues."""
        match place:
            case End.EARLIEST:
                return {queue: bounds.start for queue, bounds in held.items()}
            case End.LATEST:
                return {queue: bounds.end for queue, bounds in held.items()}
            case Committed(group):
                committed = self._ask_each(
                    list(held), lambda cluster, queue: _committed_or(cluster, queue, group, held[queue].start)
                )
                return {queue: min(offset, held[queue].end) for queue, offset in committed.items()}
            case Explicit(offsets):
                _check_complete(offsets, held)
                ends = {EARLIEST: lambda bounds: bounds.start, LATEST: lambda bounds: bounds.end}
                return {
                    queue: ends[offset](held[queue]) if offset in ends else offset for queue, offset in offsets.items()
                }
            case AtTime(at_ms):
                return self._at_times(at_ms, held, late_fails=late_fails)

    def _at_times(
        self, at_ms: int | Mapping[Queue, int], held: Mapping[Queue, Bounds], *, late_fails: bool
    ) -> QueueOffsets:
        times = dict.fromkeys(held, at_ms) if isinstance(at_ms, int) else dict(at_ms)
        _check_complete(times, held)
        found = self._ask_each(list(times), lambda cluster, queue: cluster.search_offset(queue, times[queue]))
        # A queue that holds nothing cannot be late.
        late = [queue for queue, offset in found.items() if held[queue].start < held[queue].end <= offset]
        if late and late_fails:
            raise UsageError(
                f"no message was stored at or after {times[late[0]]} ms in {describe(late)}: use an earlier time, "
                "or set startingOffsetsByTimestampStrategy=latest"
            )
        return found

    def commit(self, group: str, offsets: QueueOffsets) -> bool:
        """Store progress for a group; false when that failed, which is only logged: Spark's checkpoint counts."""

        async def tell(cluster: Cluster, queue: Queue) -> None:
            try:
                await cluster.commit_offset(queue, group, offsets[queue])
            except GroupNotFound:
                # A broker makes a group when it is first pulled for.
                await cluster.pull_raw(queue, offsets[queue], group=group, count_max=1)
                await cluster.commit_offset(queue, group, offsets[queue])

        try:
            self._ask_each(list(offsets), tell)
        except KappaError as fault:
            log.warning("progress not mirrored group=%s fault=%s", group, fault)
            return False
        return True

    def row_bytes(self, starts: QueueOffsets) -> dict[Queue, float]:
        """Mean stored size of the messages that come next in each queue, from a sample of one pull."""

        async def sample(cluster: Cluster, queue: Queue) -> float:
            raw = await cluster.pull_raw(queue, starts[queue], group=self._options.group)
            return len(raw.body) / max(count_records(raw.body), 1)

        return self._ask_each(list(starts), sample)

    def _ask_each(self, queues: list[Queue], ask: Callable[[Cluster, Queue], Awaitable[Value]]) -> dict[Queue, Value]:
        async def ask_all(cluster: Cluster) -> list[Value]:
            slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

            async def ask_one(queue: Queue) -> Value:
                async with slots:
                    return await self._patiently(lambda: ask(cluster, queue))

            for topic in {queue.topic for queue in queues}:
                await self._patiently(lambda topic=topic: cluster.routes.find(topic))  # type: ignore[misc]
            return await asyncio.gather(*(ask_one(queue) for queue in queues))

        return dict(zip(queues, self._thread.call(ask_all), strict=True))

    async def _patiently(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        return await patiently(ask, retries=self._options.retries, interval_ms=self._options.retry_interval_ms)


async def patiently(ask: Callable[[], Awaitable[Value]], *, retries: int, interval_ms: int) -> Value:
    """Result of `ask`, tried again after errors that may pass, at growing intervals."""
    for attempt in range(retries):
        try:
            return await ask()
        except KappaError as fault:
            if not fault.retryable or isinstance(fault, TopicNotFound):
                raise
            log.info("asked again attempt=%d fault=%s", attempt + 1, fault)
            await asyncio.sleep(interval_ms / 1000 * min(2**attempt, BACKOFF_FACTOR_MAX))
    return await ask()


async def _committed_or(cluster: Cluster, queue: Queue, group: str, otherwise: int) -> int:
    committed = await cluster.committed_offset(queue, group)
    return otherwise if committed is None else committed


def _check_complete(given: Mapping[Queue, int], held: Mapping[Queue, Bounds]) -> None:
    """Offsets must be given for exactly the queues that are read: a forgotten one would be lost without a sound."""
    missing, unknown = held.keys() - given.keys(), given.keys() - held.keys()
    if missing:
        raise UsageError(f"no offset is given for {describe(missing)}: name every queue (-2 earliest, -1 latest)")
    if unknown:
        raise UsageError(f"an offset is given for {describe(unknown)}, which is not read: remove it")

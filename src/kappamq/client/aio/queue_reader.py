"""Reading ahead in one queue for a consumer that takes batches when it likes."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kappamq.client.aio.cluster import Cluster, PullStatus, RawPull
from kappamq.client.core.process_queue import CacheLimits
from kappamq.client.core.receiving import decode_pull
from kappamq.client.settings import ConsumerSettings
from kappamq.errors import KappaError, Refused
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.selector import Selector
from kappamq.wire.codes import ResponseCode
from kappamq.wire.headers import PullRequest

log = logging.getLogger(__name__)

FLOW_CONTROL_SECONDS: Final = 0.02
_MIB: Final = 1024 * 1024


def pause_after(fault: KappaError, settings: ConsumerSettings) -> float:
    """Seconds to wait after a pull that failed."""
    if isinstance(fault, Refused) and fault.code == ResponseCode.FLOW_CONTROL:
        return FLOW_CONTROL_SECONDS
    return settings.retry_pull_ms / 1000


class Batch:
    """Messages of one pull that wait to be taken. `end` is where the pull ended, left-out messages included."""

    __slots__ = ("end", "messages", "reader", "size")

    def __init__(self, reader: "QueueReader", messages: list[StoredMessage], end: int) -> None:
        self.reader = reader
        self.messages = messages
        self.end = end
        self.size = sum(len(message.body) for message in messages)


class QueueReader:
    """One queue of a lite pull consumer: pulls ahead up to its limits and hands over whole batches.

    `handed` is the offset after the last message that the user got; `finished` the one after the last message that the
    user is done with. Both are `None` until something was read.
    """

    def __init__(
        self,
        cluster: Cluster,
        queue: Queue,
        start: int,
        *,
        group: str,
        settings: ConsumerSettings,
        limits: CacheLimits,
        deliver: Callable[[Batch], None],
        on_moved: Callable[["QueueReader", int], None],
    ) -> None:
        self.queue = queue
        self.position = start
        self.handed: int | None = None
        self.finished: int | None = None
        self.max_offset = start
        self.is_paused = False
        self.cached_messages = 0
        self.cached_bytes = 0
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._limits = limits
        self._deliver = deliver
        self._on_moved = on_moved
        self._room = asyncio.Event()

    async def run(self, selector: Callable[[str], Selector | None], has_room: Callable[[], bool]) -> None:
        """Pull until cancelled. `has_room` tells whether all queues together may cache more."""
        while True:
            if self.is_paused or self._is_full() or not has_room():
                await self._wait_for_room()
                continue
            wanted = selector(self.queue.topic)
            try:
                raw = await self._cluster.pull_raw(
                    self.queue,
                    self.position,
                    group=self._group,
                    count_max=self._settings.pull_batch,
                    bytes_max=self._settings.pull_bytes_max,
                    suspend_ms=self._settings.suspend_ms,
                    timeout_ms=self._settings.pull_timeout_ms,
                    expression=wanted.expression if wanted is not None else "*",
                    expression_type=wanted.expression_type if wanted is not None else None,
                    extra_flags=PullRequest.LITE,
                )
            except KappaError as fault:
                log.warning("pull failed: will try again queue=%s fault=%s", self.queue, fault)
                await asyncio.sleep(pause_after(fault, self._settings))
                continue
            if raw.status is PullStatus.OFFSET_MOVED:
                self._on_moved(self, raw.next_offset)
                return
            self._take(raw, wanted)

    def taken(self, messages: int, size: int) -> None:
        """The user took messages out of the cache."""
        self.cached_messages -= messages
        self.cached_bytes -= size
        self._room.set()

    def wake(self) -> None:
        """Look again whether there is room."""
        self._room.set()

    def _take(self, raw: RawPull, wanted: Selector | None) -> None:
        self.position = raw.next_offset
        self.max_offset = raw.max_offset
        messages = decode_pull(raw.body, broker=self.queue.broker, selector=wanted) if raw.body else []
        if messages:
            batch = Batch(self, messages, raw.next_offset)
            self.cached_messages += len(messages)
            self.cached_bytes += batch.size
            self._deliver(batch)
        elif not self.cached_messages:
            self._skip_to(raw.next_offset)

    def _skip_to(self, end: int) -> None:
        """Nothing up to `end` is for us: it counts as consumed once what the user holds is finished."""
        if self.handed is not None and self.finished != self.handed:
            self.handed = end
        else:
            self.handed = self.finished = end

    def _is_full(self) -> bool:
        return self.cached_messages >= self._limits.messages_max or self.cached_bytes >= self._limits.mib_max * _MIB

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(1.0):
                await self._room.wait()
        except TimeoutError:
            pass

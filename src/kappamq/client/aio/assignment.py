"""One queue that is ours, and the loop that pulls it for a push consumer."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kappamq.client.aio.cluster import Cluster, PullStatus
from kappamq.client.aio.offset_store import OffsetStore
from kappamq.client.aio.queue_reader import pause_after
from kappamq.client.aio.subscribing import Subscriptions
from kappamq.client.core.process_queue import CacheLimits, ProcessQueue
from kappamq.client.core.receiving import decode_pull, restore_topic
from kappamq.client.settings import ConsumerSettings
from kappamq.clock import elapsed_ms
from kappamq.errors import KappaError, Refused
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.names import is_retry_topic
from kappamq.model.subscription import ExpressionType, MessageModel, Subscription
from kappamq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

ROOM_SECONDS: Final = 1.0
LOCK_POLL_SECONDS: Final = 0.1

_SUBSCRIPTION_CODES: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""Refusals that a heartbeat cures: the broker does not know our subscription yet."""


@dataclass(slots=True, eq=False)
class Assignment:
    """A queue from the moment it becomes ours until it is given away. Coming back, it is a new assignment.

    `held` is set by whoever runs a handler on its messages and cleared at the end; `room` wakes the pull loop.
    """

    queue: Queue
    cached: ProcessQueue
    position: int
    room: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    handling: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    def begin_handling(self) -> None:
        self.handling += 1
        self.idle.clear()

    def end_handling(self) -> None:
        self.handling -= 1
        if not self.handling:
            self.idle.set()


class PullLoop:
    """Pulls assigned queues within their limits and hands the messages over."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        settings: ConsumerSettings,
        *,
        subscriptions: Subscriptions,
        store: OffsetStore,
        is_orderly: bool,
        is_ours: Callable[[ProcessQueue], bool],
        limits: Callable[[], CacheLimits],
        submit: Callable[[Assignment, list[StoredMessage]], None],
        on_moved: Callable[[Assignment, int], None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._store = store
        self._is_orderly = is_orderly
        self._is_ours = is_ours
        self._limits = limits
        self._submit = submit
        self._on_moved = on_moved
        self.is_paused = False

    async def run(self, assignment: Assignment) -> None:
        """Pull one queue until it is dropped or the task is cancelled."""
        cached = assignment.cached
        while not cached.is_dropped:
            clock = self._cluster.clock
            cached.mark_pulled(now_ms=clock.now_ms(), elapsed_ms=elapsed_ms(clock))
            if not self._is_ours(cached):
                await asyncio.sleep(LOCK_POLL_SECONDS)
            elif self.is_paused or cached.is_over(self._limits(), is_orderly=self._is_orderly):
                await _wait(assignment.room)
            else:
                await self._pull(assignment)

    async def _pull(self, assignment: Assignment) -> None:
        queue = assignment.queue
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            await asyncio.sleep(ROOM_SECONDS)
            return
        try:
            raw = await self._cluster.pull_raw(
                queue,
                assignment.position,
                group=self._group,
                count_max=self._settings.pull_batch,
                bytes_max=self._settings.pull_bytes_max,
                suspend_ms=self._settings.suspend_ms,
                timeout_ms=self._settings.pull_timeout_ms,
                expression=_carried_expression(subscription),
                expression_type=subscription.expression_type,
                subscription_version=subscription.sub_version,
                committed_offset=self._committed_offset(queue),
            )
        except KappaError as fault:
            await self._recover(queue, fault)
            return
        if assignment.cached.is_dropped:
            return
        if raw.status is PullStatus.OFFSET_MOVED:
            self._on_moved(assignment, raw.next_offset)
            return
        assignment.position = raw.next_offset
        messages: list[StoredMessage] = []
        if raw.body:
            messages = decode_pull(raw.body, broker=queue.broker, selector=self._subscriptions.selector(queue.topic))
        if messages:
            if is_retry_topic(queue.topic):
                restore_topic(messages)
            self._submit(assignment, messages)
        elif not assignment.cached.message_count:
            self._store.update(queue, raw.next_offset)

    def _committed_offset(self, queue: Queue) -> int | None:
        if self._settings.model is MessageModel.BROADCASTING:
            return None
        return self._store.in_memory(queue) or None

    async def _recover(self, queue: Queue, fault: KappaError) -> None:
        if isinstance(fault, Refused) and fault.code in _SUBSCRIPTION_CODES:
            log.info("broker does not know the subscription yet: telling it queue=%s", queue)
            await self._cluster.heartbeat()
        else:
            log.warning("pull failed: will try again queue=%s fault=%s", queue, fault)
        await asyncio.sleep(pause_after(fault, self._settings))


def _carried_expression(subscription: Subscription) -> str | None:
    """Tags travel with every pull, so that a broker with an older heartbeat serves us; SQL is compiled there once."""
    return subscription.sub_string if subscription.expression_type == ExpressionType.TAG else None


async def _wait(event: asyncio.Event) -> None:
    event.clear()
    try:
        async with asyncio.timeout(ROOM_SECONDS):
            await event.wait()
    except TimeoutError:
        pass

"""Sharing queues among the members of a group: when to look again, and which queues are ours."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.offset_store import OffsetStore
from kappamq.client.core.routing import subscribe_queues
from kappamq.client.core.starting import AskEnd, AskTime, Committed, StartAt, TryLater, where_to_start
from kappamq.client.settings import ConsumerSettings
from kappamq.errors import KappaError, TopicNotFound, UsageError
from kappamq.model.message import Queue
from kappamq.model.offsets import QueueOffset
from kappamq.model.subscription import MessageModel

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 1.0
"""When to look again after a round that could not settle everything."""
CALM_SECONDS: Final = 0.1
"""Least pause between rounds: members that join together cause one round, not many."""

Apply = Callable[[str, set[Queue]], Awaitable[bool]]
"""Make exactly these queues of a topic ours; False when some must be tried again soon."""


class Balancer:
    """Looks again every 20 s, and at once when told that members, routes or locks changed."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        settings: ConsumerSettings,
        *,
        topics: Callable[[], Iterable[str]],
        apply: Apply,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._topics = topics
        self._apply = apply
        self._woken = asyncio.Event()
        self.is_paused = False

    def wake(self) -> None:
        """Look again at once."""
        self._woken.set()

    def on_route(self, topic: str) -> None:
        """A route changed."""
        if topic in self._topics():
            self.wake()

    async def run(self) -> None:
        """Balance until cancelled."""
        pause = self._settings.balance_interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            is_settled = await self.balance()
            pause = self._settings.balance_interval_ms / 1000 if is_settled else AGAIN_SECONDS
            await asyncio.sleep(CALM_SECONDS)

    async def balance(self) -> bool:
        """One round over all topics; False when some could not be settled."""
        if self.is_paused:
            return True
        is_settled = True
        for topic in list(self._topics()):
            try:
                mine = await self._mine(topic)
            except TopicNotFound:
                continue  # Asked for again every second; its appearance wakes us.
            except KappaError as fault:
                log.warning("not balanced: will try again group=%s topic=%s fault=%s", self._group, topic, fault)
                is_settled = False
                continue
            if not await self._apply(topic, mine):
                is_settled = False
        return is_settled

    async def _mine(self, topic: str) -> set[Queue]:
        queues = subscribe_queues(topic, await self._cluster.routes.find(topic))
        if self._settings.model is MessageModel.BROADCASTING:
            return set(queues)
        members = await self._cluster.member_ids(self._group, topic)
        if not queues or not members:
            raise UsageError(f"topic {topic!r} has {len(queues)} queues and the group {len(members)} members")
        if self._cluster.client_id not in members:
            raise UsageError(f"the broker does not list {self._cluster.client_id!r} in the group yet")
        return set(
            self._settings.strategy.allocate(self._group, self._cluster.client_id, sorted(queues), sorted(members))
        )


async def start_offset(cluster: Cluster, store: OffsetStore, queue: Queue, settings: ConsumerSettings) -> int | None:
    """Where to begin in a queue that is newly ours; `None` when that cannot be told now."""
    committed: QueueOffset | Committed
    try:
        stored = await store.stored(queue)
        committed = Committed.NONE if stored is None else QueueOffset(stored)
    except KappaError as fault:
        log.warning("committed offset not known queue=%s fault=%s", queue, fault)
        committed = Committed.UNKNOWN
    start = where_to_start(queue.topic, committed, settings.start_from, start_at_ms=settings.start_at_ms)
    try:
        match start:
            case StartAt(queue_offset):
                return queue_offset
            case AskEnd():
                return await cluster.max_offset(queue)
            case AskTime(at_ms):
                return await cluster.search_offset(queue, at_ms)
            case TryLater():
                return None
    except KappaError as fault:
        log.warning("start not known queue=%s fault=%s", queue, fault)
        return None

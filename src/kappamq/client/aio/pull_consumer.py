"""Reading queues by explicit offsets: the caller decides where, and what counts as consumed."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from msgspec import Struct

from kappamq.client.aio.cluster import Cluster, PullStatus
from kappamq.client.aio.producer import make_cluster
from kappamq.client.aio.running_info import running_info
from kappamq.client.aio.send_back import SendBack
from kappamq.client.core.receiving import decode_pull
from kappamq.client.settings import ClusterSettings, Duration, Moment, duration_ms, moment_ms
from kappamq.errors import Refused
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.names import check_group
from kappamq.model.selector import Selector
from kappamq.model.subscription import ConsumerMembership, ConsumeType, ExpressionType
from kappamq.wire.codes import ResponseCode


class Pulled(Struct, frozen=True):
    """Messages of one pull and where to go on. `OFFSET_MOVED` means: `start` does not exist, go on at `next_offset`."""

    status: PullStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class PullConsumer:
    """Reads any queue of any topic; the group's progress changes only by `commit`. Use as an async context manager."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        cluster: Cluster | None = None,
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        check_group(group)
        self._group = group
        self._owns_cluster = cluster is None
        self.cluster = cluster if cluster is not None else make_cluster(name_servers, cluster_settings)
        self._stack = AsyncExitStack()
        self._send_back = SendBack(self.cluster, group, retries_max=None)
        self._is_open = False

    async def __aenter__(self) -> "PullConsumer":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Join the cluster."""
        if self._is_open:
            return
        if self._owns_cluster:
            await self._stack.enter_async_context(self.cluster)
        await self.cluster.join_consumer(self)
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self._send_back.close()
            await self.cluster.leave_consumer(self)
        finally:
            await self._stack.aclose()

    async def pull(
        self,
        queue: Queue,
        start: int,
        *,
        expression: str = "*",
        expression_type: str = ExpressionType.TAG,
        count_max: int = 32,
        wait: Duration = 0,
    ) -> Pulled:
        """Messages of a queue from `start` on, waiting for some up to `wait`."""
        selector = Selector.parse(expression, expression_type)
        raw = await self.cluster.pull_raw(
            queue,
            start,
            group=self._group,
            count_max=count_max,
            suspend_ms=duration_ms(wait),
            expression=selector.expression,
            expression_type=selector.expression_type,
        )
        messages = decode_pull(raw.body, broker=queue.broker, selector=selector) if raw.body else []
        return Pulled(raw.status, messages, raw.next_offset, raw.min_offset, raw.max_offset)

    async def queues_of(self, topic: str) -> list[Queue]:
        """All readable queues of a topic. Raises `TopicNotFound`."""
        queues = await self.cluster.queues_of(topic)
        await self.cluster.heartbeat()
        return queues

    async def min_offset(self, queue: Queue) -> int:
        return await self.cluster.min_offset(queue)

    async def max_offset(self, queue: Queue) -> int:
        return await self.cluster.max_offset(queue)

    async def offset_for_time(self, queue: Queue, moment: Moment) -> int:
        """Offset of the first message stored at or after a moment."""
        return await self.cluster.search_offset(queue, moment_ms(moment))

    async def committed(self, queue: Queue) -> int | None:
        """Progress of the group; `None` when it has none."""
        return await self.cluster.committed_offset(queue, self._group)

    async def commit(self, queue: Queue, offset: int) -> None:
        """Store the progress of the group: the offset of the next message to read."""
        await self.cluster.commit_offset(queue, self._group, offset)

    async def send_back(self, message: StoredMessage, *, delay_level: int = 0) -> bool:
        """Let the group's push consumers have the message later; False when the brokers did not take it."""
        return await self._send_back.send_back(message, message.queue, delay_level=delay_level)

    # ── What brokers ask ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def group(self) -> str:
        return self._group

    def membership(self) -> ConsumerMembership:
        return ConsumerMembership(group=self._group, consume_type=ConsumeType.CONSUME_ACTIVELY)

    def on_members_changed(self) -> None:
        """Nothing is shared with the group."""

    async def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """The caller decides where to read: a reset changes only what `committed` answers."""

    def status(self, topic: str) -> dict[Queue, int]:  # noqa: ARG002 - nothing is assigned.
        return {}

    def running_info(self) -> dict[str, Any]:
        return running_info(
            self.cluster,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            is_orderly=False,
            concurrency=1,
            subscriptions=(),
            queues={},
        )

    async def consume_directly(self, message: StoredMessage) -> dict[str, Any]:
        raise Refused(
            f"message {message.message_id} cannot be consumed directly: this consumer has no handler",
            code=ResponseCode.SYSTEM_ERROR,
        )

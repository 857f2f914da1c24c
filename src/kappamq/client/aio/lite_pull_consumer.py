"""A consumer that is asked for messages: by `async for`, by batches, or by `poll`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final

from kappamq.client.aio.balancer import Balancer, start_offset
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.offset_store import LocalOffsets, OffsetStore, RemoteOffsets
from kappamq.client.aio.producer import RunningTracer, open_tracer
from kappamq.client.aio.queue_reader import Batch, QueueReader
from kappamq.client.aio.running_info import RunningQueue, running_info
from kappamq.client.aio.subscribing import Subscriptions
from kappamq.client.core.priorities import Lanes, Priorities, TopicPriorities
from kappamq.client.core.tracing import Outcome
from kappamq.client.settings import (
    ClusterSettings,
    ConsumerSettings,
    Duration,
    LitePullSettings,
    Moment,
    StartPlace,
    duration_ms,
    moment_ms,
    start_place,
)
from kappamq.errors import Refused, UsageError
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.names import check_group
from kappamq.model.selector import Selector
from kappamq.model.subscription import ConsumerMembership, ConsumeType, ExpressionType, MessageModel
from kappamq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0


class LitePullConsumer:
    """Reads topics as a member of a group, or queues of its own choice. Use as an async context manager.

    ::

        async with LitePullConsumer("127.0.0.1:9876", group="g", topics=["orders"]) as consumer:
            async for message in consumer:
                ...

    A message counts as consumed when the next one is asked for, or when the block ends without an error; progress
    reaches the broker every few seconds and at the end. With `auto_commit=False` only `commit` does that.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Iterable[str] | Mapping[str, str] = (),
        queues: Iterable[Queue] = (),
        auto_commit: bool | None = None,
        model: MessageModel | None = None,
        start_from: StartPlace | None = None,
        priorities: TopicPriorities | None = None,
        settings: ConsumerSettings | None = None,
        lite: LitePullSettings | None = None,
        cluster: Cluster | None = None,
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        """Give `topics` (names, or name → tag expression) to share them with the group, or `queues` to read just those.

        `start_from` tells where a group without progress begins: "first", "last" or a `datetime`. Topics with a higher
        number in `priorities` are handed out first; "message" instead of a number goes by the level of each message.
        What is given here counts more than the same thing in `settings` and `lite`.
        """
        check_group(group)
        self._group = group
        settings = settings or ConsumerSettings()
        if model is not None:
            settings = replace(settings, model=model)
        if start_from is not None:
            place, at_ms = start_place(start_from)
            settings = replace(settings, start_from=place, start_at_ms=at_ms)
        self._settings = settings
        self._lite = lite or LitePullSettings()
        if auto_commit is not None:
            self._lite = replace(self._lite, auto_commit=auto_commit)
        self._owns_cluster = cluster is None
        self.cluster = cluster if cluster is not None else _own_cluster(name_servers, cluster_settings, settings.model)
        self._subscriptions = Subscriptions(self.cluster)
        self._assigned = list(queues)
        self._wanted = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
        if self._assigned and self._wanted:
            raise UsageError("topics and queues exclude each other: subscribe to topics, or read queues of your choice")
        self._balancer = Balancer(
            self.cluster, group, settings, topics=self._subscriptions.topics, apply=self._apply_balance
        )
        self._stack = AsyncExitStack()
        self._store: OffsetStore
        self._readers: dict[Queue, QueueReader] = {}
        self._reading: dict[Queue, asyncio.Task[None]] = {}
        self._priorities = Priorities(priorities)
        self._batches: Lanes[Batch] = Lanes()
        self._cached = 0
        self._arrived = asyncio.Event()
        self._changing = asyncio.Lock()
        self._queue_listeners: list[Callable[[str, set[Queue]], None]] = []
        self._paused: set[Queue] = set()
        self._current: Batch | None = None
        self._current_at = 0
        self._holding: QueueReader | None = None
        self._tracing: RunningTracer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_open = False

    # ── Life cycle ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> "LitePullConsumer":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(is_last_done=error is None)

    async def open(self) -> None:
        """Join the group and begin to read ahead."""
        if self._is_open:
            return
        if self._owns_cluster:
            await self._stack.enter_async_context(self.cluster)
        try:
            await self._join()
        except BaseException:
            await self.close(is_last_done=False)
            await self._stack.aclose()
            raise

    async def _join(self) -> None:
        self._store = (
            LocalOffsets(self.cluster.client_id, self._group, directory=self._settings.offsets_directory)
            if self._settings.model is MessageModel.BROADCASTING
            else RemoteOffsets(self.cluster, self._group)
        )
        await self._store.load()
        if self._settings.trace:
            topic = self._settings.trace_topic
            self._tracing = await open_tracer(self.cluster, self._group, role="CONSUME", topic=topic)
        for topic, expression in self._wanted.items():
            self._subscriptions.add(topic, expression)
        for topic in {*self._subscriptions.topics(), *(queue.topic for queue in self._assigned)}:
            self.cluster.routes.want(topic)
            await self.cluster.routes.refresh_quietly(topic)
        await self.cluster.join_consumer(self)
        self.cluster.routes.on_change(self._on_route)
        self._is_open = True
        await self.cluster.heartbeat()
        await self._subscriptions.check_expressions(self._group)
        if self._assigned:
            await self._apply(self._assigned)
        else:
            await self._balancer.balance()
        self._tasks += [
            self.cluster.tasks.start(self._balancer.run(), name=f"balance {self._group}"),
            self.cluster.tasks.start(self._persist_forever(), name=f"persist {self._group}"),
        ]

    async def close(self, *, is_last_done: bool = True) -> None:
        """Commit what was consumed and leave the group. `is_last_done`: what was handed out last counts, too."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            for task in self._tasks:
                task.cancel()
            self._arrived.set()
            async with self._changing:
                for task in self._reading.values():
                    task.cancel()
                if self._lite.auto_commit:
                    for reader in self._readers.values():
                        self._note_progress(reader, reader.handed if is_last_done else reader.finished)
                await self._store.persist(self._readers)
                self._readers.clear()
                self._reading.clear()
            if self._tracing is not None:
                await self._tracing.close()
            self.cluster.routes.forget_listener(self._on_route)
            await self.cluster.leave_consumer(self)
        finally:
            await self._stack.aclose()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> "LitePullConsumer":
        return self

    async def __anext__(self) -> StoredMessage:
        self._yield_to_urgent()
        batch = self._current
        if batch is None or self._current_at >= len(batch.messages):
            self._finish_handed()
            batch = self._current = await self._next_batch(None)
            self._current_at = 0
            if batch is None:
                raise StopAsyncIteration
            self._holding = batch.reader
        else:
            batch.reader.finished = batch.reader.handed
        message = batch.messages[self._current_at]
        self._current_at += 1
        is_last = self._current_at == len(batch.messages)
        batch.reader.handed = batch.end if is_last else message.queue_offset + 1
        return message

    def _yield_to_urgent(self) -> None:
        """Put the rest of the current batch back when something more urgent waits."""
        batch, at = self._current, self._current_at
        if not self._priorities or batch is None or at >= len(batch.messages):
            return
        priority, highest = self._priorities.of(batch.messages[at]), self._batches.highest
        if highest is not None and highest > priority:
            self._current = None
            self.give_back(batch.messages[at:], end=batch.end)

    async def batches(self) -> AsyncIterator[list[StoredMessage]]:
        """Batches as they come, each of one queue; the fastest way to read. Ends when the consumer closes."""
        while self._is_open:
            messages = await self.poll()
            if messages:
                yield messages

    async def poll(self, *, timeout: Duration = POLL_SECONDS, messages_max: int | None = None) -> list[StoredMessage]:
        """Some messages of one queue, waiting for them up to `timeout`; none is an empty list.

        What the previous `poll` returned counts as consumed now. Cancelling loses nothing.
        """
        if not self._is_open:
            raise UsageError(f"consumer of group {self._group!r} is not open: use it inside 'async with'")
        if duration_ms(timeout) < 0:
            raise UsageError(f"a timeout of {timeout} is negative: use 0 to not wait")
        self._finish_handed()
        batch = await self._next_batch(duration_ms(timeout) / 1000, messages_max)
        if batch is None:
            return []
        batch.reader.handed = batch.end
        self._holding = batch.reader
        return batch.messages

    def give_back(self, messages: Sequence[StoredMessage], *, end: int | None = None) -> None:
        """Return the unused end of what the last `poll` returned; it will be handed out again first.

        `end` is where the pull that brought it ended, if that is not where the messages end.
        """
        if not messages:
            return
        queue = Queue(messages[0].topic, messages[0].broker, messages[0].queue_id)
        reader = self._readers.get(queue)
        if reader is None or reader.handed is None:
            return  # Not ours any more: whoever has it now reads it again from the committed offset.
        rest = Batch(reader, list(messages), reader.handed if end is None else end)
        reader.handed = messages[0].queue_offset
        reader.cached_messages += len(rest.messages)
        reader.cached_bytes += rest.size
        self._cached += len(rest.messages)
        self._batches.append_first(self._priorities.of(rest.messages[0]), rest)

    def _finish_handed(self) -> None:
        """The user is done with everything that was handed out: only the last batch can still be open."""
        reader, self._holding = self._holding, None
        if reader is not None and self._readers.get(reader.queue) is reader:
            reader.finished = reader.handed
            if self._lite.auto_commit:
                self._note_progress(reader, reader.finished)

    def _note_progress(self, reader: QueueReader, offset: int | None) -> None:
        if offset is not None:
            self._store.update(reader.queue, offset, only_forward=False)

    async def _next_batch(self, seconds: float | None, messages_max: int | None = None) -> Batch | None:
        self._current = None
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while not self._batches:
            if not self._is_open:
                return None
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        # From here to the end nothing waits: a cancelled caller has lost no batch.
        batch = self._batches.pop()
        if messages_max is not None and len(batch.messages) > messages_max:
            rest = Batch(batch.reader, batch.messages[messages_max:], batch.end)
            batch = Batch(batch.reader, batch.messages[:messages_max], rest.messages[0].queue_offset)
            self._batches.append_first(self._priorities.of(rest.messages[0]), rest)
        self._cached -= len(batch.messages)
        batch.reader.taken(len(batch.messages), batch.size)
        if self._tracing is not None:
            # RocketMQ: what a pull consumer hands out counts as handled at once; nobody tells how it went.
            tracer = self._tracing.tracer
            tracer.end_handling(tracer.begin_handling(batch.messages), lambda _: Outcome.SUCCESS)
        return batch

    def _deliver(self, batch: Batch) -> None:
        self._batches.append(self._priorities.of(batch.messages[0]), batch)
        self._cached += len(batch.messages)
        self._arrived.set()

    def _has_room(self, reader: QueueReader) -> bool:
        """Whether a queue may be read ahead. A full cache of less urgent messages must not keep urgent ones away."""
        is_kept_out = self._cached >= self._lite.cached_messages_max
        return not is_kept_out or (bool(self._priorities) and not reader.cached_messages)

    # ── Subscribing and assigning ───────────────────────────────────────────────────────────────────────────────────

    async def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = ExpressionType.TAG) -> None:
        """Read a topic together with the group. Excludes `assign`."""
        if self._assigned:
            raise UsageError("this consumer reads queues of its own choice: subscribe with another consumer")
        if not self._is_open:
            raise UsageError("the consumer is not open: give topics to the constructor, or open it first")
        self._subscriptions.add(topic, expression, expression_type)
        await self.cluster.routes.refresh_quietly(topic)
        await self.cluster.heartbeat()
        await self._subscriptions.check_expressions(self._group)
        await self._balancer.balance()

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        self._subscriptions.remove(topic)
        await self._apply_balance(topic, set())
        await self.cluster.heartbeat()

    async def assign(self, queues: Iterable[Queue]) -> None:
        """Read exactly these queues, whatever the group does. Excludes `subscribe`."""
        if self._subscriptions.topics():
            raise UsageError("this consumer is subscribed to topics: assign queues with another consumer")
        self._assigned = list(queues)
        for topic in {queue.topic for queue in self._assigned}:
            await self.cluster.routes.find(topic)
        await self._apply(self._assigned)

    def assignment(self) -> set[Queue]:
        """Queues that are ours now."""
        return set(self._readers)

    async def queues_of(self, topic: str) -> list[Queue]:
        """All readable queues of a topic. Raises `TopicNotFound`."""
        return await self.cluster.queues_of(topic)

    def on_queues_changed(self, listener: Callable[[str, set[Queue]], None]) -> None:
        """Call `listener(topic, queues)` when the queues of ours of a topic have changed."""
        self._queue_listeners.append(listener)

    async def _apply_balance(self, topic: str, mine: set[Queue]) -> bool:
        others = [queue for queue in self._readers if queue.topic != topic]
        before = {queue for queue in self._readers if queue.topic == topic}
        is_settled = await self._apply([*others, *mine])
        if before != mine:
            log.info("queues changed group=%s topic=%s count=%d", self._group, topic, len(mine))
            for listener in self._queue_listeners:
                listener(topic, {queue for queue in self._readers if queue.topic == topic})
        return is_settled

    async def _apply(self, queues: Iterable[Queue]) -> bool:
        wanted = set(queues)
        async with self._changing:
            for queue in [queue for queue in self._readers if queue not in wanted]:
                await self._drop(queue)
            fresh = sorted(wanted - self._readers.keys())
            starts = await asyncio.gather(
                *(start_offset(self.cluster, self._store, queue, self._settings) for queue in fresh)
            )
            for queue, start in zip(fresh, starts, strict=True):
                if start is not None and self._is_open:
                    self._read(queue, start)
        return all(start is not None for start in starts)

    def _read(self, queue: Queue, start: int) -> None:
        reader = QueueReader(
            self.cluster,
            queue,
            start,
            group=self._group,
            settings=self._settings,
            limits=self._settings.limits,
            deliver=self._deliver,
            on_moved=self._on_moved,
        )
        reader.is_paused = queue in self._paused
        self._readers[queue] = reader
        self._reading[queue] = self.cluster.tasks.start(
            reader.run(self._selector, partial(self._has_room, reader)), name=f"read {queue.topic} {queue.queue_id}"
        )

    def _selector(self, topic: str) -> Selector | None:
        return self._subscriptions.selector(topic)

    def _forget(self, queue: Queue) -> QueueReader | None:
        """Stop reading a queue and drop what was read ahead."""
        task = self._reading.pop(queue, None)
        if task is not None:
            task.cancel()
        reader = self._readers.pop(queue, None)
        if reader is not None:
            self._batches.discard(lambda batch: batch.reader is reader)
            self._cached -= reader.cached_messages
            if self._current is not None and self._current.reader is reader:
                self._current = None
        return reader

    async def _drop(self, queue: Queue) -> None:
        reader = self._forget(queue)
        if reader is not None and self._lite.auto_commit:
            self._note_progress(reader, reader.finished)
        await self._store.persist([queue])
        self._store.forget(queue)

    def _on_moved(self, reader: QueueReader, next_offset: int) -> None:
        """The broker put us elsewhere: messages expired, or somebody reset the group."""
        if self._readers.get(reader.queue) is not reader:
            return
        log.warning("offset moved queue=%s from=%d to=%d", reader.queue, reader.position, next_offset)
        self._restart(reader.queue, next_offset)
        self._store.update(reader.queue, next_offset, only_forward=False)

    def _restart(self, queue: Queue, start: int) -> None:
        self._forget(queue)
        self._read(queue, start)

    # ── Positions ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def seek(self, queue: Queue, offset: int) -> None:
        """Go on at another offset; what was read ahead is dropped. Raises `UsageError` for one that does not exist."""
        self._check_assigned(queue)
        low, high = await asyncio.gather(self.cluster.min_offset(queue), self.cluster.max_offset(queue))
        if not low <= offset <= high:
            raise UsageError(f"offset {offset} is not in {queue}: it has {low} to {high}")
        async with self._changing:
            self._check_assigned(queue)
            self._restart(queue, offset)

    async def seek_to_begin(self, queue: Queue) -> None:
        """Go on at the oldest message."""
        await self.seek(queue, await self.cluster.min_offset(queue))

    async def seek_to_end(self, queue: Queue) -> None:
        """Go on after the newest message."""
        await self.seek(queue, await self.cluster.max_offset(queue))

    async def offset_for_time(self, queue: Queue, moment: Moment) -> int:
        """Offset of the first message stored at or after a moment."""
        return await self.cluster.search_offset(queue, moment_ms(moment))

    async def committed(self, queue: Queue) -> int | None:
        """Progress of the group; `None` when it has none."""
        in_memory = self._store.in_memory(queue)
        return in_memory if in_memory is not None else await self._store.stored(queue)

    async def commit(self, offsets: Mapping[Queue, int] | None = None, *, persist: bool = True) -> None:
        """Commit everything handed out so far, or the given offsets (that of the next message to read).

        Without `persist` the broker learns it with the next periodic round.
        """
        if offsets is None:
            for reader in self._readers.values():
                reader.finished = reader.handed
                self._note_progress(reader, reader.handed)
        else:
            for queue, offset in offsets.items():
                if offset < 0:
                    raise UsageError(f"offset {offset} of {queue} cannot be committed: use 0 or more")
                self._store.update(queue, offset, only_forward=False)
        if persist:
            await self._store.persist(self._readers if offsets is None else offsets)

    def pause(self, queues: Iterable[Queue]) -> None:
        """Pull no more from these queues; what was read ahead is still handed out."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self._readers:
                self._readers[queue].is_paused = True

    def resume(self, queues: Iterable[Queue]) -> None:
        """Pull from these queues again."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self._readers:
                self._readers[queue].is_paused = False
                self._readers[queue].wake()

    def _check_assigned(self, queue: Queue) -> None:
        if queue not in self._readers:
            raise UsageError(f"{queue} is not assigned to this consumer: ask assignment()")

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            if self._lite.auto_commit:
                for reader in self._readers.values():
                    self._note_progress(reader, reader.finished)
            await self._store.persist(list(self._readers))

    # ── What brokers ask ────────────────────────────────────────────────────────────────────────────────────────────

    def _on_route(self, topic: str) -> None:
        self._balancer.on_route(topic)

    @property
    def group(self) -> str:
        return self._group

    def membership(self) -> ConsumerMembership:
        return ConsumerMembership(
            group=self._group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=self._settings.model,
            subscriptions=self._subscriptions.all(),
        )

    def on_members_changed(self) -> None:
        self._balancer.wake()

    async def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        async with self._changing:
            for queue, offset in offsets.items():
                if queue.topic == topic and queue in self._readers:
                    self._restart(queue, offset)
                    self._store.update(queue, offset, only_forward=False)
            await self._store.persist(offsets)

    def status(self, topic: str) -> dict[Queue, int]:
        found = {queue: self._store.in_memory(queue) for queue in self._readers if queue.topic == topic}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def running_info(self) -> dict[str, Any]:
        return running_info(
            self.cluster,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            is_orderly=False,
            concurrency=1,
            subscriptions=self._subscriptions.all(),
            queues={
                queue: RunningQueue(
                    committed_offset=self._store.in_memory(queue) or 0,
                    cached_messages=reader.cached_messages,
                    cached_bytes=reader.cached_bytes,
                )
                for queue, reader in self._readers.items()
            },
        )

    async def consume_directly(self, message: StoredMessage) -> dict[str, Any]:
        raise Refused(
            f"message {message.message_id} cannot be consumed directly: this consumer has no handler",
            code=ResponseCode.SYSTEM_ERROR,
        )


def _own_cluster(
    name_servers: str | Sequence[str] | None, settings: ClusterSettings | None, model: MessageModel
) -> Cluster:
    if name_servers is None:
        raise UsageError("where is the cluster? pass name_servers, for example '127.0.0.1:9876', or a shared cluster")
    return Cluster(name_servers, settings=settings_for_model(settings, model), is_stream=True)


def settings_for_model(settings: ClusterSettings | None, model: MessageModel) -> ClusterSettings:
    """RocketMQ: a broadcasting consumer keeps a fixed client id, because the path of its progress contains it."""
    settings = settings or ClusterSettings()
    if model is MessageModel.BROADCASTING and settings.instance is None:
        return replace(settings, instance="DEFAULT")
    return settings

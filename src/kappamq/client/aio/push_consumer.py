"""A consumer that calls handlers as messages arrive."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, TypeVar

from kappamq.client.aio.assignment import Assignment, PullLoop
from kappamq.client.aio.balancer import Balancer, start_offset
from kappamq.client.aio.calling import Raised, call_user
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.concurrent import ConcurrentHandling
from kappamq.client.aio.lite_pull_consumer import settings_for_model
from kappamq.client.aio.offset_store import LocalOffsets, OffsetStore, RemoteOffsets
from kappamq.client.aio.orderly import OrderlyHandling
from kappamq.client.aio.producer import RunningTracer, open_tracer
from kappamq.client.aio.running_info import RunningQueue, running_info
from kappamq.client.aio.send_back import SendBack
from kappamq.client.aio.subscribing import Subscriptions
from kappamq.client.core.handling import BatchHandler, Handler, OneHandler, Progress, RetryLater
from kappamq.client.core.priorities import Priorities, TopicPriorities
from kappamq.client.core.process_queue import CacheLimits, ProcessQueue
from kappamq.client.core.starting import StartFrom
from kappamq.client.settings import (
    CONCURRENCY_MAX,
    ClusterSettings,
    ConsumerSettings,
    PushSettings,
    StartPlace,
    start_place,
)
from kappamq.clock import elapsed_ms
from kappamq.errors import UsageError
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.names import check_group, is_retry_topic, retry_topic
from kappamq.model.subscription import ConsumeFrom, ConsumerMembership, ConsumeType, ExpressionType, MessageModel

log = logging.getLogger(__name__)

AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Any])

RELEASE_SECONDS: Final = 0.5
"""How long giving a queue away waits for its handler; a slower one keeps the lock until it has finished."""

_CONSUME_FROM: Final = {
    StartFrom.LAST: ConsumeFrom.LAST_OFFSET,
    StartFrom.FIRST: ConsumeFrom.FIRST_OFFSET,
    StartFrom.TIME: ConsumeFrom.TIMESTAMP,
}

_RESULT_BY_PROGRESS: Final = {
    Progress.COMMIT: "CR_COMMIT",
    Progress.KEEP: "CR_SUCCESS",
    Progress.ROLLBACK: "CR_ROLLBACK",
}


class PushConsumer:
    """Consumes topics as a member of a group, with one handler for each topic. Use as an async context manager.

    ::

        async with PushConsumer("127.0.0.1:9876", group="g") as consumer:

            @consumer.on("orders", "new || paid")
            async def handle(message: ReceivedMessage) -> None: ...

            await consumer.run()

    A handler that returns has consumed its message; one that raises gets it again later (`RetryLater` says when). An
    `async def` runs as a task, a plain function in a thread. With `ordered=True` each queue is handled one message
    after the other. Leaving the block waits for the handlers that run, and commits.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        ordered: bool = False,
        model: MessageModel | None = None,
        start_from: StartPlace | None = None,
        priorities: TopicPriorities | None = None,
        concurrency: int | None = None,
        retries_max: int | None = None,
        settings: ConsumerSettings | None = None,
        handling: PushSettings | None = None,
        cluster: Cluster | None = None,
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        """What is given here counts more than the same thing in `settings` and `handling`.

        `start_from` tells where a group without progress begins: "first", "last" or a `datetime`.
        RocketMQ: brokers send a new group to the first message of a queue as long as that is in memory, whatever is
        given here, so that nothing is missed in queues that are added to a topic.

        Topics with a higher number in `priorities` are handled first; "message" instead of a number goes by the level
        of each message. Not for ordered consumption.
        """
        check_group(group)
        if priorities and ordered:
            raise UsageError("an ordered consumer has no priorities: leave out priorities, or ordered=True")
        self._priorities = Priorities(priorities)
        self._group = group
        self._is_ordered = ordered
        settings = settings or ConsumerSettings()
        if model is not None:
            settings = replace(settings, model=model)
        if start_from is not None:
            place, at_ms = start_place(start_from)
            settings = replace(settings, start_from=place, start_at_ms=at_ms)
        self._settings = settings
        handling = handling or PushSettings()
        if concurrency is not None:
            handling = replace(handling, concurrency=concurrency)
        if retries_max is not None:
            handling = replace(handling, retries_max=retries_max)
        self._handling_settings = handling
        self._owns_cluster = cluster is None
        if cluster is None:
            if name_servers is None:
                raise UsageError("where is the cluster? pass name_servers, for example '127.0.0.1:9876', or a cluster")
            cluster = Cluster(name_servers, settings=settings_for_model(cluster_settings, settings.model))
        self.cluster = cluster
        self._stack = AsyncExitStack()
        self._subscriptions = Subscriptions(cluster)
        self._handlers: dict[str, Handler] = {}
        self._assignments: dict[Queue, Assignment] = {}
        self._releasing: set[Assignment] = set()
        self._changing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._is_running = False
        self._started_at_ms = 0
        self._queue_listeners: list[Callable[[str, set[Queue]], None]] = []
        self._store: OffsetStore
        self._handling: ConcurrentHandling | OrderlyHandling
        self._pulling: PullLoop
        self._threads: ThreadPoolExecutor
        self._send_back: SendBack | None = None
        self._tracing: RunningTracer | None = None
        self._balancer = Balancer(cluster, group, settings, topics=self._subscriptions.topics, apply=self._apply)

    # ── Handlers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def on(
        self,
        topic: str,
        expression: str = "*",
        *,
        expression_type: str = ExpressionType.TAG,
        batch_size: int = 1,
        auto_commit: bool = True,
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Decorator: let a function handle a topic.

        With `batch_size` over 1 it gets a list of up to so many messages, and may return the index of the last one
        that succeeded. With `auto_commit=False` (ordered consumers only) nothing counts as consumed before the
        function returns `Progress.COMMIT`; pulling stops when `limits.messages_max` wait for that.
        """

        def register(function: AnyHandler) -> AnyHandler:
            self.add_handler(
                topic,
                function,
                expression,
                expression_type=expression_type,
                batch_size=batch_size,
                auto_commit=auto_commit,
            )
            return function

        return register

    def add_handler(
        self,
        topic: str,
        function: OneHandler | BatchHandler,
        expression: str = "*",
        *,
        expression_type: str = ExpressionType.TAG,
        batch_size: int = 1,
        auto_commit: bool = True,
    ) -> None:
        """Let a function handle a topic; also while running."""
        if not auto_commit and not self._is_ordered:
            raise UsageError("auto_commit=False needs an ordered consumer: pass ordered=True, or raise RetryLater")
        handler = Handler(function, batch_size, takes_list=batch_size > 1, auto_commit=auto_commit)
        self._subscriptions.add(topic, expression, expression_type)
        self._handlers[topic] = handler
        if self._is_running:
            self.cluster.tasks.start(self._announce(topic), name=f"subscribe {topic}")

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        self._subscriptions.remove(topic)
        self._handlers.pop(topic, None)
        await self._apply(topic, set())
        await self.cluster.heartbeat()

    async def _announce(self, topic: str) -> None:
        await self.cluster.routes.refresh_quietly(topic)
        await self.cluster.heartbeat()
        self._balancer.wake()

    # ── Life cycle ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> "PushConsumer":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Make ready. Nothing is consumed before `start` or `run`."""
        if self._owns_cluster and not self.cluster.is_open:
            await self._stack.enter_async_context(self.cluster)

    async def run(self) -> None:
        """Start, and return when `stop` is called; when cancelled, the end of the `async with` block still commits."""
        await self.start()
        await self._stopping.wait()

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    async def start(self) -> None:
        """Join the group and begin to consume."""
        if self._is_running:
            return
        if not self._handlers:
            raise UsageError("there is no handler: decorate a function with @consumer.on('topic') before starting")
        await self.open()
        await self._build()
        for topic in self._subscriptions.topics():
            await self.cluster.routes.refresh_quietly(topic)
        await self.cluster.join_consumer(self)
        self.cluster.routes.on_change(self._balancer.on_route)
        self._is_running = True
        self._started_at_ms = self.cluster.clock.now_ms()
        try:
            await self.cluster.heartbeat()
            await self._subscriptions.check_expressions(self._group)
            if self._settings.model is MessageModel.CLUSTERING:
                await self.cluster.find_retry_topic(self._group)
            await self._balancer.balance()
        except BaseException:
            await self._leave()
            raise
        self._start_tasks()

    async def _build(self) -> None:
        settings = self._handling_settings
        # Threads start as they are needed: how many run handlers at once is decided by `concurrency` alone.
        self._threads = ThreadPoolExecutor(CONCURRENCY_MAX, thread_name_prefix=f"kappamq {self._group}")
        is_clustering = self._settings.model is MessageModel.CLUSTERING
        if is_clustering:
            self._subscriptions.add(retry_topic(self._group), "*")
            self._send_back = SendBack(self.cluster, self._group, retries_max=settings.retries_max)
            self._store = RemoteOffsets(self.cluster, self._group)
        else:
            directory = self._settings.offsets_directory
            self._store = LocalOffsets(self.cluster.client_id, self._group, directory=directory)
        await self._store.load()
        if self._settings.trace:
            topic = self._settings.trace_topic
            self._tracing = await open_tracer(self.cluster, self._group, role="CONSUME", topic=topic)
        tracer = self._tracing.tracer if self._tracing is not None else None
        if self._is_ordered:
            self._handling = OrderlyHandling(
                settings,
                store=self._store,
                send_back=self._send_back,
                handler_of=self._handlers.get,
                clock=self.cluster.clock,
                threads=self._threads,
                tasks=self.cluster.tasks,
                needs_lock=is_clustering,
                tracer=tracer,
            )
        else:
            self._handling = ConcurrentHandling(
                settings,
                store=self._store,
                send_back=self._send_back,
                handler_of=self._handlers.get,
                clock=self.cluster.clock,
                threads=self._threads,
                tracer=tracer,
                priorities=self._priorities,
            )
        self._pulling = PullLoop(
            self.cluster,
            self._group,
            self._settings,
            subscriptions=self._subscriptions,
            store=self._store,
            is_orderly=self._is_ordered,
            is_ours=self._is_ours,
            limits=self._limits,
            submit=self._handling.submit,
            on_moved=self._on_moved,
        )

    def _start_tasks(self) -> None:
        start = self.cluster.tasks.start
        self._tasks.append(start(self._balancer.run(), name=f"balance {self._group}"))
        self._tasks.append(start(self._persist_forever(), name=f"persist {self._group}"))
        if isinstance(self._handling, ConcurrentHandling):
            self._resize_workers(self._handling)
            self._tasks.append(start(self._watch_overdue(self._handling), name=f"overdue {self._group}"))
        if self._needs_locks:
            self._tasks.append(start(self._lock_forever(), name=f"lock {self._group}"))

    async def close(self) -> None:
        """Pull no more, wait for the handlers that run, commit, leave the group."""
        self._stopping.set()
        try:
            if self._is_running:
                await self._leave()
        finally:
            await self._stack.aclose()

    async def _leave(self) -> None:
        self._is_running = False
        self._balancer.is_paused = True
        self._pulling.is_paused = True
        for assignment in self._assignments.values():
            if assignment.task is not None:
                assignment.task.cancel()
        is_drained = await self._handling.drain()
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        async with self._changing:
            queues = [queue for queue, assignment in self._assignments.items() if self._is_ours(assignment.cached)]
            await self._store.persist(queues)
            for assignment in self._assignments.values():
                assignment.cached.is_dropped = True
            self._assignments.clear()
        if self._needs_locks and is_drained:
            for assignment in list(self._releasing):  # Given away already, but their handlers were slow.
                queues.append(assignment.queue)
                await self._release(assignment)
            await self.cluster.unlock_queues(self._group, queues)
        if self._send_back is not None:
            await self._send_back.close()
        if self._tracing is not None:
            await self._tracing.close()
        self.cluster.routes.forget_listener(self._balancer.on_route)
        await self.cluster.leave_consumer(self)

    def pause(self) -> None:
        """Pull no more until `resume`; what was pulled already is still handled."""
        self._pulling.is_paused = self._balancer.is_paused = True

    def resume(self) -> None:
        self._pulling.is_paused = self._balancer.is_paused = False
        for assignment in self._assignments.values():
            assignment.room.set()
        self._balancer.wake()

    @property
    def is_paused(self) -> bool:
        return self._balancer.is_paused

    @property
    def concurrency(self) -> int:
        """Handlers that run at once."""
        return self._handling_settings.concurrency

    async def set_concurrency(self, concurrency: int) -> None:
        """Let so many handlers run at once from now on; those that run already finish first."""
        self._handling_settings = replace(self._handling_settings, concurrency=concurrency)
        if not self._is_running:
            return
        if isinstance(self._handling, OrderlyHandling):
            await self._handling.resize(concurrency)
        else:
            self._resize_workers(self._handling)

    def _resize_workers(self, handling: ConcurrentHandling) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        for _ in range(handling.resize(self._handling_settings.concurrency)):
            self._tasks.append(self.cluster.tasks.start(handling.work(), name=f"work {self._group}"))

    # ── Queues come and go ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _needs_locks(self) -> bool:
        return self._is_ordered and self._settings.model is MessageModel.CLUSTERING

    def assignment(self) -> set[Queue]:
        """Queues that are ours now, those of the retry topic included."""
        return set(self._assignments)

    def on_queues_changed(self, listener: Callable[[str, set[Queue]], None]) -> None:
        """Call `listener(topic, queues)` when our queues of a topic have changed."""
        self._queue_listeners.append(listener)

    def _limits(self) -> CacheLimits:
        limits = self._settings.limits
        share = self._handling_settings.cached_messages_max // max(1, len(self._assignments))
        return limits if share >= limits.messages_max else replace(limits, messages_max=max(1, share))

    async def _apply(self, topic: str, mine: set[Queue]) -> bool:
        async with self._changing:
            before = {queue for queue in self._assignments if queue.topic == topic}
            elapsed = elapsed_ms(self.cluster.clock)
            for queue in before:
                assignment = self._assignments[queue]
                if queue not in mine:
                    await self._drop(assignment)
                elif assignment.cached.is_pull_expired(elapsed) and not self._pulling.is_paused:
                    log.error("queue was not pulled for too long: starting it anew queue=%s", queue)
                    await self._drop(assignment)
            fresh = sorted(mine - self._assignments.keys())
            is_settled = await self._add(fresh)
            after = {queue for queue in self._assignments if queue.topic == topic}
        if before != after:
            log.info("queues changed group=%s topic=%s count=%d", self._group, topic, len(after))
            for listener in self._queue_listeners:
                listener(topic, after)
        return is_settled

    async def _add(self, queues: list[Queue]) -> bool:
        """Start queues that are newly ours; False when some could not be locked or started."""
        releasing = {assignment.queue for assignment in self._releasing}
        ready = [queue for queue in queues if queue not in releasing]
        asked_at = elapsed_ms(self.cluster.clock)
        if self._needs_locks and ready:
            held = await self.cluster.lock_queues(self._group, ready)
            ready = [queue for queue in ready if held.get(queue)]
        starts = await asyncio.gather(
            *(start_offset(self.cluster, self._store, queue, self._settings) for queue in ready)
        )
        for queue, start in zip(ready, starts, strict=True):
            if start is not None and self._is_running:
                self._begin(queue, start, locked_at=asked_at)
        return len(ready) == len(queues) and all(start is not None for start in starts)

    def _begin(self, queue: Queue, start: int, *, locked_at: int) -> None:
        now_ms = self.cluster.clock.now_ms()
        cached = ProcessQueue(now_ms=now_ms, elapsed_ms=elapsed_ms(self.cluster.clock))
        if self._needs_locks:
            cached.mark_locked(now_ms=now_ms, elapsed_ms=locked_at)
        assignment = Assignment(queue, cached, start)
        self._assignments[queue] = assignment
        assignment.task = self.cluster.tasks.start(
            self._pulling.run(assignment), name=f"pull {queue.topic} {queue.queue_id}"
        )

    def _forget(self, assignment: Assignment) -> None:
        assignment.cached.is_dropped = True
        if self._assignments.get(assignment.queue) is assignment:
            del self._assignments[assignment.queue]
        if assignment.task is not None:
            assignment.task.cancel()

    async def _drop(self, assignment: Assignment) -> None:
        """Give a queue away. Its progress is stored first, so that the next owner repeats as little as possible."""
        self._forget(assignment)
        if self._needs_locks and assignment.cached.is_locked:
            self._releasing.add(assignment)
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await assignment.idle.wait()
            except TimeoutError:
                self.cluster.tasks.start(self._release(assignment), name="release")
                return
            await self._release(assignment)
            return
        await self._store.persist([assignment.queue])
        self._store.forget(assignment.queue)

    async def _release(self, assignment: Assignment) -> None:
        """Unlock a queue once its handler has finished: the next owner must not overtake it."""
        await assignment.idle.wait()
        if assignment not in self._releasing:
            return
        if self._is_ours(assignment.cached):
            await self._store.persist([assignment.queue])
        self._store.forget(assignment.queue)
        is_locked, assignment.cached.is_locked = assignment.cached.is_locked, False
        self._releasing.discard(assignment)
        if is_locked:
            await self.cluster.unlock_queues(self._group, [assignment.queue])
        else:
            self._balancer.wake()

    def _on_moved(self, assignment: Assignment, next_offset: int) -> None:
        """The broker put us elsewhere: messages expired, or somebody reset the group."""
        log.warning("offset moved queue=%s from=%d to=%d", assignment.queue, assignment.position, next_offset)
        self.cluster.tasks.start(self._restart(assignment, next_offset), name="restart")

    async def _restart(self, assignment: Assignment, offset: int) -> None:
        """Forget what was pulled and go on elsewhere at once; handlers that still run are not listened to."""
        queue = assignment.queue
        async with self._changing:
            if self._assignments.get(queue) is not assignment:
                return
            self._forget(assignment)
            self._releasing.add(assignment)  # Nobody else begins with this queue meanwhile.
            assignment.cached.is_locked = False
        if self._is_ordered:
            await assignment.idle.wait()
        async with self._changing:
            self._store.update(queue, offset, only_forward=False)
            await self._store.persist([queue])
            self._releasing.discard(assignment)
            if self._is_running and queue not in self._assignments:
                self._begin(queue, offset, locked_at=assignment.cached.locked_at)

    # ── Steady work ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            owned = [queue for queue, assignment in self._assignments.items() if self._is_ours(assignment.cached)]
            await self._store.persist(owned)

    async def _watch_overdue(self, handling: ConcurrentHandling) -> None:
        while True:
            await asyncio.sleep(self._handling_settings.consume_timeout_ms / 1000)
            await handling.send_back_overdue(list(self._assignments.values()))

    async def _lock_forever(self) -> None:
        while True:
            await asyncio.sleep(self._handling_settings.lock_interval_ms / 1000)
            await self._renew_locks()

    async def _renew_locks(self) -> None:
        """A queue whose lock somebody else has is not ours any more, and one whose lock lapsed may have been theirs."""
        assignments = [each for each in (*self._assignments.values(), *self._releasing) if each.cached.is_locked]
        asked_at = elapsed_ms(self.cluster.clock)
        held = await self.cluster.lock_queues(self._group, [assignment.queue for assignment in assignments])
        for assignment in assignments:
            is_held = held.get(assignment.queue)
            if is_held is None or not assignment.cached.is_locked:
                continue  # The broker did not answer: our trust runs out by itself. Or we let go meanwhile.
            if is_held and self._is_ours(assignment.cached, at=asked_at):
                assignment.cached.mark_locked(now_ms=self.cluster.clock.now_ms(), elapsed_ms=asked_at)
            else:
                self._lose(assignment)

    def _lose(self, assignment: Assignment) -> None:
        """Let go of a queue that was or may have been somebody else's, and of what we knew about its progress."""
        log.warning("lock lost: queue starts anew queue=%s", assignment.queue)
        assignment.cached.is_locked = False
        self._forget(assignment)
        self._store.forget(assignment.queue)
        self._releasing.add(assignment)  # Not begun again here while the handler still runs.
        self.cluster.tasks.start(self._release(assignment), name="release")

    def _is_ours(self, cached: ProcessQueue, *, at: int | None = None) -> bool:
        """Whether nobody else can have a queue: its progress may be committed."""
        if not self._needs_locks:
            return True
        elapsed = elapsed_ms(self.cluster.clock) if at is None else at
        life_ms = self._handling_settings.lock_life_ms
        return cached.is_locked and not cached.is_lock_expired(elapsed, life_ms=life_ms)

    # ── What brokers ask ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def group(self) -> str:
        return self._group

    def membership(self) -> ConsumerMembership:
        return ConsumerMembership(
            group=self._group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self._settings.model,
            consume_from=_CONSUME_FROM[self._settings.start_from],
            subscriptions=self._subscriptions.all(),
        )

    def on_members_changed(self) -> None:
        self._balancer.wake()

    async def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        for queue, offset in offsets.items():
            assignment = self._assignments.get(queue)
            if assignment is not None and queue.topic == topic:
                await self._restart(assignment, offset)

    def status(self, topic: str) -> dict[Queue, int]:
        found = {queue: self._store.in_memory(queue) for queue in self._assignments if queue.topic == topic}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def running_info(self) -> dict[str, Any]:
        return running_info(
            self.cluster,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            is_orderly=self._is_ordered,
            concurrency=self._handling_settings.concurrency,
            settings=self._shown_settings(),
            subscriptions=self._subscriptions.all(),
            queues={queue: self._running_queue(assignment) for queue, assignment in self._assignments.items()},
            started_at_ms=self._started_at_ms,
        )

    def _shown_settings(self) -> dict[str, object]:
        """What operators are used to look for, under the names of RocketMQ's push consumer."""
        settings, handling = self._settings, self._handling_settings
        retries_max = handling.retries_max
        return {
            "consumerGroup": self._group,
            "messageModel": settings.model.value,
            "consumeFromWhere": _CONSUME_FROM[settings.start_from].value,
            "consumeThreadMin": handling.concurrency,
            "consumeThreadMax": handling.concurrency,
            "consumeConcurrentlyMaxSpan": settings.limits.span_max,
            "consumeTimeout": handling.consume_timeout_ms // 60_000,
            "maxReconsumeTimes": -1 if retries_max is None else retries_max,
            "pause": self.is_paused,
            "pullBatchSize": settings.pull_batch,
            "pullThresholdForQueue": settings.limits.messages_max,
            "pullThresholdSizeForQueue": settings.limits.mib_max,
            "suspendCurrentQueueTimeMillis": handling.suspend_queue_ms,
        }

    def _running_queue(self, assignment: Assignment) -> RunningQueue:
        cached = assignment.cached
        first, end = cached.offset_range() or (0, 0)
        return RunningQueue(
            committed_offset=self._store.in_memory(assignment.queue) or 0,
            cached_messages=cached.message_count,
            cached_bytes=cached.body_bytes,
            cached_from=first,
            cached_until=end,
            is_locked=cached.is_locked,
            is_dropped=cached.is_dropped,
            last_lock_ms=cached.last_lock_ms,
            last_pull_ms=cached.last_pull_ms,
            last_consume_ms=cached.last_consume_ms,
        )

    async def consume_directly(self, message: StoredMessage) -> dict[str, Any]:
        if is_retry_topic(message.topic):
            message.topic = message.properties.get("RETRY_TOPIC", message.topic)
        handler = self._handlers.get(message.topic)
        if handler is None:
            raise UsageError(f"this consumer has no handler for topic {message.topic!r}")
        started = self.cluster.clock.monotonic()
        outcome = await call_user(handler.function, handler.argument([message]), threads=self._threads)
        result, remark = "CR_SUCCESS", None
        if not handler.auto_commit and isinstance(outcome, Progress):
            result = _RESULT_BY_PROGRESS[outcome]
        if isinstance(outcome, Raised):
            is_wanted = isinstance(outcome.error, RetryLater)
            result, remark = "CR_LATER" if is_wanted else "CR_THROW_EXCEPTION", repr(outcome.error)
        return {
            "autoCommit": handler.auto_commit,
            "consumeResult": result,
            "order": self._is_ordered,
            "remark": remark,
            "spentTimeMills": round((self.cluster.clock.monotonic() - started) * 1000),
        }

"""The blocking front: the asyncio front in a thread. Methods only forward, under the same names.

Every object owns one thread with an event loop, from entering its `with` block (or `open`) to leaving it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import BoundedSemaphore
from types import TracebackType
from typing import Any

from kappamq.client.aio.cluster import Cluster as AioCluster
from kappamq.client.aio.cluster import RawPull
from kappamq.client.aio.lite_pull_consumer import POLL_SECONDS
from kappamq.client.aio.lite_pull_consumer import LitePullConsumer as AioLitePullConsumer
from kappamq.client.aio.producer import Producer as AioProducer
from kappamq.client.aio.publishing import QueueSelector
from kappamq.client.aio.pull_consumer import PullConsumer as AioPullConsumer
from kappamq.client.aio.pull_consumer import Pulled
from kappamq.client.aio.push_consumer import AnyHandler
from kappamq.client.aio.push_consumer import PushConsumer as AioPushConsumer
from kappamq.client.aio.transactions import Action, Checker, Transaction, TransactionReceipt
from kappamq.client.core.handling import BatchHandler, OneHandler
from kappamq.client.core.priorities import TopicPriorities
from kappamq.client.core.receipts import SendReceipt
from kappamq.client.loop_thread import LoopThread
from kappamq.client.settings import (
    ClusterSettings,
    ConsumerSettings,
    Duration,
    LitePullSettings,
    Moment,
    ProducerSettings,
    PushSettings,
    StartPlace,
)
from kappamq.errors import KappaError
from kappamq.model.message import Message, Queue, StoredMessage
from kappamq.model.route import TopicRoute
from kappamq.model.subscription import ExpressionType, MessageModel


class Cluster:
    """Typed calls to a cluster, for tools: offsets, raw pulls, lookups. Use as a context manager."""

    def __init__(self, name_servers: str | Sequence[str], *, settings: ClusterSettings | None = None) -> None:
        self._thread = LoopThread(lambda: AioCluster(name_servers, settings=settings), name="kappamq cluster")

    def __enter__(self) -> "Cluster":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        self._thread.open()

    def close(self) -> None:
        self._thread.close()

    @property
    def client_id(self) -> str:
        return self._thread.front.client_id

    def route(self, topic: str) -> TopicRoute:
        """Where a topic lives, as a name server tells it now. Raises `TopicNotFound`."""
        return self._thread.call(lambda cluster: cluster.routes.refresh(topic))

    def queues_of(self, topic: str) -> list[Queue]:
        """Readable queues of a topic, sorted. Raises `TopicNotFound`."""
        return self._thread.call(lambda cluster: cluster.queues_of(topic))

    def min_offset(self, queue: Queue) -> int:
        return self._thread.call(lambda cluster: cluster.min_offset(queue))

    def max_offset(self, queue: Queue) -> int:
        return self._thread.call(lambda cluster: cluster.max_offset(queue))

    def search_offset(self, queue: Queue, at_ms: int) -> int:
        return self._thread.call(lambda cluster: cluster.search_offset(queue, at_ms))

    def earliest_stored_at_ms(self, queue: Queue) -> int:
        return self._thread.call(lambda cluster: cluster.earliest_stored_at_ms(queue))

    def committed_offset(self, queue: Queue, group: str) -> int | None:
        return self._thread.call(lambda cluster: cluster.committed_offset(queue, group))

    def commit_offset(self, queue: Queue, group: str, committed_offset: int) -> None:
        self._thread.call(lambda cluster: cluster.commit_offset(queue, group, committed_offset))

    def pull_raw(
        self,
        queue: Queue,
        start: int,
        *,
        group: str,
        count_max: int = 32,
        bytes_max: int | None = None,
        suspend_ms: int = 0,
        expression: str | None = "*",
        expression_type: str | None = None,
    ) -> RawPull:
        """Records of a queue from `start` on, as bytes."""
        return self._thread.call(
            lambda cluster: cluster.pull_raw(
                queue,
                start,
                group=group,
                count_max=count_max,
                bytes_max=bytes_max,
                suspend_ms=suspend_ms,
                expression=expression,
                expression_type=expression_type,
            )
        )

    def pull(self, queue: Queue, start: int, *, group: str, count_max: int = 32) -> list[StoredMessage]:
        return self._thread.call(lambda cluster: cluster.pull(queue, start, group=group, count_max=count_max))

    def view_message(self, offset_id: str) -> StoredMessage:
        return self._thread.call(lambda cluster: cluster.view_message(offset_id))

    def query_messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int | None = None,
        by_unique_id: bool = False,
    ) -> list[StoredMessage]:
        return self._thread.call(
            lambda cluster: cluster.query_messages(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms, by_unique_id=by_unique_id
            )
        )


class Producer:
    """Sends messages to a cluster. Use as a context manager; its methods may be called from any thread.

    ::

        with kappamq.Producer("127.0.0.1:9876", group="shop") as producer:
            receipt = producer.send(kappamq.Message("orders", b"hello", tags="new", keys="order-1"))
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        settings: ProducerSettings | None = None,
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        settings = settings or ProducerSettings()
        self._thread = LoopThread(
            lambda: AioProducer(name_servers, group=group, settings=settings, cluster_settings=cluster_settings),
            name=f"kappamq producer {group}",
        )
        self._checker: Checker | None = None
        self._slots = BoundedSemaphore(settings.inflight_max)
        self._soon: deque[tuple[Future[SendReceipt], Message, dict[str, Any]]] = deque()
        self._is_woken = False

    def __enter__(self) -> "Producer":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Join the cluster."""
        producer = self._thread.open()
        if self._checker is not None:
            producer.on_check(self._checker)

    def close(self) -> None:
        """Wait for the receipts of what was sent, then leave the cluster."""
        self._thread.close()

    def send(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        delay_level: int | None = None,
        deliver_at: Moment | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> SendReceipt:
        """Send and wait for the receipt; a broker that fails is replaced by another.

        `queue`, `sharding_key`, `selector` (with `argument`) and `priority` fix the queue: then there is one attempt
        only.
        """
        return self._thread.call(
            lambda producer: producer.send(
                message,
                queue=queue,
                sharding_key=sharding_key,
                selector=selector,
                argument=argument,
                delay_level=delay_level,
                deliver_at=deliver_at,
                delay=delay,
                priority=priority,
                timeout=timeout,
            )
        )

    def send_soon(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        delay_level: int | None = None,
        deliver_at: Moment | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
    ) -> "Future[SendReceipt]":
        """Send without waiting and return the future of the receipt. Waits only at the limit `inflight_max`.

        Callbacks of the future run in the loop's thread: they must be short and must not call this producer.
        """
        options = {
            "queue": queue,
            "sharding_key": sharding_key,
            "selector": selector,
            "argument": argument,
            "delay_level": delay_level,
            "deliver_at": deliver_at,
            "delay": delay,
            "timeout": timeout,
        }
        given = {name: value for name, value in options.items() if value is not None}
        self._slots.acquire()
        future: Future[SendReceipt] = Future()
        self._soon.append((future, message, given))
        if not self._is_woken:
            # One wake-up serves many sends: waking the loop costs more than a send.
            self._is_woken = True
            self._thread.run_soon(self._send_waiting)
        return future

    def _send_waiting(self) -> None:
        """In the loop's thread: start everything that was handed over."""
        self._is_woken = False
        producer = self._thread.front
        while self._soon:
            future, message, options = self._soon.popleft()
            if not future.set_running_or_notify_cancel():
                self._slots.release()
                continue
            try:
                receipt = producer.send_soon(message, **options)
            except KappaError as error:
                self._slots.release()
                future.set_exception(error)
                continue
            receipt.add_done_callback(lambda done, future=future: self._settle(done, future))  # type: ignore[misc]

    def _settle(self, done: Any, future: "Future[SendReceipt]") -> None:
        self._slots.release()
        error = done.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    def send_one_way(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        """Send without asking for an answer: nobody will tell whether it was stored."""
        self._thread.call(
            lambda producer: producer.send_one_way(
                message, queue=queue, sharding_key=sharding_key, selector=selector, argument=argument
            )
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout: Duration | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; receipts in the same order."""
        return self._thread.call(
            lambda producer: producer.send_batch(messages, queue=queue, sharding_key=sharding_key, timeout=timeout)
        )

    def send_all(self, messages: Iterable[Message], *, timeout: Duration | None = None) -> list[SendReceipt]:
        """Send many messages one by one, many at once, and wait for all receipts; they come in the same order.

        Raises the error of the first message that failed, when the outcome of all is known: the others are stored.
        """
        taken = list(messages)  # In the caller's thread: a generator may do anything.
        return self._thread.call(lambda producer: producer.send_all(taken, timeout=timeout))

    def flush(self) -> None:
        """Wait until nothing is in flight."""
        self._thread.call(lambda producer: producer.flush())

    def queues_of(self, topic: str) -> tuple[Queue, ...]:
        """Queues that accept messages, in the order that selectors see. Raises `TopicNotFound`."""
        return self._thread.call(lambda producer: producer.queues_of(topic))

    def on_check(self, checker: Checker) -> Checker:
        """Decorator: let `checker` judge transactions that were left open, also those of other processes."""
        self._checker = checker
        if self._thread.is_open:
            self._thread.front.on_check(checker)
        return checker

    def send_in_transaction(
        self, message: Message, action: Action, *, timeout: Duration | None = None
    ) -> TransactionReceipt:
        """Store the message out of sight, run `action` (in a thread), then deliver or discard it as it decides."""
        return self._thread.call(lambda producer: producer.send_in_transaction(message, action, timeout=timeout))

    @contextmanager
    def transaction(self, message: Message, *, timeout: Duration | None = None) -> Iterator[Transaction]:
        """Deliver the message if the block ends normally, discard it if the block raises.

        An interrupted block (Ctrl-C) leaves the transaction open, as `transaction.leave_undecided()` does.
        """
        transaction = self._thread.call(lambda producer: producer.begin_transaction(message, timeout=timeout))
        ended_by: BaseException | None = None
        try:
            yield transaction
        except BaseException as error:
            ended_by = error
            raise
        finally:
            self._thread.call(lambda producer: producer.end_transaction(transaction, ended_by))

    def recall(self, sent: SendReceipt | str, *, timeout: Duration | None = None) -> str:
        """Take back a message whose instant has not come; returns its unique id. Raises `Refused` when it is over."""
        return self._thread.call(lambda producer: producer.recall(sent, timeout=timeout))

    def request(self, message: Message, *, timeout: Duration, queue: Queue | None = None) -> StoredMessage:
        """Send a message and wait for the reply to it. Raises `CallTimeout` when none comes in time."""
        return self._thread.call(lambda producer: producer.request(message, timeout=timeout, queue=queue))

    def reply(self, request: StoredMessage, body: bytes, *, timeout: Duration | None = None) -> SendReceipt:
        """Answer a message that was sent with `request`."""
        return self._thread.call(lambda producer: producer.reply(request, body, timeout=timeout))


class LitePullConsumer:
    """Reads topics as a member of a group, or queues of its own choice. Use as a context manager, in one thread.

    ::

        with kappamq.LitePullConsumer("127.0.0.1:9876", group="g", topics=["orders"]) as consumer:
            for message in consumer:
                ...

    A message counts as consumed when the next one is asked for, or when the block ends without an error.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
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
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        self._thread = LoopThread(
            lambda: AioLitePullConsumer(
                name_servers,
                group=group,
                topics=topics,
                queues=queues,
                auto_commit=auto_commit,
                model=model,
                start_from=start_from,
                priorities=priorities,
                settings=settings,
                lite=lite,
                cluster_settings=cluster_settings,
            ),
            name=f"kappamq consumer {group}",
        )
        self._batch: list[StoredMessage] = []
        self._at = 0

    def __enter__(self) -> "LitePullConsumer":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_last_done=error is None)

    def open(self) -> None:
        """Join the group and begin to read ahead."""
        self._thread.open()

    def close(self, *, is_last_done: bool = True) -> None:
        """Commit what was consumed and leave the group. `is_last_done`: what was handed out last counts, too."""
        # A message that raised an error goes back with those after it; the ones before it are done.
        unused = self._take_unused(from_last=not is_last_done)

        async def finish(consumer: AioLitePullConsumer) -> None:
            consumer.give_back(unused)
            await consumer.close(is_last_done=is_last_done or bool(unused))

        self._thread.close(finish)

    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        while self._at >= len(self._batch):
            batch = self._thread.call(lambda consumer: consumer.poll())
            self._batch, self._at = batch, 0
        self._at += 1
        return self._batch[self._at - 1]

    def batches(self) -> Iterator[list[StoredMessage]]:
        """Batches as they come, each of one queue; the fastest way to read."""
        while True:
            messages = self.poll()
            if messages:
                yield messages

    def poll(self, *, timeout: Duration = POLL_SECONDS, messages_max: int | None = None) -> list[StoredMessage]:
        """Some messages of one queue, waiting for them up to `timeout`; none is an empty list."""
        self._return_unused()
        return self._thread.call(lambda consumer: consumer.poll(timeout=timeout, messages_max=messages_max))

    def _take_unused(self, *, from_last: bool = False) -> list[StoredMessage]:
        """The part of the current batch that iteration has not handed out."""
        at = self._at - 1 if from_last and self._at else self._at
        unused, self._batch, self._at = self._batch[at:], [], 0
        return unused

    def _return_unused(self) -> None:
        unused = self._take_unused()
        if unused:
            self._thread.call(lambda consumer: _give_back(consumer, unused))

    def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = ExpressionType.TAG) -> None:
        """Read a topic together with the group. Excludes `assign`."""
        self._thread.call(lambda consumer: consumer.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        self._thread.call(lambda consumer: consumer.unsubscribe(topic))

    def assign(self, queues: Iterable[Queue]) -> None:
        """Read exactly these queues, whatever the group does. Excludes `subscribe`."""
        self._thread.call(lambda consumer: consumer.assign(queues))

    def assignment(self) -> set[Queue]:
        """Queues that are ours now."""
        return self._thread.front.assignment()

    def queues_of(self, topic: str) -> list[Queue]:
        """All readable queues of a topic. Raises `TopicNotFound`."""
        return self._thread.call(lambda consumer: consumer.queues_of(topic))

    def on_queues_changed(self, listener: Callable[[str, set[Queue]], None]) -> None:
        """Call `listener(topic, queues)` in the loop's thread when our queues of a topic have changed."""
        self._thread.front.on_queues_changed(listener)

    def seek(self, queue: Queue, offset: int) -> None:
        """Go on at another offset; what was read ahead is dropped."""
        self._return_unused()
        self._thread.call(lambda consumer: consumer.seek(queue, offset))

    def seek_to_begin(self, queue: Queue) -> None:
        """Go on at the oldest message."""
        self._return_unused()
        self._thread.call(lambda consumer: consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: Queue) -> None:
        """Go on after the newest message."""
        self._return_unused()
        self._thread.call(lambda consumer: consumer.seek_to_end(queue))

    def offset_for_time(self, queue: Queue, moment: Moment) -> int:
        """Offset of the first message stored at or after a moment."""
        return self._thread.call(lambda consumer: consumer.offset_for_time(queue, moment))

    def committed(self, queue: Queue) -> int | None:
        """Progress of the group; `None` when it has none."""
        return self._thread.call(lambda consumer: consumer.committed(queue))

    def commit(self, offsets: Mapping[Queue, int] | None = None, *, persist: bool = True) -> None:
        """Commit everything handed out so far, or the given offsets (that of the next message to read)."""
        if offsets is None:
            self._return_unused()
        self._thread.call(lambda consumer: consumer.commit(offsets, persist=persist))

    def pause(self, queues: Iterable[Queue]) -> None:
        """Pull no more from these queues; what was read ahead is still handed out."""
        chosen = list(queues)
        self._thread.run_soon(lambda: self._thread.front.pause(chosen))

    def resume(self, queues: Iterable[Queue]) -> None:
        """Pull from these queues again."""
        chosen = list(queues)
        self._thread.run_soon(lambda: self._thread.front.resume(chosen))


class PushConsumer:
    """Consumes topics as a member of a group, with one handler for each topic. Use as a context manager.

    ::

        with kappamq.PushConsumer("127.0.0.1:9876", group="g") as consumer:

            @consumer.on("orders", "new || paid")
            def handle(message: kappamq.ReceivedMessage) -> None: ...

            consumer.run()

    Handlers run in threads. One that returns has consumed its message; one that raises gets it again later
    (`RetryLater` says when). Leaving the block waits for the handlers that run, and commits.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
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
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        self._thread = LoopThread(
            lambda: AioPushConsumer(
                name_servers,
                group=group,
                ordered=ordered,
                model=model,
                start_from=start_from,
                priorities=priorities,
                concurrency=concurrency,
                retries_max=retries_max,
                settings=settings,
                handling=handling,
                cluster_settings=cluster_settings,
            ),
            name=f"kappamq consumer {group}",
        )

    def __enter__(self) -> "PushConsumer":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Make ready. Nothing is consumed before `start` or `run`."""
        self._thread.open()

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

        async def add(consumer: AioPushConsumer) -> None:
            consumer.add_handler(
                topic,
                function,
                expression,
                expression_type=expression_type,
                batch_size=batch_size,
                auto_commit=auto_commit,
            )

        self._thread.call(add)

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        self._thread.call(lambda consumer: consumer.unsubscribe(topic))

    def start(self) -> None:
        """Join the group and begin to consume, while this thread goes on."""
        self._thread.call(lambda consumer: consumer.start())

    def run(self) -> None:
        """Consume until `stop` is called from another thread, or Ctrl-C."""
        self._thread.call(lambda consumer: consumer.run())

    def stop(self) -> None:
        """Make `run` return."""
        self._thread.run_soon(self._thread.front.stop)

    def close(self) -> None:
        """Pull no more, wait for the handlers that run, commit, leave the group."""
        self._thread.close()

    def pause(self) -> None:
        """Pull no more until `resume`; what was pulled already is still handled."""
        self._thread.run_soon(self._thread.front.pause)

    def resume(self) -> None:
        self._thread.run_soon(self._thread.front.resume)

    @property
    def concurrency(self) -> int:
        """Handlers that run at once."""
        return self._thread.front.concurrency

    def set_concurrency(self, concurrency: int) -> None:
        """Let so many handlers run at once from now on; those that run already finish first."""
        self._thread.call(lambda consumer: consumer.set_concurrency(concurrency))

    def assignment(self) -> set[Queue]:
        """Queues that are ours now, those of the retry topic included."""
        return self._thread.front.assignment()

    def on_queues_changed(self, listener: Callable[[str, set[Queue]], None]) -> None:
        """Call `listener(topic, queues)` in the loop's thread when our queues of a topic have changed."""
        self._thread.front.on_queues_changed(listener)


class PullConsumer:
    """Reads queues by explicit offsets; progress is kept only when told. Use as a context manager."""

    def __init__(
        self, name_servers: str | Sequence[str], *, group: str, cluster_settings: ClusterSettings | None = None
    ) -> None:
        self._thread = LoopThread(
            lambda: AioPullConsumer(name_servers, group=group, cluster_settings=cluster_settings),
            name=f"kappamq consumer {group}",
        )

    def __enter__(self) -> "PullConsumer":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        self._thread.open()

    def close(self) -> None:
        self._thread.close()

    def pull(
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
        return self._thread.call(
            lambda consumer: consumer.pull(
                queue, start, expression=expression, expression_type=expression_type, count_max=count_max, wait=wait
            )
        )

    def queues_of(self, topic: str) -> list[Queue]:
        """All readable queues of a topic. Raises `TopicNotFound`."""
        return self._thread.call(lambda consumer: consumer.queues_of(topic))

    def min_offset(self, queue: Queue) -> int:
        return self._thread.call(lambda consumer: consumer.min_offset(queue))

    def max_offset(self, queue: Queue) -> int:
        return self._thread.call(lambda consumer: consumer.max_offset(queue))

    def offset_for_time(self, queue: Queue, moment: Moment) -> int:
        """Offset of the first message stored at or after a moment."""
        return self._thread.call(lambda consumer: consumer.offset_for_time(queue, moment))

    def committed(self, queue: Queue) -> int | None:
        """Progress of the group; `None` when it has none."""
        return self._thread.call(lambda consumer: consumer.committed(queue))

    def commit(self, queue: Queue, offset: int) -> None:
        """Store the progress of the group: the offset of the next message to read."""
        self._thread.call(lambda consumer: consumer.commit(queue, offset))

    def send_back(self, message: StoredMessage, *, delay_level: int = 0) -> bool:
        """Let the group's push consumers have the message later; False when the brokers did not take it."""
        return self._thread.call(lambda consumer: consumer.send_back(message, delay_level=delay_level))


async def _give_back(consumer: AioLitePullConsumer, messages: list[StoredMessage]) -> None:
    consumer.give_back(messages)

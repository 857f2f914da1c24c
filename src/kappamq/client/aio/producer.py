"""Sending messages."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from types import TracebackType
from typing import Any
from uuid import uuid4

from kappamq.client.aio.attempts import StubbornSender
from kappamq.client.aio.background import BackgroundSender
from kappamq.client.aio.calling import Raised, call_user
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.inflight import InFlight
from kappamq.client.aio.outbox import Outbox
from kappamq.client.aio.publishing import Publishers, QueueSelector, choose_queue
from kappamq.client.aio.request_reply import PendingReplies, reply_message, reply_properties, request_properties
from kappamq.client.aio.runs import (
    ROW_REQUEST_BYTES_MAX,
    ROW_REQUESTS_AT_ONCE_MAX,
    ROWS_PER_REQUEST_MAX,
    RUN_MAX,
    Outcomes,
    RowOutcomes,
    Run,
    RunSender,
    split_rows,
)
from kappamq.client.aio.send_requests import SendRequests, extra_properties
from kappamq.client.aio.send_traces import SendTraces
from kappamq.client.aio.tracing import SEND_TIMEOUT_MS, Tracer, inner_group
from kappamq.client.aio.transactions import (
    Action,
    Checker,
    Decision,
    Transaction,
    TransactionChecks,
    TransactionReceipt,
    decision_of,
    end_request,
)
from kappamq.client.core.batching import split_batches
from kappamq.client.core.preparing import Prepared, prepare_batch
from kappamq.client.core.priorities import check_level
from kappamq.client.core.receipts import SendReceipt, SendStatus, split_receipt
from kappamq.client.core.selecting import select_by_priority
from kappamq.client.settings import (
    ClusterSettings,
    Duration,
    Moment,
    ProducerSettings,
    duration_ms,
)
from kappamq.errors import (
    CallTimeout,
    KappaError,
    ServiceUnavailable,
    TooManyInFlight,
    TransportError,
    UsageError,
)
from kappamq.kernel.client_reference import Column
from kappamq.model.message import Message, Queue, StoredMessage
from kappamq.model.names import check_group, is_retry_topic
from kappamq.model.properties import Name
from kappamq.model.recalls import RecallHandle
from kappamq.wire.headers import RecallRequest

log = logging.getLogger(__name__)


class _Member:
    """The producer as brokers may address it."""

    def __init__(self, group: str, checks: TransactionChecks, replies: PendingReplies) -> None:
        self.group = group
        self.on_check = checks.on_check
        self.on_reply = replies.on_reply


class Producer:
    """Sends messages to a cluster. Use as an async context manager.

    ::

        async with Producer("127.0.0.1:9876", group="shop") as producer:
            receipt = await producer.send(Message("orders", b"hello", tags="new", keys="order-1"))
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str,
        settings: ProducerSettings | None = None,
        cluster: Cluster | None = None,
        cluster_settings: ClusterSettings | None = None,
    ) -> None:
        """Give `name_servers`, or a `cluster` that is open already and shared with others."""
        check_group(group)
        self._group = group
        self._settings = settings or ProducerSettings()
        self._owns_cluster = cluster is None
        self.cluster = cluster if cluster is not None else make_cluster(name_servers, cluster_settings)
        self._stack = AsyncExitStack()
        self._is_open = False
        self._probing: asyncio.Task[None]
        self._tracing: RunningTracer | None = None
        self._inflight = InFlight(self._settings.inflight_max)
        self._awaited = InFlight(self._settings.inflight_max)
        """Sends that are awaited one by one."""
        self._publishers = Publishers(self.cluster, self._settings)
        self._requests = SendRequests(self.cluster, group, self._settings)
        self._traces = SendTraces(self.cluster, group)
        self._run_sender = RunSender(
            self.cluster,
            self._publishers,
            self._settings,
            make_command=self._requests.command,
            make_template=self._requests.template,
        )
        self._outbox = Outbox(self.cluster, self._run_sender.target, inflight=self._inflight)
        self._stubborn = StubbornSender(
            self.cluster,
            self._publishers,
            self._settings,
            requests=self._requests,
            traces=self._traces,
            outbox=self._outbox,
        )
        self._background = BackgroundSender(
            self.cluster,
            self._publishers,
            self._settings,
            requests=self._requests,
            stubborn=self._stubborn,
            inflight=self._inflight,
            traces=self._traces,
            outbox=self._outbox,
        )
        self._checks = TransactionChecks(group, self.cluster.tasks, checks_max=self._settings.transaction_checks_max)
        self._replies = PendingReplies()
        self._member = _Member(group, self._checks, self._replies)

    # ── Life cycle ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> "Producer":
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
        try:
            await self.cluster.join_producer(self._member)
            if self._settings.trace:
                await self._open_tracer()
        except BaseException:
            await self._stack.aclose()
            raise
        self._is_open = True
        self._probing = self.cluster.tasks.start(self._publishers.probe_forever(), name="probe brokers")

    async def close(self) -> None:
        """Wait for the receipts of what was sent (until their deadlines), then leave the cluster."""
        if not self._is_open:
            return
        try:
            await self.flush()
            if self._tracing is not None:
                await self._tracing.close()
            self._is_open = False
            self._probing.cancel()
            await self.cluster.leave_producer(self._member)
        finally:
            self._is_open = False
            await self._stack.aclose()

    async def _open_tracer(self) -> None:
        topic = self._settings.trace_topic
        self._tracing = await open_tracer(self.cluster, self._group, role="PRODUCE", topic=topic)
        self._traces.tracer = self._tracing.tracer
        self._checks.on_decided = self._traces.checked

    @property
    def group(self) -> str:
        return self._group

    @property
    def inflight(self) -> int:
        """Sends whose outcome is not known yet."""
        return self._inflight.count

    # ── Sending ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(
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

        `queue`, `sharding_key` and `selector` (with `argument`) fix the queue: then there is one attempt only. So does
        `priority`, a level from 0 up: the queue with that number, or the last one, keeps the message apart from less
        urgent ones. A retry may store the message twice, with the same `message_id`. When cancelled, the outcome is
        unknown.

        Many may be awaited at once: those of one turn of the event loop are written together. No more than
        `inflight_max` are under way: others wait for their turn, and their time begins with it.
        """
        extra = extra_properties(sharding_key, delay_level, deliver_at, delay)
        if priority is not None:
            if queue is not None or sharding_key is not None or selector is not None:
                raise UsageError("priority chooses the queue: give no queue, sharding_key or selector with it")
            check_level(priority)
            extra = {**extra, Name.PRIORITY: str(priority)}
            selector, argument = _select_level, priority
        self._check_open()
        timeout_ms = self._timeout_ms(timeout)
        await self._awaited.enter()
        try:
            if self._requests.compresses_in_thread(message):
                prepared = await self._requests.prepare(message, extra)
            else:
                prepared = self._requests.prepare_now(message, extra)
            return await self._stubborn.send(
                prepared,
                message,
                queue=queue,
                sharding_key=sharding_key,
                selector=selector,
                argument=argument,
                timeout_ms=timeout_ms,
            )
        finally:
            self._awaited.end(1)

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
    ) -> "asyncio.Future[SendReceipt]":
        """Send without waiting and return the future of the receipt: many sends can be under way at once.

        Only what did not get through or met an overloaded broker is tried again, not what a broker refused. Messages
        for one queue, given as such or by a key or selector, are written in the order of the calls. Raises
        `TooManyInFlight` at the limit `inflight_max`: call `await room()` before each send of many.
        """
        self._check_open()
        if self._inflight.is_full:
            raise TooManyInFlight(
                f"{self._inflight.count} sends wait for their receipt: 'await producer.room()' before sending more"
            )
        return self._background.send(
            message,
            extra_properties(sharding_key, delay_level, deliver_at, delay),
            queue=queue,
            sharding_key=sharding_key,
            selector=selector,
            argument=argument,
            timeout_ms=self._timeout_ms(timeout),
        )

    async def send_one_way(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        """Send without asking for an answer: nobody will tell whether it was stored.

        Its trace says when it was sent, and has no broker's id: RocketMQ's own client does not trace such sends at all.
        """
        prepared = await self._prepare(message, extra_properties(sharding_key, None, None, None))
        publisher = await self._publishers.find(message.topic)
        target = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
        target = target if target is not None else self._publishers.next_queue(publisher, None)
        connection = await self.cluster.dialer.connect(await self.cluster.master_of(target))
        self._outbox.write()
        connection.send(self._requests.command(prepared, target))
        self._traces.sent(prepared, SendReceipt(SendStatus.OK, prepared.message_id, "", target, -1), cost_ms=0)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout: Duration | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together, which is much faster than one by one; receipts in the same order.

        What does not fit into one request goes in several. Not compressed, not delayed. If a later request fails, the
        messages of the earlier ones are stored.
        """
        self._check_open()
        receipts: list[SendReceipt] = []
        for batch in split_batches(messages, bytes_max=self._settings.body_bytes_max):
            for message in batch:
                self._requests.check(message)
            ids = [self.cluster.unique_ids.next() for _ in batch]
            prepared = prepare_batch(batch, ids, body_bytes_max=self._settings.body_bytes_max)
            receipt = await self.send_prepared(
                prepared, batch[0], queue=queue, sharding_key=sharding_key, timeout_ms=self._timeout_ms(timeout)
            )
            receipts += split_receipt(receipt)
        return receipts

    async def send_all(self, messages: Iterable[Message], *, timeout: Duration | None = None) -> list[SendReceipt]:
        """Send many messages, up to `inflight_max` at once, and wait for all receipts; they come in the same order.

        The cheapest way to send messages one by one: each is stored and acknowledged for itself, as with `send_soon`.
        `timeout` is for each of them. Raises the error of the first message that failed, when the outcome of all is
        known: the others are stored. When cancelled, what is under way may be stored.
        """
        self._check_open()
        timeout_ms = self._timeout_ms(timeout)
        outcomes = Outcomes()
        waiting = iter(messages)
        low = max(self._settings.inflight_max * 3 // 4, 1)
        while True:
            if self._inflight.count >= low:
                await self._inflight.until_below(low)
            count = min(RUN_MAX, self._settings.inflight_max - self._inflight.count)
            run = list(islice(waiting, count))
            self._begin_run(run, outcomes, timeout_ms)
            if len(run) < count:
                return await outcomes.all()

    def _begin_run(self, messages: list[Message], outcomes: Outcomes, timeout_ms: int) -> None:
        if self._tracing is None and not self._settings.latency_faults:
            run = Run(outcomes, timeout_ms, on_end=self._inflight.end, on_error=self._background.on_run_error)
            try:
                others = self._run_sender.send(messages, run)
            finally:
                # Replies come later: nothing has waited since the first was begun.
                self._inflight.begin(run.begun)
        else:
            others = list(zip(outcomes.expect(len(messages)), messages, strict=True))
        for number, message in others:
            try:
                outcomes.follow(number, self.send_soon(message, timeout=timeout_ms / 1000))
            except KappaError as error:
                outcomes.fail(number, error)

    async def send_rows(
        self, topic: str, texts: Column, bodies: Column, count: int, *, timeout: Duration | None = None
    ) -> list[int]:
        """Send rows whose properties are encoded and checked already; for those who have columns, not messages.

        Columns are packed offsets (i32) and the bytes that they point into. Rows travel in batches, spread over the
        queues of the topic, and every batch is tried once. Returns the numbers of those that were not acknowledged as
        stored in time: send them again, with the same ids.
        """
        self._check_open()
        timeout_ms = self._timeout_ms(timeout)
        outcomes = RowOutcomes(on_end=self._inflight.end)
        queues = await self.queues_of(topic)
        await self._connect_to(queues)
        at_once = min(self._settings.inflight_max, ROW_REQUESTS_AT_ONCE_MAX)
        rows_max = min(ROWS_PER_REQUEST_MAX, -(-count // len(queues)))
        for rows in split_rows(texts, bodies, count, rows_max=rows_max, bytes_max=ROW_REQUEST_BYTES_MAX):
            if is_retry_topic(topic):
                outcomes.lose(rows, "retries cannot travel in batches")
                continue
            if self._inflight.count >= at_once:
                await self._inflight.until_below(at_once)
            self._inflight.begin(1)
            try:
                self._run_sender.send_rows(topic, texts, bodies, rows, outcomes, timeout_ms=timeout_ms)
            except KappaError as fault:
                self._inflight.end(1)
                outcomes.lose(rows, fault)
        return await outcomes.lost()

    async def _connect_to(self, queues: Sequence[Queue]) -> None:
        """Open connections to the brokers of some queues; those that cannot be reached now are passed over."""
        for queue in {queue.broker: queue for queue in queues}.values():
            try:
                await self.cluster.dialer.connect(await self.cluster.master_of(queue))
            except TransportError as fault:
                log.info("broker passed over broker=%s fault=%s", queue.broker, fault)

    async def room(self) -> None:
        """Wait until `send_soon` may be called."""
        await self._inflight.room()

    async def flush(self) -> None:
        """Wait until nothing is in flight."""
        await self._inflight.none_left()

    async def queues_of(self, topic: str) -> tuple[Queue, ...]:
        """Queues that accept messages, in the order that selectors see. Raises `TopicNotFound`."""
        return (await self._publishers.find(topic)).queues

    # ── Transactions ────────────────────────────────────────────────────────────────────────────────────────────────

    def on_check(self, checker: Checker) -> Checker:
        """Decorator: let `checker` judge transactions that were left open, also those of other processes."""
        self._checks.checker = checker
        return checker

    async def send_in_transaction(
        self, message: Message, action: Action, *, timeout: Duration | None = None
    ) -> TransactionReceipt:
        """Store the message out of sight, run `action`, then deliver or discard the message as it decides.

        If `action` raises, the transaction stays open: the broker will ask the checker, and the error reaches the
        caller. A message that was stored less safely than asked is rolled back without running `action`.
        """
        receipt = await self._send_half(message, timeout)
        outcome: Decision | Raised[Decision] = Decision.ROLLBACK
        if receipt.is_ok:
            outcome = await call_user(action, message)
        decision = decision_of(outcome, receipt.message_id)
        await self._decide(receipt, decision, message)
        if isinstance(outcome, Raised):
            raise outcome.error
        return TransactionReceipt(receipt, decision)

    @asynccontextmanager
    async def transaction(self, message: Message, *, timeout: Duration | None = None) -> AsyncIterator[Transaction]:
        """Deliver the message if the block ends normally, discard it if the block raises.

        ::

            async with producer.transaction(Message("orders", b"paid")) as transaction:
                await book(transaction.message_id)

        A block that is cancelled leaves the transaction open, as `transaction.leave_undecided()` does: the broker will
        ask the checker. Raises `ServiceUnavailable`, and runs nothing, when the message was stored less safely than
        asked.
        """
        transaction = await self.begin_transaction(message, timeout=timeout)
        try:
            yield transaction
        except BaseException as error:
            await self.end_transaction(transaction, error)
            raise
        await self.end_transaction(transaction, None)

    async def begin_transaction(self, message: Message, *, timeout: Duration | None = None) -> Transaction:
        """First half of `transaction`: store the message out of sight."""
        receipt = await self._send_half(message, timeout)
        if not receipt.is_ok:
            await self._decide(receipt, Decision.ROLLBACK, message)
            raise ServiceUnavailable(
                f"message {receipt.message_id} was stored, but {receipt.status.name}: its transaction is rolled back, "
                "begin it again"
            )
        return Transaction(receipt, message)

    async def end_transaction(self, transaction: Transaction, error: BaseException | None) -> None:
        """Second half of `transaction`: decide by what the local work raised."""
        await self._decide(transaction.receipt, transaction.decision_after(error), transaction.message)

    async def _send_half(self, message: Message, timeout: Duration | None) -> SendReceipt:
        if Name.DELAY in message.properties:
            raise UsageError("a transactional message cannot be delayed: remove its delay level")
        extra = {Name.TRANSACTION: "true", Name.PRODUCER_GROUP: self._group}
        prepared = await self._prepare(message, extra)
        return await self.send_prepared(prepared, message, timeout_ms=self._timeout_ms(timeout))

    async def _decide(self, receipt: SendReceipt, decision: Decision, message: Message) -> None:
        try:
            address = await self.cluster.master_of(receipt.queue)
            await self.cluster.dialer.send(address, end_request(self._group, receipt, decision).command())
        except TransportError as fault:
            log.warning("transaction not ended: the broker will ask message_id=%s fault=%s", receipt.message_id, fault)
            return
        self._traces.decided(message, receipt, decision, address)

    # ── Taking back ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def recall(self, sent: SendReceipt | str, *, timeout: Duration | None = None) -> str:
        """Take back a message whose instant has not come; returns its unique id.

        ::

            receipt = await producer.send(Message("orders", b"remind me"), delay=timedelta(days=2))
            await producer.recall(receipt)

        Give the receipt, or its `recall_handle`, which may have been kept elsewhere. Only messages sent with `delay` or
        `deliver_at` can be taken back. Raises `Refused` when the instant is over; in its last second the message may
        come nevertheless.
        """
        self._check_open()
        handle = sent if isinstance(sent, str) else sent.recall_handle
        if handle is None:
            raise UsageError("this message cannot be taken back: only those sent with delay or deliver_at can")
        timed = RecallHandle.decode(handle)
        address = await self.cluster.master_of(Queue(timed.topic, timed.broker, 0))
        request = RecallRequest(producer_group=self._group, topic=timed.topic, recall_handle=handle)
        await self.cluster.call(address, request, timeout_ms=self._timeout_ms(timeout))
        return timed.unique_id

    # ── Requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def request(self, message: Message, *, timeout: Duration, queue: Queue | None = None) -> StoredMessage:
        """Send a message and wait for the reply to it. Raises `CallTimeout` when none comes in time."""
        timeout_ms = duration_ms(timeout)
        correlation_id = str(uuid4())
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        extra = request_properties(correlation_id, self.cluster.client_id, timeout_ms)
        prepared = await self._prepare(message, extra)
        waiter = self._replies.expect(correlation_id)
        try:
            async with asyncio.timeout_at(deadline):
                await self.send_prepared(prepared, message, queue=queue, timeout_ms=timeout_ms)
                return await waiter
        except TimeoutError:
            raise CallTimeout(
                f"no reply to message {prepared.message_id} of topic {message.topic!r} within {timeout_ms} ms: "
                "is its consumer running?"
            ) from None
        finally:
            self._replies.forget(correlation_id)

    async def reply(self, request: StoredMessage, body: bytes, *, timeout: Duration | None = None) -> SendReceipt:
        """Answer a message that was sent with `request`."""
        message = reply_message(request, body)
        prepared = await self._prepare(message, reply_properties(request))
        prepared.is_reply = True
        return await self.send_prepared(prepared, message, timeout_ms=self._timeout_ms(timeout))

    # ── What is prepared already ───────────────────────────────────────────────────────────────────────────────

    async def send_prepared(
        self,
        prepared: Prepared,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send what is prepared already, with the attempts that the policy allows."""
        self._check_open()
        return await self._stubborn.send(
            prepared,
            message,
            queue=queue,
            sharding_key=sharding_key,
            selector=selector,
            argument=argument,
            timeout_ms=timeout_ms if timeout_ms is not None else self._settings.send_timeout_ms,
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(f"producer of group {self._group!r} is not open: use it inside 'async with', or open() it")

    def _timeout_ms(self, timeout: Duration | None) -> int:
        return self._settings.send_timeout_ms if timeout is None else duration_ms(timeout)

    async def _prepare(self, message: Message, extra: dict[str, str]) -> Prepared:
        self._check_open()
        return await self._requests.prepare(message, extra)


def _select_level(queues: Sequence[Queue], _: Message, priority: int) -> Queue:
    return select_by_priority(queues, priority, random.randrange)


class RunningTracer:
    """A tracer with the task that sends for it."""

    def __init__(self, tracer: Tracer, task: "asyncio.Task[None]") -> None:
        self.tracer = tracer
        self._task = task

    async def close(self) -> None:
        """Send what still waits."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.tracer.close()


async def open_tracer(cluster: Cluster, group: str, *, role: str, topic: str) -> RunningTracer:
    """Trace for a group, through a producer of its own that shares the connections."""
    settings = ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS)
    sender = Producer(cluster=cluster, group=inner_group(group, role), settings=settings)
    await sender.open()
    tracer = Tracer(sender, topic=topic, group=group, clock=cluster.clock, next_id=cluster.unique_ids.next)
    return RunningTracer(tracer, cluster.tasks.start(tracer.run(), name=f"trace {group}"))


def make_cluster(name_servers: str | Sequence[str] | None, settings: ClusterSettings | None) -> Cluster:
    """A cluster of one's own."""
    if name_servers is None:
        raise UsageError("where is the cluster? pass name_servers, for example '127.0.0.1:9876', or a shared cluster")
    return Cluster(name_servers, settings=settings)

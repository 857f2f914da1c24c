"""Sending messages."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import msgspec

from kappamq.client.aio.calling import Raised, call_user
from kappamq.client.aio.cluster import Cluster
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
    Sending,
    SendTemplate,
    split_rows,
)
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
from kappamq.client.core.preparing import Prepared, check_message, delay_properties, prepare, prepare_batch
from kappamq.client.core.priorities import check_level
from kappamq.client.core.receipts import SendReceipt, SendStatus, receipt_of, split_receipt
from kappamq.client.core.retrying import BACKGROUND_SEND, SendAttempts, SendPolicy
from kappamq.client.core.selecting import select_by_priority
from kappamq.client.core.tracing import REGION, Decided, MessageKind, is_traced, published
from kappamq.client.settings import (
    ClusterSettings,
    Duration,
    Moment,
    ProducerSettings,
    duration_ms,
    moment_ms,
)
from kappamq.errors import (
    Busy,
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
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import SendRequest, encode_fields

log = logging.getLogger(__name__)

COMPRESS_IN_THREAD_BYTES: Final = 64 * 1024
"""Bodies from this size on are compressed in a thread, since the event loop would stand still for a millisecond."""

_WIRE: Final = {member.name: member.encode_name for member in msgspec.structs.fields(SendRequest)}
"""Names of the send request's fields on the wire."""

_NO_PROPERTIES: Final[dict[str, str]] = {}


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
        self._templates: dict[str, dict[str, str]] = {}
        self._inflight = 0
        self._waiting_for_room: list[tuple[int, asyncio.Future[None]]] = []
        self._turns: dict[str, asyncio.Future[None]] = {}
        """Topic → done when the last of the sends to given queues that could not be written at once is written."""
        self._publishers = Publishers(self.cluster, self._settings)
        self._policy = SendPolicy(
            attempts_max=self._settings.attempts_max,
            retries_degraded=self._settings.retry_degraded,
            attempt_timeout_max_ms=self._settings.attempt_timeout_max_ms,
        )
        self._background_policy = SendPolicy(
            attempts_max=self._settings.attempts_max,
            # An overloaded broker has stored nothing, and says so to those who send too much at once.
            retried_codes=BACKGROUND_SEND.retried_codes | {ResponseCode.SYSTEM_BUSY},
            retries_when_crowded=BACKGROUND_SEND.retries_when_crowded,
        )
        self._single_policy = SendPolicy(attempts_max=1)
        self._run_sender = RunSender(
            self.cluster,
            self._publishers,
            self._settings,
            make_command=self._command,
            make_template=self._template,
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
        self._checks.on_decided = self._trace_check

    @property
    def group(self) -> str:
        return self._group

    @property
    def inflight(self) -> int:
        """Sends whose outcome is not known yet."""
        return self._inflight

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
        """
        extra = self._extra(sharding_key, delay_level, deliver_at, delay)
        if priority is not None:
            if queue is not None or sharding_key is not None or selector is not None:
                raise UsageError("priority chooses the queue: give no queue, sharding_key or selector with it")
            check_level(priority)
            extra = {**extra, Name.PRIORITY: str(priority)}
            selector, argument = _select_level, priority
        prepared = await self._prepare(message, extra)
        return await self.send_prepared(
            prepared,
            message,
            queue=queue,
            sharding_key=sharding_key,
            selector=selector,
            argument=argument,
            timeout_ms=self._timeout_ms(timeout),
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
    ) -> "asyncio.Future[SendReceipt]":
        """Send without waiting and return the future of the receipt: many sends can be under way at once.

        Only what did not get through or met an overloaded broker is tried again, not what a broker refused. Messages
        for one queue, given as such or by a key or selector, are written in the order of the calls. Raises
        `TooManyInFlight` at the limit `inflight_max`: call `await room()` before each send of many.
        """
        self._check_open()
        if self._inflight >= self._settings.inflight_max:
            raise TooManyInFlight(
                f"{self._inflight} sends wait for their receipt: 'await producer.room()' before sending more"
            )
        loop = asyncio.get_running_loop()
        extra = self._extra(sharding_key, delay_level, deliver_at, delay)
        timeout_ms = self._timeout_ms(timeout)
        outcome: asyncio.Future[SendReceipt] = loop.create_future()
        publisher = self._publishers.known(message.topic)
        prepared: Prepared | None = None
        is_behind = message.topic in self._turns and _is_placed(message, queue, sharding_key, selector)
        if publisher is not None and not is_behind and not self._compresses_in_thread(message):
            prepared = self._prepare_now(message, extra)
            chosen = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
            target = chosen if chosen is not None else self._publishers.next_queue(publisher, None)
            address = self.cluster.routes.addresses.master_of(target.broker)
            connection = self.cluster.dialer.open_connection(address) if address is not None else None
            if address is not None and connection is not None:
                started = loop.time()
                waiter = connection.begin(self._command(prepared, target), timeout_ms=timeout_ms)
                self._inflight += 1
                again = None if chosen is not None else message
                waiter.add_done_callback(
                    partial(self._on_reply, outcome, prepared, target, address, started, timeout_ms, again)
                )
                return outcome
        self._inflight += 1
        send = self._send_in_turn if _is_placed(message, queue, sharding_key, selector) else self._send_in_background
        work = send(
            outcome,
            message,
            prepared,
            extra,
            queue=queue,
            sharding_key=sharding_key,
            selector=selector,
            argument=argument,
            timeout_ms=timeout_ms,
        )
        self.cluster.tasks.start(work, name="send")
        return outcome

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
        prepared = await self._prepare(message, self._extra(sharding_key, None, None, None))
        publisher = await self._publishers.find(message.topic)
        target = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
        target = target if target is not None else self._publishers.next_queue(publisher, None)
        await self.cluster.dialer.send(await self.cluster.master_of(target), self._command(prepared, target))
        if self._tracing is not None:
            self._trace(prepared, SendReceipt(SendStatus.OK, prepared.message_id, "", target, -1), cost_ms=0)

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
                self._check(message)
            ids = [self.cluster.unique_ids.next() for _ in batch]
            prepared = prepare_batch(batch, ids, body_bytes_max=self._settings.body_bytes_max)
            receipt = await self.send_prepared(
                prepared, batch[0], queue=queue, sharding_key=sharding_key, timeout_ms=self._timeout_ms(timeout)
            )
            receipts += split_receipt(receipt)
        return receipts

    async def send_all(self, messages: Iterable[Message], *, timeout: Duration | None = None) -> list[SendReceipt]:
        """Send many messages, up to `inflight_max` at once, and wait for all receipts; they come in the same order.

        The fastest way to send messages one by one: each is stored and acknowledged for itself, as with `send_soon`.
        `timeout` is for each of them. Raises the error of the first message that failed, when the outcome of all is
        known: the others are stored. When cancelled, what is under way may be stored.
        """
        self._check_open()
        timeout_ms = self._timeout_ms(timeout)
        outcomes = Outcomes()
        waiting = iter(messages)
        low = max(self._settings.inflight_max * 3 // 4, 1)
        while True:
            if self._inflight >= low:
                await self._wait_until_below(low)
            count = min(RUN_MAX, self._settings.inflight_max - self._inflight)
            run = list(islice(waiting, count))
            self._begin_run(run, outcomes, timeout_ms)
            if len(run) < count:
                return await outcomes.all()

    def _begin_run(self, messages: list[Message], outcomes: Outcomes, timeout_ms: int) -> None:
        if self._tracing is None and not self._settings.latency_faults:
            run = Run(outcomes, timeout_ms, on_end=self._end, on_error=self._on_run_error)
            try:
                others = self._run_sender.send(messages, run)
            finally:
                # Replies come later: nothing has waited since the first was begun.
                self._inflight += run.begun
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
        outcomes = RowOutcomes(on_end=self._end)
        queues = await self.queues_of(topic)
        await self._connect_to(queues)
        at_once = min(self._settings.inflight_max, ROW_REQUESTS_AT_ONCE_MAX)
        rows_max = min(ROWS_PER_REQUEST_MAX, -(-count // len(queues)))
        for rows in split_rows(texts, bodies, count, rows_max=rows_max, bytes_max=ROW_REQUEST_BYTES_MAX):
            if is_retry_topic(topic):
                outcomes.lose(rows, "retries cannot travel in batches")
                continue
            if self._inflight >= at_once:
                await self._wait_until_below(at_once)
            self._inflight += 1
            try:
                self._run_sender.send_rows(topic, texts, bodies, rows, outcomes, timeout_ms=timeout_ms)
            except KappaError as fault:
                self._end(1)
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
        while self._inflight >= self._settings.inflight_max:
            await self._wait_until_below(self._settings.inflight_max)

    async def flush(self) -> None:
        """Wait until nothing is in flight."""
        while self._inflight:
            await self._wait_until_below(1)

    async def _wait_until_below(self, inflight: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_room.append((inflight, waiter))
        await waiter

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
        if self._tracing is not None and receipt.is_traced:
            self._trace_decision(
                decision,
                topic=message.topic,
                message_id=receipt.message_id,
                region=receipt.region or REGION,
                tags=message.tags,
                keys=message.keys_text or None,
                store_host=address,
                transaction_id=receipt.transaction_id or receipt.message_id,
                is_from_check=False,
            )

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

    # ── One message, several attempts ───────────────────────────────────────────────────────────────────────────────

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
        policy: SendPolicy | None = None,
    ) -> SendReceipt:
        """Send what is prepared already, with the attempts that the policy allows."""
        self._check_open()
        clock = self.cluster.clock
        publisher = await self._publishers.find(prepared.topic)
        chosen = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
        policy = policy or self._policy
        attempts = SendAttempts(
            policy if chosen is None else self._single_policy,
            topic=prepared.topic,
            started_at_ms=clock.now_ms(),
            timeout_ms=timeout_ms if timeout_ms is not None else self._settings.send_timeout_ms,
        )
        degraded: SendReceipt | None = None
        while True:
            target = chosen if chosen is not None else self._publishers.next_queue(publisher, attempts.last_broker)
            attempt_ms = attempts.begin(target.broker, clock.now_ms())
            started_at_ms = clock.now_ms()
            try:
                receipt = await self._attempt(prepared, target, attempt_ms)
            except KappaError as error:
                self._publishers.record(target.broker, clock.now_ms() - started_at_ms, error)
                if attempts.again_after(error, clock.now_ms()):
                    if isinstance(error, Busy):
                        await asyncio.sleep(self._settings.busy_pause_ms / 1000)
                    publisher = await self._publishers.find(prepared.topic)
                    continue
                if degraded is not None:
                    return degraded
                raise attempts.failure(error, clock.now_ms()) from error
            self._publishers.record(target.broker, clock.now_ms() - started_at_ms, None)
            if self._tracing is not None:
                self._trace(prepared, receipt, cost_ms=clock.now_ms() - started_at_ms)
            if receipt.is_ok or not attempts.again_after_degraded(clock.now_ms()):
                return receipt
            degraded = receipt

    async def _attempt(self, prepared: Prepared, queue: Queue, timeout_ms: int) -> SendReceipt:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                address = await self.cluster.master_of(queue)
                await self.cluster.dialer.connect(address)
        except TimeoutError:
            raise CallTimeout(
                f"no connection to broker {queue.broker!r} in time: try again or allow more time"
            ) from None
        left_ms = max(1, round((deadline - asyncio.get_running_loop().time()) * 1000))
        reply = await self.cluster.call_raw(address, self._command(prepared, queue), timeout_ms=left_ms)
        return receipt_of(reply, prepared.message_id, queue, address)

    def _command(self, prepared: Prepared, queue: Queue) -> Command:
        """The request. What is the same for all messages of a topic is encoded once: it is most of the header."""
        template = self._templates.get(prepared.topic)
        if template is None:
            template = self._templates[prepared.topic] = encode_fields(
                SendRequest(
                    producer_group=self._group,
                    topic=prepared.topic,
                    default_topic_queues=self._settings.new_topic_queues,
                    queue_id=0,
                    born_at_ms=0,
                )
            )
        fields = template.copy()
        fields[_WIRE["queue_id"]] = str(queue.queue_id)
        fields[_WIRE["broker"]] = queue.broker
        fields[_WIRE["flags"]] = str(prepared.flags)
        fields[_WIRE["born_at_ms"]] = str(self.cluster.clock.now_ms())
        fields[_WIRE["flag"]] = str(prepared.flag)
        fields[_WIRE["properties"]] = prepared.properties
        code = SendRequest.code
        if prepared.is_batch:
            fields[_WIRE["batch"]] = "true"
            code = RequestCode.SEND_BATCH_MESSAGE
        elif prepared.is_reply:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        elif prepared.retry_count_max is not None:
            fields[_WIRE["retry_count"]] = str(prepared.retry_count)
            fields[_WIRE["retry_count_max"]] = str(prepared.retry_count_max)
        return Command(code=code, fields=fields, body=prepared.body)

    # ── Background sends ────────────────────────────────────────────────────────────────────────────────────────────

    def _on_reply(
        self,
        outcome: "asyncio.Future[SendReceipt]",
        prepared: Prepared,
        queue: Queue,
        address: str,
        started: float,
        timeout_ms: int,
        again: Message | None,
        waiter: "asyncio.Future[Command]",
    ) -> None:
        """The first attempt of a background send has ended."""
        error: KappaError | None = None
        receipt: SendReceipt | None = None
        try:
            receipt = receipt_of(waiter.result(), prepared.message_id, queue, address)
        except KappaError as fault:
            error = fault
        elapsed_ms = round((asyncio.get_running_loop().time() - started) * 1000)
        self._publishers.record(queue.broker, elapsed_ms, error, in_background=True)
        if self._tracing is not None and receipt is not None:
            self._trace(prepared, receipt, cost_ms=elapsed_ms)
        if error is not None and again is not None and self._background_policy.retries(error):
            left_ms = timeout_ms - elapsed_ms
            if left_ms > 0 and self.cluster.is_open:
                work = self._send_in_background(outcome, again, prepared, _NO_PROPERTIES, timeout_ms=left_ms)
                self.cluster.tasks.start(work, name="send again")
                return
        self._settle(outcome, receipt, error)

    def _send_in_turn(
        self,
        outcome: "asyncio.Future[SendReceipt]",
        message: Message,
        prepared: Prepared | None,
        extra: dict[str, str],
        **place: Any,
    ) -> Coroutine[Any, Any, None]:
        """Take the next turn of the topic now, and send when it has come."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        previous, self._turns[message.topic] = self._turns.get(message.topic), turn
        return self._wait_and_send(outcome, message, prepared, extra, previous=previous, turn=turn, **place)

    async def _wait_and_send(
        self,
        outcome: "asyncio.Future[SendReceipt]",
        message: Message,
        prepared: Prepared | None,
        extra: dict[str, str],
        *,
        previous: "asyncio.Future[None] | None",
        turn: "asyncio.Future[None]",
        timeout_ms: int,
        queue: Queue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        argument: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        error: KappaError = TransportError("the producer was closed before the message was sent")
        is_sent = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if prepared is None:
                    prepared = await self._prepare(message, extra)
                if previous is not None:
                    await asyncio.wait([previous])
                publisher = await self._publishers.find(message.topic)
                target = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
                assert target is not None, "only sends to given queues wait for their turn"
                address = await self.cluster.master_of(target)
                connection = await self.cluster.dialer.connect(address)
            waiter = connection.begin(self._command(prepared, target), timeout_ms=timeout_ms)
            waiter.add_done_callback(
                partial(self._on_reply, outcome, prepared, target, address, started, timeout_ms, None)
            )
            is_sent = True
        except TimeoutError:
            error = CallTimeout(f"message for topic {message.topic!r} not sent in {timeout_ms} ms: allow more time")
        except KappaError as fault:
            error = fault
        finally:
            turn.set_result(None)
            if self._turns.get(message.topic) is turn:
                del self._turns[message.topic]
            if not is_sent:
                self._settle(outcome, None, error)

    def _on_run_error(self, sending: Sending, error: BaseException) -> None:
        """The first attempt of a message of a run has failed."""
        left_ms = sending.run.timeout_ms - round((asyncio.get_running_loop().time() - sending.run.started) * 1000)
        is_tried_again = isinstance(error, KappaError) and self._background_policy.retries(error)
        if is_tried_again and left_ms > 0 and self.cluster.is_open:
            outcome: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
            sending.run.outcomes.follow(sending.number, outcome)
            prepared = self._prepare_with(sending.message, _NO_PROPERTIES, sending.message_id)
            work = self._send_in_background(outcome, sending.message, prepared, _NO_PROPERTIES, timeout_ms=left_ms)
            self.cluster.tasks.start(work, name="send again")
            return
        sending.run.outcomes.fail(sending.number, error)
        self._end(1)

    def _end(self, count: int) -> None:
        self._inflight -= count
        if self._waiting_for_room:
            self._wake_waiting()

    def _template(self, queue: Queue) -> SendTemplate:
        model = self._command(Prepared(queue.topic, "", b"", "", 0), queue)
        return SendTemplate(model, born_at_name=_WIRE["born_at_ms"], properties_name=_WIRE["properties"])

    async def _send_in_background(
        self,
        outcome: "asyncio.Future[SendReceipt]",
        message: Message,
        prepared: Prepared | None,
        extra: dict[str, str],
        *,
        timeout_ms: int,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
    ) -> None:
        receipt: SendReceipt | None = None
        error: KappaError | None = None
        try:
            if prepared is None:
                prepared = await self._prepare(message, extra)
            receipt = await self.send_prepared(
                prepared,
                message,
                queue=queue,
                sharding_key=sharding_key,
                selector=selector,
                argument=argument,
                timeout_ms=timeout_ms,
                policy=self._background_policy,
            )
        except KappaError as fault:
            error = fault
        finally:
            if receipt is None and error is None:  # Cancelled, or a bug: whoever waits must not wait for ever.
                error = TransportError("the producer was closed before the outcome was known")
            self._settle(outcome, receipt, error)

    def _settle(
        self, outcome: "asyncio.Future[SendReceipt]", receipt: SendReceipt | None, error: KappaError | None
    ) -> None:
        self._end(1)
        if outcome.done():
            return
        if receipt is not None:
            outcome.set_result(receipt)
        elif error is not None:
            outcome.set_exception(error)

    def _wake_waiting(self) -> None:
        still: list[tuple[int, asyncio.Future[None]]] = []
        for inflight, waiter in self._waiting_for_room:
            if self._inflight >= inflight:
                still.append((inflight, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiting_for_room = still

    # ── Traces ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _trace(self, prepared: Prepared, receipt: SendReceipt, *, cost_ms: int) -> None:
        assert self._tracing is not None
        records = published(
            prepared,
            receipt,
            group=self._group,
            store_host=self.cluster.routes.addresses.master_of(receipt.queue.broker) or "",
            started_at_ms=self.cluster.clock.now_ms() - cost_ms,
            cost_ms=cost_ms,
        )
        self._tracing.tracer.add(prepared.topic, records)

    def _trace_check(self, message: StoredMessage, decision: Decision, store_host: str) -> None:
        """A broker asked about a transaction, and the checker has answered."""
        if is_traced(message):
            self._trace_decision(
                decision,
                topic=message.topic,
                message_id=message.message_id,
                region=message.properties.get(Name.REGION, REGION),
                tags=message.tags,
                keys=message.properties.get(Name.KEYS),
                store_host=store_host,
                transaction_id=message.message_id,
                is_from_check=True,
            )

    def _trace_decision(
        self,
        decision: Decision,
        *,
        topic: str,
        message_id: str,
        region: str,
        tags: str | None,
        keys: str | None,
        store_host: str,
        transaction_id: str,
        is_from_check: bool,
    ) -> None:
        assert self._tracing is not None
        record = Decided(
            at_ms=self.cluster.clock.now_ms(),
            region=region,
            group=self._group,
            topic=topic,
            message_id=message_id,
            tags=tags,
            keys=keys,
            store_host=store_host,
            kind=MessageKind.DECIDED,
            transaction_id=transaction_id,
            state=decision.state_name,
            is_from_check=is_from_check,
        )
        self._tracing.tracer.add(topic, [record])

    # ── Preparing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(f"producer of group {self._group!r} is not open: use it inside 'async with', or open() it")

    def _check(self, message: Message) -> None:
        check_message(message, body_bytes_max=self._settings.body_bytes_max)

    def _timeout_ms(self, timeout: Duration | None) -> int:
        return self._settings.send_timeout_ms if timeout is None else duration_ms(timeout)

    def _extra(
        self,
        sharding_key: str | None,
        delay_level: int | None,
        deliver_at: Moment | None,
        delay: Duration | None,
    ) -> dict[str, str]:
        if delay_level is None and deliver_at is None and delay is None:
            return _NO_PROPERTIES if sharding_key is None else {Name.SHARDING_KEY: sharding_key}
        extra = delay_properties(
            delay_level=delay_level,
            deliver_at_ms=None if deliver_at is None else moment_ms(deliver_at),
            delay_ms=None if delay is None else duration_ms(delay),
        )
        if sharding_key is not None:
            extra[Name.SHARDING_KEY] = sharding_key
        return extra

    def _compresses_in_thread(self, message: Message) -> bool:
        return len(message.body) >= max(COMPRESS_IN_THREAD_BYTES, self._settings.compress_from_bytes)

    async def _prepare(self, message: Message, extra: dict[str, str]) -> Prepared:
        self._check_open()
        if self._compresses_in_thread(message):
            # The id is made here: its counter belongs to the event loop.
            return await asyncio.to_thread(self._prepare_with, message, extra, self.cluster.unique_ids.next())
        return self._prepare_now(message, extra)

    def _prepare_now(self, message: Message, extra: dict[str, str]) -> Prepared:
        return self._prepare_with(message, extra, self.cluster.unique_ids.next())

    def _prepare_with(self, message: Message, extra: dict[str, str], message_id: str) -> Prepared:
        self._check(message)
        return prepare(
            message,
            message_id,
            extra=extra,
            compression=self._settings.compression,
            level=self._settings.compression_level,
            compress_from_bytes=self._settings.compress_from_bytes,
        )


def _is_placed(message: Message, queue: Queue | None, sharding_key: str | None, selector: object) -> bool:
    """Whether the caller decides about the queue, so that the order of sends matters."""
    if queue is not None or sharding_key is not None or selector is not None:
        return True
    return bool(message.properties) and Name.SHARDING_KEY in message.properties


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

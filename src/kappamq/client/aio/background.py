"""Sends that nobody waits for one by one: written at once, followed by their outcome in a future."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from kappamq.client.aio.attempts import StubbornSender
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.inflight import InFlight
from kappamq.client.aio.outbox import Outbox, Posted
from kappamq.client.aio.publishing import Publishers, QueueSelector, choose_queue
from kappamq.client.aio.runs import Sending
from kappamq.client.aio.send_requests import NO_PROPERTIES, SendRequests
from kappamq.client.aio.send_traces import SendTraces
from kappamq.client.core.preparing import Prepared
from kappamq.client.core.receipts import SendReceipt, receipt_of
from kappamq.client.core.retrying import BACKGROUND_SEND, SendPolicy
from kappamq.client.settings import ProducerSettings
from kappamq.errors import CallTimeout, KappaError, TransportError
from kappamq.model.message import Message, Queue
from kappamq.model.properties import Name
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command


class BackgroundSender:
    """Sends whose outcome comes later. Those to given queues keep their order."""

    def __init__(
        self,
        cluster: Cluster,
        publishers: Publishers,
        settings: ProducerSettings,
        *,
        requests: SendRequests,
        stubborn: StubbornSender,
        inflight: InFlight,
        traces: SendTraces,
        outbox: Outbox,
    ) -> None:
        """`stubborn` sends what needs more than one attempt."""
        self._cluster = cluster
        self._publishers = publishers
        self._requests = requests
        self._stubborn = stubborn
        self._inflight = inflight
        self._traces = traces
        self._outbox = outbox
        self._watches_brokers = settings.latency_faults
        self._turns: dict[str, asyncio.Future[None]] = {}
        """Topic → done when the last of the sends to given queues that could not be written at once is written."""
        self._policy = SendPolicy(
            attempts_max=settings.attempts_max,
            # An overloaded broker has stored nothing, and says so to those who send too much at once.
            retried_codes=BACKGROUND_SEND.retried_codes | {ResponseCode.SYSTEM_BUSY},
            retries_when_crowded=BACKGROUND_SEND.retries_when_crowded,
        )

    def send(
        self,
        message: Message,
        extra: dict[str, str],
        *,
        queue: Queue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        argument: Any,
        timeout_ms: int,
    ) -> "asyncio.Future[SendReceipt]":
        """Write the message now if that can be, else as soon as it can. Raises what is wrong with the message."""
        loop = asyncio.get_running_loop()
        publisher = self._publishers.known(message.topic)
        prepared: Prepared | None = None
        is_behind = message.topic in self._turns and _is_placed(message, queue, sharding_key, selector)
        if publisher is not None and not is_behind and not self._requests.compresses_in_thread(message):
            prepared = self._requests.prepare_now(message, extra)
            chosen = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
            target = chosen if chosen is not None else self._publishers.next_queue(publisher, None)
            posted = self._post(prepared, target, timeout_ms, is_placed=chosen is not None)
            if posted is not None:
                return posted
            self._outbox.write()
            address = self._cluster.routes.addresses.master_of(target.broker)
            connection = self._cluster.dialer.open_connection(address) if address is not None else None
            if address is not None and connection is not None:
                outcome = loop.create_future()
                started = loop.time()
                waiter = connection.begin(self._requests.command(prepared, target), timeout_ms=timeout_ms)
                self._inflight.begin(1)
                is_placed = chosen is not None
                waiter.add_done_callback(
                    partial(self._on_reply, outcome, prepared, target, address, started, timeout_ms, is_placed)
                )
                return outcome
        outcome = loop.create_future()
        self._inflight.begin(1)
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
        self._cluster.tasks.start(work, name="send")
        return outcome

    def _post(
        self, prepared: Prepared, queue: Queue, timeout_ms: int, *, is_placed: bool
    ) -> "asyncio.Future[SendReceipt] | None":
        """Write it with others of this turn, if nobody wants to know how each of them went."""
        if self._watches_brokers or self._traces.tracer is not None:
            return None
        on_error = self._on_placed_error if is_placed else self._on_error
        outcome = self._outbox.post(prepared, queue, timeout_ms=timeout_ms, on_error=on_error)
        if outcome is not None:
            self._inflight.begin(1)
        return outcome

    def _on_error(self, posted: Posted, started: float, error: KappaError) -> None:
        elapsed_ms = round((asyncio.get_running_loop().time() - started) * 1000)
        if not self._sends_again(posted.outcome, posted.prepared, error, left_ms=posted.timeout_ms - elapsed_ms):
            self._settle(posted.outcome, None, error)

    def _on_placed_error(self, posted: Posted, _: float, error: KappaError) -> None:
        self._settle(posted.outcome, None, error)

    def _on_reply(
        self,
        outcome: "asyncio.Future[SendReceipt]",
        prepared: Prepared,
        queue: Queue,
        address: str,
        started: float,
        timeout_ms: int,
        is_placed: bool,
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
        if receipt is not None:
            self._traces.sent(prepared, receipt, cost_ms=elapsed_ms)
        left_ms = 0 if is_placed else timeout_ms - elapsed_ms
        if error is not None and self._sends_again(outcome, prepared, error, left_ms=left_ms):
            return
        self._settle(outcome, receipt, error)

    def _sends_again(
        self, outcome: "asyncio.Future[SendReceipt]", prepared: Prepared, error: KappaError, *, left_ms: int
    ) -> bool:
        """Try again what is worth it, and for which there is time."""
        if left_ms <= 0 or not self._policy.retries(error) or not self._cluster.is_open:
            return False
        message = Message(prepared.topic, prepared.body)  # Without a key: any queue will do, as before.
        work = self._send_in_background(outcome, message, prepared, NO_PROPERTIES, timeout_ms=left_ms)
        self._cluster.tasks.start(work, name="send again")
        return True

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
                    prepared = await self._requests.prepare(message, extra)
                if previous is not None:
                    await asyncio.wait([previous])
                publisher = await self._publishers.find(message.topic)
                target = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
                assert target is not None, "only sends to given queues wait for their turn"
                address = await self._cluster.master_of(target)
                connection = await self._cluster.dialer.connect(address)
            self._outbox.write()
            waiter = connection.begin(self._requests.command(prepared, target), timeout_ms=timeout_ms)
            waiter.add_done_callback(
                partial(self._on_reply, outcome, prepared, target, address, started, timeout_ms, True)
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

    def on_run_error(self, sending: Sending, error: BaseException) -> None:
        """The first attempt of a message of a run has failed."""
        left_ms = sending.run.timeout_ms - round((asyncio.get_running_loop().time() - sending.run.started) * 1000)
        if isinstance(error, KappaError):
            outcome: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
            prepared = self._requests.prepare_with(sending.message, NO_PROPERTIES, sending.message_id)
            if self._sends_again(outcome, prepared, error, left_ms=left_ms):
                sending.run.outcomes.follow(sending.number, outcome)
                return
        sending.run.outcomes.fail(sending.number, error)
        self._inflight.end(1)

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
                prepared = await self._requests.prepare(message, extra)
            receipt = await self._stubborn.send(
                prepared,
                message,
                queue=queue,
                sharding_key=sharding_key,
                selector=selector,
                argument=argument,
                timeout_ms=timeout_ms,
                policy=self._policy,
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
        self._inflight.end(1)
        if outcome.done():
            return
        if receipt is not None:
            outcome.set_result(receipt)
        elif error is not None:
            outcome.set_exception(error)


def _is_placed(message: Message, queue: Queue | None, sharding_key: str | None, selector: object) -> bool:
    """Whether the caller decides about the queue, so that the order of sends matters."""
    if queue is not None or sharding_key is not None or selector is not None:
        return True
    return bool(message.properties) and Name.SHARDING_KEY in message.properties

"""One message, several attempts: a broker that fails is replaced by another, for as long as the policy allows."""

import asyncio
from typing import Any

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.outbox import Outbox
from kappamq.client.aio.publishing import Publishers, QueueSelector, choose_queue
from kappamq.client.aio.send_requests import SendRequests
from kappamq.client.aio.send_traces import SendTraces
from kappamq.client.core.preparing import Prepared
from kappamq.client.core.receipts import SendReceipt, receipt_of
from kappamq.client.core.retrying import SendAttempts, SendPolicy
from kappamq.client.settings import ProducerSettings
from kappamq.errors import Busy, CallTimeout, KappaError
from kappamq.model.message import Message, Queue


class StubbornSender:
    """Sends one message at a time and waits for its receipt."""

    def __init__(
        self,
        cluster: Cluster,
        publishers: Publishers,
        settings: ProducerSettings,
        *,
        requests: SendRequests,
        traces: SendTraces,
        outbox: Outbox,
    ) -> None:
        self._cluster = cluster
        self._publishers = publishers
        self._settings = settings
        self._requests = requests
        self._traces = traces
        self._outbox = outbox
        self._policy = SendPolicy(
            attempts_max=settings.attempts_max,
            retries_degraded=settings.retry_degraded,
            attempt_timeout_max_ms=settings.attempt_timeout_max_ms,
        )
        self._single_policy = SendPolicy(attempts_max=1)

    async def send(
        self,
        prepared: Prepared,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        argument: Any = None,
        timeout_ms: int,
        policy: SendPolicy | None = None,
    ) -> SendReceipt:
        """Send with the attempts that the policy allows; one, if the caller fixes the queue."""
        clock = self._cluster.clock
        now_ms = clock.now_ms()
        publisher = self._publishers.known(prepared.topic) or await self._publishers.find(prepared.topic)
        chosen = choose_queue(publisher.queues, message, queue, sharding_key, selector, argument)
        policy = policy or self._policy
        attempts = SendAttempts(
            policy if chosen is None else self._single_policy,
            topic=prepared.topic,
            started_at_ms=now_ms,
            timeout_ms=timeout_ms,
        )
        degraded: SendReceipt | None = None
        while True:
            target = chosen if chosen is not None else self._publishers.next_queue(publisher, attempts.last_broker)
            attempt_ms = attempts.begin(target.broker, now_ms)
            started_at_ms = now_ms
            outcome = self._outbox.post(prepared, target, timeout_ms=attempt_ms)
            try:
                receipt = await (outcome if outcome is not None else self._attempt(prepared, target, attempt_ms))
            except KappaError as error:
                now_ms = clock.now_ms()
                self._publishers.record(target.broker, now_ms - started_at_ms, error)
                if attempts.again_after(error, now_ms):
                    if isinstance(error, Busy):
                        await asyncio.sleep(self._settings.busy_pause_ms / 1000)
                    publisher = await self._publishers.find(prepared.topic)
                    now_ms = clock.now_ms()
                    continue
                if degraded is not None:
                    return degraded
                raise attempts.failure(error, now_ms) from error
            now_ms = clock.now_ms()
            self._publishers.record(target.broker, now_ms - started_at_ms, None)
            self._traces.sent(prepared, receipt, cost_ms=now_ms - started_at_ms)
            if receipt.is_ok or not attempts.again_after_degraded(now_ms):
                return receipt
            degraded = receipt

    async def _attempt(self, prepared: Prepared, queue: Queue, timeout_ms: int) -> SendReceipt:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                address = await self._cluster.master_of(queue)
                await self._cluster.dialer.connect(address)
        except TimeoutError:
            raise CallTimeout(
                f"no connection to broker {queue.broker!r} in time: try again or allow more time"
            ) from None
        self._outbox.write()
        left_ms = max(1, round((deadline - asyncio.get_running_loop().time()) * 1000))
        reply = await self._cluster.call_raw(address, self._requests.command(prepared, queue), timeout_ms=left_ms)
        return receipt_of(reply, prepared.message_id, queue, address)

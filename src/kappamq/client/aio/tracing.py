"""Sending traces in the background: whoever is traced never waits for it and never fails by it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from kappamq.client.core.tracing import Delivered, Handled, Outcome, Record, TraceBuffer, TraceMessage, delivered
from kappamq.clock import Clock
from kappamq.errors import KappaError
from kappamq.model.message import Message, StoredMessage

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 1.0
"""How long a trace waits for others to travel with it."""
FLUSH_RECORDS: Final = 512
"""So many are sent at once: a quarter of what the buffer holds."""
CLOSE_SECONDS: Final = 5.0
SEND_TIMEOUT_MS: Final = 5_000
INNER_GROUP: Final = "_INNER_TRACE_PRODUCER-"
GROUP_CHARACTERS: Final = 80
"""As much of the traced group's name as the name of the tracing group has room for."""


class TraceSender(Protocol):
    """The producer that carries traces; itself not traced."""

    def send(self, message: Message, /) -> Awaitable[object]: ...

    async def close(self) -> None: ...


class Tracer:
    """Collects records of one producer or consumer and sends them to the trace topic."""

    def __init__(
        self, sender: TraceSender, *, topic: str, group: str, clock: Clock, next_id: Callable[[], str]
    ) -> None:
        """`next_id` makes the ids that join the begin and the end of a delivery."""
        self._sender = sender
        self._topic = topic
        self._group = group
        self._clock = clock
        self._next_id = next_id
        self._buffer = TraceBuffer()
        self._wanted = asyncio.Event()
        self._failed = 0
        self._told = 0

    @property
    def lost(self) -> int:
        """Records that were dropped because too many waited, or that no broker took."""
        return self._buffer.dropped + self._failed

    def add(self, topic: str, records: Sequence[Record]) -> None:
        """Note what happened to messages of a topic. Never waits, never fails."""
        for record in records:
            self._buffer.add(topic, record)
        if len(self._buffer) >= FLUSH_RECORDS:
            self._wanted.set()

    async def run(self) -> None:
        """Send what was collected, at a steady pace, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            await self._flush()

    async def close(self) -> None:
        """Send the rest, as far as that is quick, and close the sender. `run` must have ended."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flush()
        except TimeoutError:
            log.warning("traces not sent at the end topic=%s", self._topic)
        await self._sender.close()

    async def _flush(self) -> None:
        for message in self._buffer.take():
            try:
                await self._sender.send(Message(self._topic, message.body, keys=message.keys))
            except KappaError as fault:
                self._failed += _count(message)
                log.warning("trace not sent fault=%s", fault)
        if self.lost > self._told:
            self._told = self.lost
            log.warning("traces lost in all count=%d", self.lost)

    # ── Handlers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_handling(self, messages: Sequence[StoredMessage]) -> list[tuple[str, Delivered]]:
        """Trace that a handler gets messages; pass what is returned to `end_handling`."""
        records = delivered(messages, group=self._group, request_id=self._next_id(), at_ms=self._clock.now_ms())
        for topic, record in records:
            self.add(topic, [record])
        return records

    def end_handling(
        self,
        begun: Sequence[tuple[str, Delivered]],
        outcome_of: Callable[[str], Outcome],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Trace how the handler ended for each message id. RocketMQ: the time is shared out among the messages.

        RocketMQ: one that ended well or asked for another try, but later than `timeout_ms`, counts as timed out.
        """
        now_ms = self._clock.now_ms()
        for topic, record in begun:
            outcome = outcome_of(record.message_id)
            is_success = outcome is Outcome.SUCCESS
            is_late = timeout_ms is not None and now_ms - record.at_ms >= timeout_ms
            if is_late and outcome is not Outcome.RAISED:
                outcome = Outcome.TIMED_OUT
            handled = Handled(
                request_id=record.request_id,
                message_id=record.message_id,
                cost_ms=max(0, now_ms - record.at_ms) // len(begun),
                is_success=is_success,
                keys=record.keys,
                outcome=outcome,
                at_ms=now_ms,
                group=self._group,
            )
            self.add(topic, [handled])


def inner_group(group: str, role: str) -> str:
    """Group of the producer that carries the traces of `group`."""
    return f"{INNER_GROUP}{group[:GROUP_CHARACTERS]}-{role}"


def _count(message: TraceMessage) -> int:
    return message.body.count(b"\x02")

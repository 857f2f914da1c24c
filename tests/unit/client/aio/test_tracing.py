"""Sending traces: in the background, and never at the cost of those who are traced."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.aio.tracing import FLUSH_RECORDS, Tracer, inner_group
from kappamq.client.core.tracing import RECORDS_MAX, Handled, Outcome, decode_records
from kappamq.clock import Clock, ManualClock, SystemClock
from kappamq.errors import ConnectFailed
from kappamq.model.message import Message, StoredMessage
from kappamq.model.names import check_group
from tests.unit.client.aio.fake_cluster import eventually
from tests.unit.client.core.test_tracing import DELIVERED, PUBLISHED


class Sender:
    """Keeps what it is given, or refuses it."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.is_broken = False
        self.is_closed = False

    async def send(self, message: Message, /) -> None:
        if self.is_broken:
            raise ConnectFailed("scripted")
        self.sent.append(message)

    async def close(self) -> None:
        self.is_closed = True


def tracer_of(sender: Sender, clock: Clock | None = None) -> Tracer:
    return Tracer(sender, topic="traces", group="g", clock=clock or SystemClock(), next_id=lambda: "R")


async def test_many_records_are_sent_at_once_in_one_message() -> None:
    sender = Sender()
    tracer = tracer_of(sender)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(tracer.run())
        tracer.add("t", [PUBLISHED] * FLUSH_RECORDS)
        await eventually(lambda: len(sender.sent) == 1)
        running.cancel()
    [message] = sender.sent
    assert (message.topic, message.keys) == ("traces", (PUBLISHED.message_id, "order-1001"))
    assert len(decode_records(message.body.decode())) == FLUSH_RECORDS


async def test_the_end_sends_the_rest() -> None:
    sender = Sender()
    tracer = tracer_of(sender)
    tracer.add("t", [PUBLISHED])
    await tracer.close()
    assert (len(sender.sent), sender.is_closed, tracer.lost) == (1, True, 0)


async def test_what_cannot_be_kept_or_sent_is_counted() -> None:
    sender = Sender()
    sender.is_broken = True
    tracer = tracer_of(sender)
    tracer.add("t", [PUBLISHED] * (RECORDS_MAX + 3))
    assert tracer.lost == 3
    await tracer.close()
    assert (sender.sent, sender.is_closed, tracer.lost) == ([], True, RECORDS_MAX + 3)


async def test_a_delivery_has_a_begin_and_an_end() -> None:
    sender = Sender()
    tracer = tracer_of(sender)
    properties = "UNIQ_KEY\x01A\x02MSG_REGION\x01r\x02"
    message = StoredMessage("t", b"", 0, 0, 0, 0, 0, 0, b"", 0, b"", 1, 0, properties, 0, 0)
    begun = tracer.begin_handling([message])
    tracer.end_handling(begun, lambda message_id: Outcome.RAISED if message_id == "A" else Outcome.SUCCESS)
    await tracer.close()
    before, after = decode_records(sender.sent[0].body.decode())
    assert isinstance(before, type(DELIVERED))
    assert isinstance(after, Handled)
    assert (before.request_id, before.retry_count, before.group) == ("R", 1, "g")
    assert (after.request_id, after.outcome, after.is_success, after.group) == ("R", Outcome.RAISED, False, "g")


@pytest.mark.parametrize(
    ("outcome", "elapsed_ms", "told", "is_success"),
    [
        (Outcome.SUCCESS, 999, Outcome.SUCCESS, True),
        (Outcome.SUCCESS, 1000, Outcome.TIMED_OUT, True),
        (Outcome.FAILED, 1000, Outcome.TIMED_OUT, False),
        (Outcome.RAISED, 1000, Outcome.RAISED, False),
    ],
)
async def test_a_handler_that_took_too_long_is_told_so(
    outcome: Outcome, elapsed_ms: int, told: Outcome, is_success: bool
) -> None:
    sender, clock = Sender(), ManualClock()
    tracer = tracer_of(sender, clock)
    message = StoredMessage("t", b"", 0, 0, 0, 0, 0, 0, b"", 0, b"", 1, 0, "UNIQ_KEY\x01A\x02", 0, 0)
    begun = tracer.begin_handling([message])
    clock.advance(ms=elapsed_ms)
    tracer.end_handling(begun, lambda _: outcome, timeout_ms=1000)
    await tracer.close()
    _, after = decode_records(sender.sent[0].body.decode())
    assert isinstance(after, Handled)
    assert (after.outcome, after.is_success) == (told, is_success)


def test_the_inner_group_is_a_valid_name() -> None:
    check_group(inner_group("x" * 120, "PRODUCE"))
    assert inner_group("g", "CONSUME") == "_INNER_TRACE_PRODUCER-g-CONSUME"

"""Putting the life of a message together."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kappamq.admin.traces import steps_of
from kappamq.client.core.tracing import MessageKind, Outcome
from kappamq.errors import NotFound
from tests.unit.admin.scripted import scripted_cluster
from tests.unit.client.core.test_tracing import DECIDED, DELIVERED, HANDLED, PUBLISHED


def test_steps_are_in_order_and_deliveries_joined() -> None:
    half = replace(PUBLISHED, kind=MessageKind.HALF)
    steps = steps_of([("c:2", HANDLED), ("c:2", DELIVERED), ("c:1", DECIDED), ("c:1", half)])
    assert [(step.what, step.client, step.status, step.cost_ms) for step in steps] == [
        ("sent (half)", "c:1", "success", 3),
        ("decided", "c:1", "COMMIT_MESSAGE", None),
        ("handled", "c:2", "success", 7),
    ]
    assert (steps[2].at_ms, steps[2].group, steps[2].retry_count) == (DELIVERED.at_ms, "cg_demo", 0)


def test_a_delivery_may_lack_its_begin_or_its_end() -> None:
    [open_step] = steps_of([("c", DELIVERED)])
    assert (open_step.cost_ms, open_step.group) == (None, "cg_demo")
    assert "not ended" in open_step.status
    failed = replace(HANDLED, outcome=Outcome.RAISED, is_success=False)
    [end] = steps_of([("c", failed)])
    assert (end.at_ms, end.status, end.retry_count) == (HANDLED.at_ms, "raised", None)


def test_every_delivery_is_a_step() -> None:
    again = replace(DELIVERED, request_id="second", retry_count=1, at_ms=DELIVERED.at_ms + 5)
    assert [step.retry_count for step in steps_of([("c", again), ("c", DELIVERED)])] == [0, 1]


def test_nothing_traced_is_told() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            with pytest.raises(NotFound, match="no trace topic"):
                await admin.traces.of("ABC")
            broker.answers[12] = lambda request: request.reply(22, "nothing")
            with pytest.raises(NotFound, match="nobody has traced"):
                await admin.traces.of("ABC", trace_topic="orders")

    asyncio.run(scenario())

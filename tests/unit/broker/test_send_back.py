"""Messages sent back: when their answer comes."""

import asyncio

import pytest

from kappamq.broker.appender import Appender
from kappamq.broker.handlers.send_back import SendBackHandlers, SendBackRules
from kappamq.broker.placing import PlacingRules
from kappamq.wire.headers import SendBackRequest
from tests.unit.broker.admin_desk import HOST, Desk, Peer


async def send_back(desk: Desk, *backs: SendBackRequest) -> list[int]:
    """How often the name servers had been waited for after each answer."""
    waits = 0
    seen = []

    async def wait_told() -> None:
        nonlocal waits
        waits += 1

    appender = Appender(
        desk.store,
        clock=desk.clock,
        durable=True,
        on_arrivals=lambda _: None,
        unacknowledged_max=10,
        flush_timeout_seconds=5,
    )
    placing = PlacingRules(delay_levels=18, timer_enabled=True, timer_max_delay_seconds=3600)
    handlers = SendBackHandlers(
        topics=desk.topics,
        groups=desk.groups,
        store=desk.store,
        appender=appender,
        statistics=desk.statistics,
        rules=SendBackRules(store_host=HOST, permission=6, placing=placing),
        clock=desk.clock,
        wait_told=wait_told,
    )
    appender.start()
    try:
        for back in backs:
            answer = await handlers.send_back(Peer().connection, back.command())
            assert answer.code == 0, answer.remark
            seen.append(waits)
    finally:
        await appender.stop()
    return seen


@pytest.mark.parametrize(("delay_level", "made"), [(3, "%RETRY%g"), (-1, "%DLQ%g")])
def test_the_first_answer_comes_when_the_topic_made_for_it_can_be_found(
    desk: Desk, delay_level: int, made: str
) -> None:
    [log_offset] = desk.append("t", 0, b"x")
    back = SendBackRequest(log_offset=log_offset, group="g", delay_level=delay_level, origin_topic="t")
    assert desk.topics.find(made) is None
    assert asyncio.run(send_back(desk, back, back)) == [1, 1]
    assert desk.topics.find(made) is not None

"""Delayed and timed messages against a model: each comes once, in time, wherever the process or the machine ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.crashing_broker import LEVELS_MS, CrashingBroker, crash, run_until_crash

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Send:
    """A message that waits: `level` for a delay level, else `delay_ms`."""

    level: int = 0
    delay_ms: int = 0

    @property
    def properties(self) -> dict[str, str]:
        return {"DELAY": str(self.level)} if self.level else {"TIMER_DELAY_MS": str(self.delay_ms)}

    @property
    def wait_ms(self) -> int:
        return LEVELS_MS[self.level - 1] if self.level else self.delay_ms


@dataclass(frozen=True)
class Pass:
    """Time goes by, then what is due is delivered."""

    ms: int


@dataclass(frozen=True)
class Save:
    """Progress is saved."""


Step = Send | Pass | Save

STEPS = st.lists(
    st.one_of(
        st.builds(Send, level=st.integers(1, 3)),
        st.builds(Send, delay_ms=st.sampled_from((1, 999, 1000, 1001, 2500, 60_000, 1_700_000, 1_900_000, 9_000_000))),
        st.builds(Pass, ms=st.sampled_from((0, 1, 400, 1000, 5000, 61_000, 1_800_000))),
        st.just(Save()),
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """What was sent, and when it is due."""

    def __init__(self) -> None:
        self.due_ms: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()

    async def play(self, broker: CrashingBroker, steps: list[Step]) -> None:
        await broker.start()
        for number, step in enumerate(steps):
            match step:
                case Send():
                    body = b"%d" % number
                    self.due_ms[body] = broker.clock.now_ms() + step.wait_ms
                    await broker.send(body, **step.properties)
                    self.acknowledged.add(body)
                case Pass():
                    broker.clock.advance(ms=step.ms)
                    await broker.deliver()
                case Save():
                    await broker.save()

    async def finish(self, broker: CrashingBroker) -> None:
        """Start again, let everything become due, and look."""
        await broker.start()
        await broker.deliver()
        self.check_not_early(broker)
        for _ in range(12):
            broker.clock.advance(ms=1_000_000)
            await broker.deliver()
        self.check_not_early(broker)
        counts = broker.counts()
        assert set(counts) >= self.acknowledged
        assert set(counts) <= set(self.due_ms)
        assert set(counts.values()) <= {1}
        await broker.stop()

    def check_not_early(self, broker: CrashingBroker) -> None:
        for message in broker.messages():
            assert message.stored_at_ms >= self.due_ms[message.body]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(1, 400), st.none() | st.randoms(use_true_random=False), st.booleans())
def test_waiting_messages_come_once_whatever_happens(
    steps: list[Step], crash_at: int, dice: Random | None, is_torn: bool
) -> None:
    broker = CrashingBroker(is_torn=is_torn)
    model = Model()
    run_until_crash(broker, lambda: model.play(broker, steps), crash_at=crash_at)
    crash(broker, dice)
    asyncio.run(model.finish(broker))


SCRIPT: list[Step] = [
    Send(level=1),
    Send(delay_ms=1500),
    Send(level=1),
    Save(),
    Send(delay_ms=1500),
    Send(delay_ms=9_000_000),
    Pass(ms=3000),
    Send(delay_ms=1),
    Save(),
    Send(level=2),
    Pass(ms=5000),
]


@pytest.mark.parametrize("is_torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "power-cut"])
def test_a_crash_at_every_step_of_the_disk(power_cut: bool, is_torn: bool) -> None:
    crash_at = 0
    is_killed = True
    while is_killed:
        crash_at += 2
        broker = CrashingBroker(is_torn=is_torn)
        model = Model()
        is_killed = run_until_crash(broker, lambda m=model, b=broker: m.play(b, SCRIPT), crash_at=crash_at)  # type: ignore[misc]
        crash(broker, Random(crash_at) if power_cut else None)
        asyncio.run(model.finish(broker))
    assert crash_at > 100


def test_clock_steps_neither_lose_nor_hasten_delayed_messages() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send(b"a", DELAY="2")
        broker.clock.advance(ms=1000)
        await broker.deliver()
        broker.clock.step(ms=3_600_000)
        await broker.deliver()
        assert not broker.counts()
        await broker.send(b"b", DELAY="2")
        broker.clock.advance(ms=3000)
        await broker.deliver()
        assert not broker.counts()
        broker.clock.advance(ms=1000)
        await broker.deliver()
        assert broker.counts() == {b"a": 1}
        broker.clock.step(ms=-7_200_000)
        await broker.deliver()
        assert broker.counts() == {b"a": 1}
        broker.clock.advance(ms=1000)
        await broker.deliver()
        assert broker.counts() == {b"a": 1, b"b": 1}
        await broker.stop()

    asyncio.run(scenario())


def test_a_clock_set_back_makes_timed_messages_wait_for_their_instant() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        start_ms = broker.clock.now_ms()
        await broker.send(b"before", TIMER_DELIVER_MS=str(start_ms + 10_000))
        broker.clock.advance(ms=5000)
        await broker.deliver()
        broker.clock.step(ms=-4000)
        await broker.send(b"after", TIMER_DELIVER_MS=str(start_ms + 3000))
        broker.clock.advance(ms=1500)
        await broker.deliver()
        assert not broker.counts()
        broker.clock.advance(ms=1500)
        await broker.deliver()
        assert broker.counts() == {b"after": 1}
        broker.clock.advance(ms=6000)
        await broker.deliver()
        assert broker.counts() == {b"after": 1, b"before": 1}
        await broker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_enqueued", [True, False], ids=["in the wheel", "not yet in the wheel"])
@pytest.mark.parametrize("step_ms", [3_600_123, 2_000, 86_400_000 * 400])
@pytest.mark.parametrize("delay", [{"TIMER_DELAY_SEC": "10"}, {"TIMER_DELAY_MS": "10000"}], ids=["s", "ms"])
def test_a_clock_set_forward_does_not_hasten_delays_but_follows_instants(
    delay: dict[str, str], step_ms: int, is_enqueued: bool
) -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send(b"delay", **delay)
        await broker.send(b"instant", TIMER_DELIVER_MS=str(broker.clock.now_ms() + 10_000))
        if is_enqueued:
            await broker.deliver()
        broker.clock.advance(ms=1000)
        broker.clock.step(ms=step_ms)
        await broker.send(b"afterwards", **delay)
        for _ in range(8):
            broker.clock.advance(ms=1000)
            await broker.deliver()
            expected = {b"instant"} if step_ms > 9000 else set()
            assert expected <= broker.counts().keys() <= {b"instant"}
        broker.clock.advance(ms=900)
        await broker.deliver()
        assert broker.counts().keys() <= {b"instant"}  # After 9.9 s.
        broker.clock.advance(ms=1200)  # And a second for the rounding, after a step that is not of whole seconds.
        await broker.deliver()
        assert b"delay" in broker.counts()
        broker.clock.advance(ms=2000)
        await broker.deliver()
        assert broker.counts() == {b"delay": 1, b"instant": 1, b"afterwards": 1}
        await broker.stop()

    asyncio.run(scenario())


def test_a_restart_keeps_what_was_put_off_and_a_clock_put_right_loses_nothing() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send(b"a", TIMER_DELAY_MS="10000")
        await broker.send(b"b", TIMER_DELAY_MS="100000")
        await broker.deliver()
        broker.clock.step(ms=60_000)
        broker.clock.advance(ms=2000)
        await broker.deliver()  # The slot of a is over by the new time: it is stored again for a minute later.
        await broker.stop()
        await broker.start()
        broker.clock.advance(ms=2000)
        await broker.deliver()
        assert not broker.counts()
        broker.clock.step(ms=-60_000)
        for _ in range(70):
            broker.clock.advance(ms=1000)
            await broker.deliver()
        assert broker.counts() == {b"a": 1}  # Late by the step at most.
        broker.clock.advance(ms=100_000)
        await broker.deliver()
        assert broker.counts() == {b"a": 1, b"b": 1}
        await broker.stop()

    asyncio.run(scenario())


def test_a_clock_set_back_loses_no_delay() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send(b"a", TIMER_DELAY_SEC="5")
        broker.clock.advance(ms=1000)
        await broker.deliver()
        broker.clock.step(ms=-60_000)
        await broker.send(b"b", TIMER_DELAY_SEC="5")
        for _ in range(4):
            broker.clock.advance(ms=1000)
            await broker.deliver()
            assert not broker.counts()
        broker.clock.advance(ms=2000)
        await broker.deliver()
        assert broker.counts() == {b"b": 1}
        broker.clock.advance(ms=60_000)  # Longer by the step, but not lost.
        await broker.deliver()
        assert broker.counts() == {b"a": 1, b"b": 1}
        await broker.stop()

    asyncio.run(scenario())


def test_timer_files_that_are_gone_are_made_again() -> None:
    async def before(broker: CrashingBroker) -> None:
        await broker.start()
        await broker.send(b"done", TIMER_DELAY_MS="1000")
        await broker.send(b"far", TIMER_DELAY_MS="5000000")
        await broker.send(b"near", TIMER_DELAY_MS="900000")
        broker.clock.advance(ms=2_500_000)
        await broker.deliver()
        await broker.stop()

    async def after(broker: CrashingBroker) -> None:
        await broker.start()
        broker.clock.advance(ms=5_000_000)
        await broker.deliver()
        assert broker.counts() == {b"done": 1, b"near": 1, b"far": 1}
        await broker.stop()

    from tests.property.crashing_broker import ROOT

    broker = CrashingBroker()
    asyncio.run(before(broker))
    broker.files.unlink(ROOT / "timerwheel")
    asyncio.run(after(broker))

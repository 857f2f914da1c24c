"""Steps of the wall clock."""

from kappamq.broker.clock_steps import STEP_MS, ClockSteps
from kappamq.clock import ManualClock


def test_a_step_is_noticed_once_and_slewing_is_not_one() -> None:
    clock = ManualClock()
    steps = ClockSteps(clock)
    clock.advance(ms=50_000)
    assert steps.notice() == 0
    clock.step(ms=STEP_MS)
    assert steps.notice() == 0
    clock.step(ms=-5000)
    clock.advance(ms=100)
    assert steps.notice() == -5000
    assert steps.notice() == 0


def test_records_before_and_after_a_step_are_told_apart() -> None:
    clock = ManualClock()
    steps = ClockSteps(clock)
    before_ms = clock.now_ms()
    clock.step(ms=60_000)
    after_ms = clock.now_ms()
    clock.advance(ms=500)
    step_ms = steps.notice()
    assert not steps.is_after(step_ms, before_ms)
    assert steps.is_after(step_ms, after_ms)

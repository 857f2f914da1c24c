"""How late the event loop is."""

import asyncio
import time

import pytest

from kappamq.broker import loop_lag
from kappamq.broker.loop_lag import WINDOW_SAMPLES, LoopLag


def test_a_pause_of_the_loop_is_seen() -> None:
    async def main() -> LoopLag:
        lag = LoopLag()
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(lag.sample_forever())
            await asyncio.sleep(0.05)
            time.sleep(0.1)  # The pause.
            await asyncio.sleep(0.05)
            sampling.cancel()
        return lag

    figures = asyncio.run(main()).figures()
    assert figures.samples >= 2
    assert figures.max_ms >= 80
    assert figures.p99_9_ms >= 80


def test_quantiles_are_at_most_an_eighth_too_high() -> None:
    lag = LoopLag()
    for number in range(1, 1001):
        lag.note(number / 1000)
    figures = lag.figures()
    assert figures.samples == 1000
    assert 500 <= figures.p50_ms <= 500 * 1.126
    assert 990 <= figures.p99_ms <= 1000
    assert figures.max_ms == 1000


@pytest.mark.parametrize("late", [0.0, -1.0, 1e-6, 7e-6, 8e-6, 9e-6, 1e9])
def test_any_duration_has_a_bucket(late: float) -> None:
    lag = LoopLag()
    lag.note(late)
    assert lag.figures().samples == 1


def test_a_bucket_ends_where_the_next_begins() -> None:
    for micros in (1, 7, 8, 9, 15, 16, 17, 1000, 123_456, 10_000_000):
        bucket = loop_lag._bucket(micros)
        assert loop_lag._upper_ms(bucket - 1) * 1000 <= micros < loop_lag._upper_ms(bucket) * 1000


def test_old_samples_are_forgotten() -> None:
    lag = LoopLag()
    lag.note(5)
    for _ in range(2 * WINDOW_SAMPLES):
        lag.note(0.001)
    assert lag.figures().max_ms == pytest.approx(1)
    assert lag.figures().samples <= 2 * WINDOW_SAMPLES


def test_a_reset_begins_anew() -> None:
    lag = LoopLag()
    lag.note(5)
    lag.reset()
    assert (lag.figures().samples, lag.figures().max_ms) == (0, 0)

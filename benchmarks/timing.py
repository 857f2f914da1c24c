"""Timing of small pieces of code on a fixed workload: best and median of some rounds, per item."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.results import Json, table

SEED: Final = 20_240_301
ROUNDS: Final = 9
QUICK_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one item takes. The best round has the least noise; the median says how noisy the others were."""

    name: str
    items: int
    rounds: int
    best_ns: float
    median_ns: float

    @property
    def per_second(self) -> float:
        return 1e9 / self.best_ns if self.best_ns else 0.0


def measure(name: str, work: Callable[[], int], *, rounds: int = ROUNDS) -> Timing:
    """Call `work` once unmeasured and then `rounds` times; it returns how many items it has handled each time."""
    items = work()
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        elapsed = [_elapsed_ns(work) / items for _ in range(rounds)]
    finally:
        if was_collecting:
            gc.enable()
    return Timing(name=name, items=items, rounds=rounds, best_ns=min(elapsed), median_ns=statistics.median(elapsed))


def report(timings: list[Timing]) -> Json:
    """The JSON form of some timings."""
    return {"timings": [{**asdict(timing), "per_second": round(timing.per_second, 1)} for timing in timings]}


def timings_table(timings: list[Timing]) -> str:
    """The same for people."""
    rows = [(t.name, f"{t.best_ns:,.0f}", f"{t.median_ns:,.0f}", f"{t.per_second:,.0f}") for t in timings]
    return table(("work", "best ns", "median ns", "per second"), rows)


def _elapsed_ns(work: Callable[[], int]) -> int:
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start

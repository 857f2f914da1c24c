"""The clock port: everything that needs the time asks an object it was given."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch: may step, for time stamps only."""

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and durations."""


def elapsed_ms(clock: Clock) -> int:
    """Milliseconds that never go back, for durations in the unit of time stamps."""
    return int(clock.monotonic() * 1000)


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves when told, for tests."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, *, ms: int) -> None:
        """Let time pass."""
        self._now_ms += ms
        self._elapsed_ms += ms

    def step(self, *, ms: int) -> None:
        """Set the wall clock forward or back without letting time pass."""
        self._now_ms += ms

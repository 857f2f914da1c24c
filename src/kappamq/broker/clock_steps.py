"""Noticing that somebody set the wall clock, by holding it against the clock that never jumps."""

from typing import Final

from kappamq.clock import Clock, elapsed_ms

STEP_MS: Final = 1000
"""A difference between the two clocks that grows by more than this between two looks is a step; less is slewing."""


class ClockSteps:
    """Remembers how far the wall clock was from the monotonic one at the last look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._skew_ms = self._skew()

    def notice(self) -> int:
        """By how many ms the wall clock stepped since the last look; 0 when it did not."""
        skew_ms = self._skew()
        step_ms, self._skew_ms = skew_ms - self._skew_ms, skew_ms
        return step_ms if abs(step_ms) > STEP_MS else 0

    def is_after(self, step_ms: int, stored_at_ms: int) -> bool:
        """Whether a record with this store time was stored after the step that has just been noticed."""
        now_ms = self._clock.now_ms()
        return abs(stored_at_ms - now_ms) < abs(stored_at_ms + step_ms - now_ms)

    def _skew(self) -> int:
        return self._clock.now_ms() - elapsed_ms(self._clock)

"""How late the event loop is: everything a broker does waits for it, so its pauses are everybody's pauses."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

SAMPLE_SECONDS: Final = 0.01
"""How often the loop is asked. A shorter pause than this may pass unseen; longer ones are seen by their end."""
WINDOW_SAMPLES: Final = 6000
"""About a minute: the figures are those of the last one or two."""

_STEPS: Final = 8
"""Buckets for each doubling: a figure is at most an eighth too high."""
_BUCKETS: Final = 28 * _STEPS
"""Up to four minutes."""


@dataclass(frozen=True, slots=True)
class LagFigures:
    """Milliseconds that the loop was late, over some samples."""

    samples: int
    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    max_ms: float


class LoopLag:
    """Samples the event loop that it runs on; some microseconds for each sample."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._now = [0] * _BUCKETS
        self._before = [0] * _BUCKETS
        self._samples = 0
        self._most = self._most_before = 0.0

    async def sample_forever(self) -> None:
        """Until cancelled."""
        while True:
            # Not the loop's own clock: that one stands still while the loop does.
            due = time.monotonic() + SAMPLE_SECONDS
            await asyncio.sleep(SAMPLE_SECONDS)
            self.note(max(0.0, time.monotonic() - due))

    def note(self, late_seconds: float) -> None:
        """Take down one sample."""
        self._now[_bucket(int(late_seconds * 1e6))] += 1
        self._most = max(self._most, late_seconds)
        self._samples += 1
        if self._samples >= WINDOW_SAMPLES:
            self._before, self._now = self._now, [0] * _BUCKETS
            self._most_before, self._most = self._most, 0.0
            self._samples = 0

    def figures(self) -> LagFigures:
        counts = [now + before for now, before in zip(self._now, self._before)]
        samples = sum(counts)
        most_ms = max(self._most, self._most_before) * 1000
        p50, p99, p99_9 = (min(_quantile(counts, samples, share), most_ms) for share in (0.5, 0.99, 0.999))
        return LagFigures(samples, p50, p99, p99_9, most_ms)


def _bucket(micros: int) -> int:
    """Number of the bucket of a duration: linear up to 8 µs, then eight for each doubling."""
    if micros < _STEPS:
        return max(micros, 0)
    shift = micros.bit_length() - _STEPS.bit_length()
    return min((shift + 1) * _STEPS + (micros >> shift) - _STEPS, _BUCKETS - 1)


def _upper_ms(bucket: int) -> float:
    """End of a bucket."""
    if bucket < _STEPS:
        return (bucket + 1) / 1000
    shift = bucket // _STEPS - 1
    return ((bucket % _STEPS + _STEPS + 1) << shift) / 1000


def _quantile(counts: list[int], samples: int, share: float) -> float:
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= share * samples:
            return _upper_ms(bucket)
    return 0.0

"""Which messages of a queue were verified since the start, though another process wrote them."""

from bisect import bisect_right
from typing import Final

RANGES_MAX: Final = 256
"""Ranges of one queue that are remembered: readers go forward, so each of them makes one."""


class VerifiedRanges:
    """Ranges of queue offsets, in order and apart from each other.

    Only the owner adds. Readers in other threads see the state before or after, as it is replaced as a whole.
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: tuple[list[int], list[int]] = ([], [])
        """Starts and ends."""

    def add(self, start: int, end: int) -> None:
        """Remember a range; what it touches becomes one with it."""
        if end <= start:
            return
        kept = []
        for known_start, known_end in zip(*self._ranges):
            if known_end < start or known_start > end:
                kept.append((known_start, known_end))
            else:
                start, end = min(start, known_start), max(end, known_end)
        if len(kept) >= RANGES_MAX:
            kept.remove(min(kept, key=lambda each: each[1] - each[0]))  # The cheapest to verify once more.
        kept.append((start, end))
        kept.sort()
        self._ranges = ([each[0] for each in kept], [each[1] for each in kept])

    def end_of(self, queue_offset: int) -> int:
        """End of the range that holds an offset; the offset itself when none does. [any thread]"""
        starts, ends = self._ranges
        index = bisect_right(starts, queue_offset) - 1
        return max(queue_offset, ends[index]) if index >= 0 else queue_offset

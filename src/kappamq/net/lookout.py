"""When to look for the next request for some microseconds before the processor may sleep.

A client that waits for each answer before it asks again sends its next request within tens of microseconds. Waking a
processor that has gone to sleep meanwhile takes as long, most of all on virtual machines: half of such a round trip is
made of that. So after many turns with a single request each, the broker looks a little longer, and goes on doing so
while that finds something. Nothing else makes it look: with several requests under way a turn takes what has gathered,
and who sends rarely is not waited for. A look that finds nothing doubles the number of turns before the next one.
"""

import resource
from typing import Final

LOOK_MICROSECONDS: Final = 60
"""The longest look; the event loop's other work waits for it."""
TURNS_MIN: Final = 32
"""Turns of a single request in a row before the first look."""
TURNS_MAX: Final = 65_536


class Lookout:
    """Told about each turn of one event loop; says how long to look for the next."""

    def __init__(self) -> None:
        self._singles = 0
        self._wanted = TURNS_MIN
        self._displaced = 0

    @property
    def microseconds(self) -> int:
        """How long to look now; mostly not at all."""
        return LOOK_MICROSECONDS if self._singles >= self._wanted else 0

    def found(self, *, is_single: bool) -> None:
        """A turn has brought something: one request of one connection, or more."""
        if not is_single:
            self._singles = 0
            return
        if self._singles >= self._wanted:
            self._wanted = TURNS_MIN
        self._singles += 1

    def missed(self) -> None:
        """A look has found nothing: the peer is slower than that, for now."""
        self._singles = 0
        self._wanted = min(self._wanted * 2, TURNS_MAX)

    def is_alone(self) -> bool:
        """Whether nobody else has wanted this processor since the last look: it would be taken from them."""
        displaced = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        before, self._displaced = self._displaced, displaced
        return displaced == before or self._singles == self._wanted  # The first look knows of none before it.

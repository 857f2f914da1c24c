"""What can be handed out at once: messages in memory that need no verifying, found without touching the disk.

Messages that were written lately are taken to be in memory; of others somebody else may know (`on_cold_read`), or the
system is asked. Who asks for one message of a queue will ask for those behind it, so what was found is kept as a window
for a moment: the next pulls are answered from that. Windows are dropped as soon as entries of their queue change, all
of them after a second or when the log has grown, and there are only so many.
"""

from collections.abc import Callable
from typing import Final

from kappamq.clock import Clock
from kappamq.kernel import PullWindow, record_runs
from kappamq.kernel.reference import PULL_BLOCK
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import UNIT, ConsumeQueue
from kappamq.store.reading import HotEntries
from kappamq.store.segment import PAGE_BYTES, Segment
from kappamq.store.settings import UNIT_BYTES
from kappamq.store.verified import VerifiedRanges

WINDOWS_MAX: Final = 1024
"""Windows that are kept, of some 10 KB each."""
WINDOW_SECONDS: Final = 1.0
WINDOW_LOG_BYTES: Final = 32 * 1024 * 1024
"""When the log has grown by so much, what was in memory is looked at again."""
LOOK_BYTES_MAX: Final = 1024 * 1024
"""Records that the system is asked about at once."""


class HotReads:
    """Looks for one store. Owned by the store's owner."""

    def __init__(self, log: CommitLog, *, hot_bytes: int, clock: Clock) -> None:
        self._log = log
        self._hot_bytes = hot_bytes
        self._clock = clock
        self.trusted_from = 0
        """Log offset from which nothing needs verifying."""
        self.session_start = 0
        """Log offset from which this process wrote."""
        self.verified: dict[tuple[str, int], VerifiedRanges] = {}
        """Entries that another process wrote and that were held against their records."""
        self.on_cold_read: Callable[[str, int, int, int], int | None] | None = None
        """Asked about somebody who is far behind and wants [start, end) of a queue: up to where that was brought into
        memory lately, `start` when nobody knows, `None` when it has to wait."""
        self._with_windows: dict[ConsumeQueue, None] = {}
        self._windows = 0
        self._since = 0.0
        self._log_since = 0

    def is_behind(self, queue: ConsumeQueue | None, start: int) -> bool:
        """Whether messages from `start` on are probably not in memory, or were not verified at the start."""
        if queue is None or start >= queue.end or start < queue.min_offset:
            return False
        if start < queue.warm_from:
            return True
        if self._log.written - self.session_start <= self._hot_bytes:
            return False
        unit = queue.unit(start)
        return unit is not None and unit[0] < self._hot_from

    @property
    def _hot_from(self) -> int:
        """Log offset from which on records are taken to be in memory."""
        return max(self.session_start, self._log.written - self._hot_bytes)

    def entries(self, queue: ConsumeQueue | None, start: int, count: int, *, counts: bool = True) -> HotEntries | None:
        """What a fetch of everything would hand out at once; `None`: look closer. `counts` asks `on_cold_read`."""
        window = self._look(queue, start, count, ahead=0, counts=counts) if queue is not None else None
        if queue is None or window is None:
            return None
        return HotEntries(window.units, window.log, window.log_start, window.lowest, queue.min_offset, queue.end)

    def open_window(self, queue: ConsumeQueue, start: int, count: int, *, count_max: int) -> PullWindow | None:
        """A window for a pull of so many messages and for those that follow it, of up to `count_max` each.

        It is among the windows of the queue then. `None`: look closer. Call `forget_old` before one of them is used.
        """
        ahead = PULL_BLOCK - start % PULL_BLOCK + count_max - count
        window = self._look(queue, start, count, ahead=max(ahead, 0), counts=True)
        if window is None or not _is_within(window.units, window.log_start + len(window.log)):
            return None
        if self._windows >= WINDOWS_MAX:
            self.forget_windows()
        self._windows += 1
        self._with_windows[queue] = None
        queue.windows[start // PULL_BLOCK] = window
        return window

    def forget_topic(self, topic: str) -> None:
        """Its queues are gone."""
        for key in [key for key in self.verified if key[0] == topic]:
            del self.verified[key]
        self.forget_windows()

    def forget_old(self) -> None:
        """Drop windows whose records may not be in memory any more."""
        now = self._clock.monotonic()
        if now - self._since > WINDOW_SECONDS or self._log.written - self._log_since > WINDOW_LOG_BYTES:
            self.forget_windows()
            self._since = now
            self._log_since = self._log.written

    def forget_windows(self) -> None:
        """Drop all windows: what they know may have changed."""
        for queue in self._with_windows:
            queue.windows.clear()
        self._with_windows.clear()
        self._windows = 0

    def _look(self, queue: ConsumeQueue, start: int, count: int, *, ahead: int, counts: bool) -> PullWindow | None:
        """Entries from `start` on: those that are wanted, and perhaps some that are asked for next."""
        end = queue.end
        if not queue.min_offset <= start < end:
            return None
        wanted = min(count, end - start)
        limit = end
        lowest = self.trusted_from
        if start < queue.warm_from:
            verified = self.verified.get((queue.topic, queue.queue_id))
            limit = verified.end_of(start) if verified is not None else start
            if limit <= start:
                return None
            lowest = 0
        units = queue.units(start, min(wanted + ahead, limit - start))
        if not units:
            return None
        log_offset = int.from_bytes(units[:8], "big")
        segment = self._log.segment_at(log_offset)
        if segment is None or log_offset < lowest:
            return None
        # A pull that goes on in the next segment is not for us; one that finds less than it wants here is.
        is_final = len(units) < wanted * UNIT_BYTES
        units = _of_segment(units, segment, at_least=wanted)
        is_cold = log_offset < self._hot_from
        if is_cold:
            ready = start
            if counts and self.on_cold_read is not None:
                stop = start + len(units) // UNIT_BYTES
                found = self.on_cold_read(queue.topic, queue.queue_id, start, stop)
                if found is None:
                    return None
                ready = found
            units = units[: (ready - start) * UNIT_BYTES] if ready > start else _cached(segment, units, wanted)
            if not units:
                return None
            is_final = len(units) < wanted * UNIT_BYTES
        return PullWindow(
            start,
            units,
            segment.map,
            log_start=segment.start,
            lowest=lowest,
            is_final=is_final,
            is_cold=is_cold,
        )


def _of_segment(units: bytes, segment: Segment, *, at_least: int) -> bytes:
    """Entries up to the first that is asked for and not wanted here: its record lies in another segment."""
    while len(units) > at_least * UNIT_BYTES and not _is_within(units, segment.end):
        units = units[: max(at_least, len(units) // UNIT_BYTES // 2) * UNIT_BYTES]
    return units


def _is_within(units: bytes, log_end: int) -> bool:
    last: int = UNIT.unpack_from(units, len(units) - UNIT_BYTES)[0]
    return last < log_end


def _cached(segment: Segment, units: bytes, wanted: int) -> bytes:
    """The first of these entries whose records are in memory, as far as can be told at once; none when unsure.

    All, or those that are wanted; fewer where records are very large.
    """
    while True:
        runs = record_runs(
            units,
            start=segment.start,
            end=segment.end,
            gap_bytes=PAGE_BYTES,
            run_bytes_max=segment.end - segment.start,
        )
        count = len(units) // UNIT_BYTES
        if sum(size for _log_offset, size in runs) <= LOOK_BYTES_MAX:
            if segment.are_cached(runs):
                return units
            if count <= wanted:
                return b""
            count = wanted
        elif count == 1:
            return b""
        else:
            count = max(wanted, count // 2) if count > wanted else count // 2
        units = units[: count * UNIT_BYTES]

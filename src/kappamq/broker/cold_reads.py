"""Messages that are not in memory, or not verified yet, are got ready by threads, ahead of who reads them.

    pull finds nothing ready ─▶ load(): waits for a window of messages ─▶ pulls are answered at once, within the window
    a pull gets near its end ─▶ ahead(): the next window is under way before anybody asks for it

Whoever catches up reads a queue in order. So one reader is a stream of windows, each loaded and verified in one go by a
thread that needs the interpreter for hardly any of it; the event loop only hands out what is ready. How many windows
are under way at once is limited, those that somebody waits for come first, and each is small: a disk that is busy
with reading for long would keep everybody waiting who wants to write.

Who catches up asks again as soon as it is answered, and would take all that the event loop has to give. While others
send, such pulls are therefore counted: so many in each turn of some milliseconds, fewer when the event loop gets late,
more when it does not. Those above wait for the next turn.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from kappamq.kernel import VERIFIER

WINDOW_ENTRIES: Final = 2048 if VERIFIER == "compiled" else 32
"""Messages of one window. Plain Python verifies about 30 in a millisecond, and holds up everybody meanwhile."""
PAUSE_SECONDS: Final = 0.0 if VERIFIER == "compiled" else 0.002
"""What a thread that had to use the interpreter leaves to others after each window."""
UNDER_WAY_MAX: Final = 2 if VERIFIER == "compiled" else 1
STREAMS_MAX: Final = 4096
"""Readers that are remembered; of the others each window has to be waited for."""
STREAMS_PER_QUEUE_MAX: Final = 8
TURN_SECONDS: Final = 0.005
PULLS_MIN: Final = 6
PULLS_MAX: Final = 28
"""Pulls of one turn beside others who send."""
ALLOWANCE_MAX: Final = 1_000_000
"""Pulls of one turn while nobody else sends: more than there can be."""
LATE_SECONDS: Final = 0.002
"""Lateness of a turn from which on there are fewer pulls in the next one."""
FEWER: Final = 0.7
READY_SECONDS: Final = 5.0
"""So long after it was loaded a window is taken to be in memory still; after that somebody has to look."""
SENDING_SECONDS: Final = 0.5
"""So long after the log has grown others are taken to be sending."""


class ColdStore(Protocol):
    """What getting messages ready needs of the store."""

    def warm(self, topic: str, queue_id: int, start: int, *, count: int) -> int: ...
    def mark_verified(self, topic: str, queue_id: int, start: int, end: int) -> None: ...
    @property
    def written(self) -> int: ...


@dataclass(slots=True, eq=False)
class _Stream:
    """One reader of one queue: messages in [start, end) are ready; `loading` is done when those behind are."""

    topic: str
    queue_id: int
    start: int
    end: int
    since: float = 0.0
    """When the older part of what is ready came into memory."""
    loaded_at: float = 0.0
    loading: asyncio.Future[None] | None = None
    is_started: bool = False


class ColdReads:
    """Streams of all readers that are behind. Owned by the event loop; only the loading itself runs in threads."""

    def __init__(self, store: ColdStore) -> None:
        self._store = store
        self._streams: dict[tuple[str, int], list[_Stream]] = {}
        self._wanted: deque[_Stream] = deque()
        self._ahead: deque[_Stream] = deque()
        self._under_way = 0
        self._turn: asyncio.TimerHandle | None = None
        self._pulls = self._pulls_left = PULLS_MAX // 4
        self._is_limited = False
        self._now = 0.0
        """When the turn began."""
        self._written = store.written
        self._written_at = -1.0
        self._waiting: deque[Callable[[], None]] = deque()
        self._granted = 0

    def may_read(self, topic: str, queue_id: int, start: int, end: int) -> int | None:
        """`None` when a pull of [start, end) that is behind has to wait for its turn.

        Otherwise up to where that is known to be in memory, `start` when it is not; and what follows is made ready.
        """
        if not self._take():
            return None
        for stream in self._streams.get((topic, queue_id), ()):
            if stream.start <= start < stream.end:
                self._extend(stream, min(end, stream.end))
                return stream.end if self._now - stream.since < READY_SECONDS else start
        return start

    async def turn(self) -> None:
        """Return when it is the turn of a pull that is behind."""
        if not self._take():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_turn(lambda: None if future.done() else future.set_result(None))
            await future

    @property
    def must_wait(self) -> bool:
        """Whether no pull that is behind may be answered before the next turn."""
        return self._is_limited and self._pulls_left <= 0

    @property
    def allowance(self) -> int:
        """How many pulls that are behind may be answered before the next turn."""
        return max(self._pulls_left, 0) if self._is_limited else ALLOWANCE_MAX

    def took(self, pulls: int) -> None:
        """So many of those were answered without asking `may_read`."""
        if pulls > 0:
            if self._turn is None:
                self._begin_turn()
            self._pulls_left -= pulls

    def when_turn(self, call: Callable[[], None]) -> None:
        """Call back when it is the turn of a pull that has to wait; it counts then already (see `grant`)."""
        self._waiting.append(call)
        if self._turn is None:
            self._begin_turn()

    def grant(self, pulls: int) -> None:
        """Let so many pulls pass `may_read` that were called back; the caller takes back what is left with 0."""
        self._granted = pulls

    def _take(self) -> bool:
        if self._granted > 0:
            self._granted -= 1
            return True
        if self._turn is None:
            self._begin_turn()
        self._pulls_left -= 1
        return not self._is_limited or self._pulls_left >= 0

    def _begin_turn(self) -> None:
        self._now = time.monotonic()
        self._turn = asyncio.get_running_loop().call_later(TURN_SECONDS, self._end_turn, self._now + TURN_SECONDS)

    def _end_turn(self, due: float) -> None:
        self._now = now = time.monotonic()
        if self._store.written != self._written:
            self._written, self._written_at = self._store.written, now
        self._is_limited = now - self._written_at < SENDING_SECONDS
        if now - due > LATE_SECONDS:
            self._pulls = max(PULLS_MIN, int(self._pulls * FEWER))
        else:
            self._pulls = min(PULLS_MAX, self._pulls + 1)
        was_used = self._pulls_left < self._pulls
        self._pulls_left = self._pulls
        self._turn = None
        while self._waiting and not self.must_wait:
            self._pulls_left -= 1
            self._waiting.popleft()()
        if was_used or self._waiting:
            self._begin_turn()

    async def load(self, topic: str, queue_id: int, start: int) -> None:
        """Return when the message at `start` and some behind it are ready, or it is known that they cannot be."""
        loading = self._loading(topic, queue_id, start)
        # Others may wait for the same window: who is cancelled must not cancel it.
        await asyncio.wait([loading])

    def ahead(self, topic: str, queue_id: int, position: int) -> None:
        """Somebody has read a queue up to `position`: see to it that what follows will be ready."""
        for stream in self._streams.get((topic, queue_id), ()):
            if stream.start <= position <= stream.end:
                self._extend(stream, position)
                return

    def _extend(self, stream: _Stream, position: int) -> None:
        if stream.loading is None and stream.end - position <= WINDOW_ENTRIES:
            stream.loading = asyncio.get_running_loop().create_future()
            self._ahead.append(stream)
            self._start_next()

    def _loading(self, topic: str, queue_id: int, start: int) -> asyncio.Future[None]:
        streams = self._streams.setdefault((topic, queue_id), [])
        for stream in streams:
            if stream.loading is not None and stream.end <= start < stream.end + WINDOW_ENTRIES:
                if not stream.is_started and stream not in self._wanted:
                    self._wanted.append(stream)  # It is in both lines now; the first of them counts.
                return stream.loading
        loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = _Stream(topic, queue_id, start, start, loading=loading)
        # Who has jumped, or was overtaken by what it asked for, goes on here.
        streams[:] = [each for each in streams if each.loading is not None or not each.start <= start <= each.end]
        streams.append(stream)
        self._forget_oldest(streams)
        self._wanted.append(stream)
        self._start_next()
        return loading

    def _forget_oldest(self, streams: list[_Stream]) -> None:
        """What is loading for a forgotten stream still gets done."""
        if len(streams) > STREAMS_PER_QUEUE_MAX:
            del streams[0]
        if len(self._streams) > STREAMS_MAX:
            del self._streams[next(iter(self._streams))]

    def _start_next(self) -> None:
        while self._under_way < UNDER_WAY_MAX and (self._wanted or self._ahead):
            stream = (self._wanted or self._ahead).popleft()
            if stream.loading is None or stream.is_started:
                continue
            stream.is_started = True
            self._under_way += 1
            loop = asyncio.get_running_loop()
            job = loop.run_in_executor(None, self._warm, stream.topic, stream.queue_id, stream.end)
            job.add_done_callback(partial(self._loaded, stream))

    def _warm(self, topic: str, queue_id: int, start: int) -> int:
        """In a thread."""
        end = self._store.warm(topic, queue_id, start, count=WINDOW_ENTRIES)
        if PAUSE_SECONDS:
            time.sleep(PAUSE_SECONDS)
        return end

    def _loaded(self, stream: _Stream, done: "asyncio.Future[int]") -> None:
        self._under_way -= 1
        loading, stream.loading, stream.is_started = stream.loading, None, False
        # A fault of the disk shows again, and is answered, when the pull itself reads.
        end = done.result() if not done.cancelled() and done.exception() is None else stream.end
        if end > stream.end:
            self._store.mark_verified(stream.topic, stream.queue_id, stream.end, end)
            now = time.monotonic()
            stream.since, stream.loaded_at = stream.loaded_at or now, now
            stream.start, stream.end = max(stream.start, stream.end - WINDOW_ENTRIES), end
        else:
            self._forget(stream)
        if loading is not None and not loading.done():
            loading.set_result(None)
        self._start_next()

    def _forget(self, stream: _Stream) -> None:
        streams = self._streams.get((stream.topic, stream.queue_id), [])
        if stream in streams:
            streams.remove(stream)
            if not streams:
                del self._streams[stream.topic, stream.queue_id]

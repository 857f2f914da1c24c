"""Messages that are not in memory, or not verified yet, are got ready by threads, ahead of who reads them.

    pull finds nothing ready ─▶ load(): waits for a window of messages ─▶ pulls are answered at once, within the window
    a pull gets near its end ─▶ ahead(): the next window is under way before anybody asks for it

Whoever catches up reads a queue in order. So one reader is a stream of windows, each loaded and verified in one go by a
thread that needs the interpreter for hardly any of it; the event loop only hands out what is ready. How many windows
are under way at once is limited, those that somebody waits for come first, and each is small: a disk that is busy
with reading for long would keep everybody waiting who wants to write.
"""

import asyncio
import time
from collections import deque
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


class ColdStore(Protocol):
    """What getting messages ready needs of the store."""

    def warm(self, topic: str, queue_id: int, start: int, *, count: int) -> int: ...
    def mark_verified(self, topic: str, queue_id: int, start: int, end: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Stream:
    """One reader of one queue: messages in [start, end) are ready; `loading` is done when those behind are."""

    topic: str
    queue_id: int
    start: int
    end: int
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

    async def load(self, topic: str, queue_id: int, start: int) -> None:
        """Return when the message at `start` and some behind it are ready, or it is known that they cannot be."""
        loading = self._loading(topic, queue_id, start)
        # Others may wait for the same window: who is cancelled must not cancel it.
        await asyncio.wait([loading])

    def ahead(self, topic: str, queue_id: int, position: int) -> None:
        """Somebody has read a queue up to `position`: see to it that what follows will be ready."""
        for stream in self._streams.get((topic, queue_id), ()):
            if stream.start <= position <= stream.end:
                if stream.loading is None and stream.end - position <= WINDOW_ENTRIES:
                    stream.loading = asyncio.get_running_loop().create_future()
                    self._ahead.append(stream)
                    self._start_next()
                return

    def _loading(self, topic: str, queue_id: int, start: int) -> asyncio.Future[None]:
        streams = self._streams.setdefault((topic, queue_id), [])
        for stream in streams:
            if stream.loading is not None and stream.end <= start < stream.end + WINDOW_ENTRIES:
                if not stream.is_started and stream not in self._wanted:
                    self._wanted.append(stream)  # It is in both lines now; the first of them counts.
                return stream.loading
        loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = _Stream(topic, queue_id, start, start, loading)
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

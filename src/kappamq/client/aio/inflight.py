"""How many sends wait for their outcome, and who waits until there are fewer."""

import asyncio
from collections import deque


class InFlight:
    """Sends under way, counted against a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self.count >= self.limit

    def begin(self, count: int) -> None:
        self.count += count

    def end(self, count: int) -> None:
        """The outcome of so many is known."""
        self.count -= count
        while self._queue and self.count < self.limit:
            waiter = self._queue.popleft()
            if not waiter.done():
                self.count += 1
                waiter.set_result(None)
        if self._waiting:
            self._wake()

    async def enter(self) -> None:
        """Begin one, in the order of the calls: whoever ends one at the limit hands the place on."""
        if self.count < self.limit and not self._queue:
            self.count += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.end(1)
            raise

    async def room(self) -> None:
        """Wait until one more may begin."""
        while self.is_full:
            await self.until_below(self.limit)

    async def none_left(self) -> None:
        while self.count:
            await self.until_below(1)

    async def until_below(self, count: int) -> None:
        """Wait until there were fewer than that: another may have begun since."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, waiter))
        await waiter

    def _wake(self) -> None:
        still: list[tuple[int, asyncio.Future[None]]] = []
        for count, waiter in self._waiting:
            if self.count >= count:
                still.append((count, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiting = still

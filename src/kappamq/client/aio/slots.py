"""So many at once, where the number may change while they run."""

import asyncio
from types import TracebackType


class Slots:
    """A semaphore whose size can be changed. Making it smaller lets those who are in finish first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._taken < self._size)
            self._taken += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._changed:
            self._taken -= 1
            self._changed.notify()

    async def resize(self, size: int) -> None:
        async with self._changed:
            self._size = size
            self._changed.notify_all()

"""Tasks with an owner: they start in its group and end with it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class OwnedTasks:
    """A task group that ends by cancelling what still runs. Open and close it in the same task.

    A task that fails stops the whole group and cancels the owner, as in any `asyncio.TaskGroup`: services handle the
    errors they expect themselves.
    """

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()

    def start(self, work: Coroutine[Any, Any, Value], *, name: str) -> asyncio.Task[Value]:
        """Run `work` until it ends or the owner closes."""
        assert self._group is not None, "tasks start after open()"
        task = self._group.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel everything and wait for it. Raises the failures of tasks, if there were any."""
        group, self._group = self._group, None
        if group is None:
            return
        for task in list(self._running):
            task.cancel()
        # No exception is passed on: one of the owner's body must reach the user as it is, not in an exception group.
        await group.__aexit__(None, None, None)

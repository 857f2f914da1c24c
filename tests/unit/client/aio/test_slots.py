"""A semaphore that changes its size."""

from __future__ import annotations

import asyncio

from kappamq.client.aio.slots import Slots
from tests.unit.client.aio.fake_cluster import eventually


async def test_growing_lets_more_in_and_shrinking_fewer() -> None:
    slots, inside, most, leave = Slots(2), 0, 0, asyncio.Semaphore(0)

    async def visit() -> None:
        nonlocal inside, most
        async with slots:
            inside += 1
            most = max(most, inside)
            await leave.acquire()
            inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(visit())
        await eventually(lambda: inside == 2)
        await slots.resize(4)
        await eventually(lambda: inside == 4)
        await slots.resize(1)
        for _ in range(3):
            leave.release()
        await eventually(lambda: inside == 1)
        most = 0
        for _ in range(7):
            leave.release()
    assert (inside, most) == (0, 1)

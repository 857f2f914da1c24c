"""Counting what is under way."""

import asyncio

from kappamq.client.aio.inflight import InFlight


async def test_places_are_handed_on_in_order() -> None:
    inflight = InFlight(2)
    entered: list[int] = []

    async def enter(number: int) -> None:
        await inflight.enter()
        entered.append(number)

    tasks = [asyncio.get_running_loop().create_task(enter(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert entered == [0, 1]
    tasks[2].cancel()
    inflight.end(1)
    tasks[3].cancel()  # Its turn has come already: the place goes on to the next.
    await asyncio.gather(*tasks[2:4], return_exceptions=True)
    await asyncio.sleep(0)
    assert entered == [0, 1, 4]
    assert inflight.count == 2
    inflight.end(2)
    await inflight.none_left()

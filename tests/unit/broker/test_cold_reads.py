"""Windows of messages, got ready ahead of who reads."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial, wraps

from kappamq.broker import cold_reads
from kappamq.broker.cold_reads import (
    PULLS_MAX,
    STREAMS_PER_QUEUE_MAX,
    TURN_SECONDS,
    UNDER_WAY_MAX,
    WINDOW_ENTRIES,
    ColdReads,
)


class Shelf:
    """A store with queues of one length, which notes what is asked for; threads wait until `open`."""

    def __init__(self, end: int = 100 * WINDOW_ENTRIES, bad_at: int = 1 << 60) -> None:
        self.end = end
        self.bad_at = bad_at
        self.warmed: list[tuple[int, int]] = []
        self.verified: list[tuple[int, int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.written = 0
        self.under_way = 0
        self.most = 0

    def warm(self, topic: str, queue_id: int, start: int, *, count: int) -> int:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.warmed.append((queue_id, start))
        assert self.gate.wait(30)
        self.under_way -= 1
        if topic == "broken":
            raise OSError("the disk has a fault")
        return max(start, min(start + count, self.end, self.bad_at))

    def mark_verified(self, topic: str, queue_id: int, start: int, end: int) -> None:
        self.verified.append((queue_id, start, end))


def in_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


@in_loop
async def test_a_reader_waits_once_and_what_follows_is_ready_before_it_asks() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    await cold.load("t", 0, 7)
    assert shelf.verified == [(0, 7, 7 + WINDOW_ENTRIES)]
    cold.ahead("t", 0, 39)
    await until(lambda: len(shelf.verified) == 2)
    assert shelf.verified[1] == (0, 7 + WINDOW_ENTRIES, 7 + 2 * WINDOW_ENTRIES)
    cold.ahead("t", 0, 6 + WINDOW_ENTRIES)  # More than a window is ready.
    cold.ahead("t", 1, 7)  # Nobody reads that one.
    await asyncio.sleep(0.01)
    assert len(shelf.warmed) == 2
    cold.ahead("t", 0, 8 + WINDOW_ENTRIES)
    await until(lambda: len(shelf.verified) == 3)


@in_loop
async def test_many_who_want_the_same_window_share_it_and_one_may_go_away() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    shelf.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(cold.load("t", 0, 0))
        others = [tasks.create_task(cold.load("t", 0, start)) for start in (0, 5, WINDOW_ENTRIES - 1)]
        await until(lambda: bool(shelf.warmed))
        first.cancel()
        await asyncio.sleep(0)
        shelf.gate.set()
    assert shelf.warmed == [(0, 0)]
    assert all(other.done() and not other.cancelled() for other in others)


@in_loop
async def test_few_windows_are_under_way_and_those_that_are_waited_for_come_first() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    for queue_id in range(6):
        await cold.load("t", queue_id, 0)
    shelf.gate.clear()
    shelf.warmed.clear()
    for queue_id in range(6):
        cold.ahead("t", queue_id, WINDOW_ENTRIES)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cold.load("t", 5, WINDOW_ENTRIES))  # Was the last in line.
        tasks.create_task(cold.load("t", 9, 0))
        await until(lambda: len(shelf.warmed) == UNDER_WAY_MAX)
        shelf.gate.set()
    await until(lambda: len(shelf.verified) == 6 + 7)
    assert shelf.most <= UNDER_WAY_MAX
    begun = [queue_id for queue_id, _ in shelf.warmed]
    assert sorted(begun) == [0, 1, 2, 3, 4, 5, 9]
    assert set(begun[UNDER_WAY_MAX : UNDER_WAY_MAX + 2]) == {5, 9}


@in_loop
async def test_damage_and_faults_let_the_pull_go_on_to_find_out_itself() -> None:
    shelf = Shelf(bad_at=3)
    cold = ColdReads(shelf)
    await cold.load("t", 0, 0)
    assert shelf.verified == [(0, 0, 3)]
    await cold.load("t", 0, 3)
    await cold.load("broken", 0, 0)
    assert shelf.verified == [(0, 0, 3)]
    cold.ahead("t", 0, 3)
    await asyncio.sleep(0.01)
    assert not [key for key in cold._streams if key[0] == "broken"]


@in_loop
async def test_readers_are_remembered_up_to_a_limit() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    for number in range(3 * STREAMS_PER_QUEUE_MAX):
        await cold.load("t", 0, number * 3 * WINDOW_ENTRIES)
    assert len(cold._streams["t", 0]) == STREAMS_PER_QUEUE_MAX
    limit, cold_reads.STREAMS_MAX = cold_reads.STREAMS_MAX, 3  # type: ignore[misc]
    try:
        for queue_id in range(9):
            await cold.load("t", queue_id, 0)
    finally:
        cold_reads.STREAMS_MAX = limit  # type: ignore[misc]
    assert len(cold._streams) == 3


@in_loop
async def test_while_nobody_sends_pulls_are_not_counted() -> None:
    cold = ColdReads(Shelf())
    assert all(cold.may_read("t", 0, 0, 1) is not None for _ in range(5 * PULLS_MAX))
    await asyncio.sleep(3 * TURN_SECONDS)
    assert all(cold.may_read("t", 0, 0, 1) is not None for _ in range(5 * PULLS_MAX))


@in_loop
async def test_what_was_loaded_lately_is_known_to_be_in_memory() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    assert cold.may_read("t", 0, 7, 39) == 7  # Nobody knows.
    await cold.load("t", 0, 7)
    assert cold.may_read("t", 0, 7, 39) == 7 + WINDOW_ENTRIES
    await until(lambda: len(shelf.verified) == 2)  # What follows was got ready.
    assert cold.may_read("t", 0, 39, 71) == 7 + 2 * WINDOW_ENTRIES
    assert cold.may_read("t", 0, 6, 39) == 6
    assert cold.may_read("t", 1, 7, 39) == 7
    limit, cold_reads.READY_SECONDS = cold_reads.READY_SECONDS, -1.0  # type: ignore[misc]
    try:
        assert cold.may_read("t", 0, 39, 71) == 39  # That may be long ago.
    finally:
        cold_reads.READY_SECONDS = limit  # type: ignore[misc]


@in_loop
async def test_who_waits_is_called_in_order_and_counts_once() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    assert cold.may_read("t", 0, 0, 1) is not None
    shelf.written += 100
    await until(lambda: cold._is_limited)
    while cold.may_read("t", 0, 0, 1) is not None:
        pass
    assert cold.must_wait
    called: list[int] = []
    after_one_turn: list[tuple[int, bool, bool, bool]] = []

    def look() -> None:
        of_one_turn, must_wait = len(called), cold.must_wait
        cold.grant(1)
        granted, refused = (cold.may_read("t", 0, 0, 1) for _ in range(2))
        after_one_turn.append((of_one_turn, must_wait, granted is not None, refused is None))

    def call(number: int) -> None:
        called.append(number)
        if len(called) == 1:
            # Runs when this turn is over, and before the next one can begin.
            asyncio.get_running_loop().call_soon(look)

    for number in range(2 * PULLS_MAX):
        cold.when_turn(partial(call, number))
    await until(lambda: bool(after_one_turn))
    [(of_one_turn, must_wait, was_granted, was_refused)] = after_one_turn
    assert 0 < of_one_turn <= PULLS_MAX
    assert must_wait  # They have used up this turn.
    assert was_granted
    assert was_refused
    await until(lambda: len(called) == 2 * PULLS_MAX)
    assert called == list(range(2 * PULLS_MAX))


@in_loop
async def test_beside_others_who_send_pulls_take_turns() -> None:
    shelf = Shelf()
    cold = ColdReads(shelf)
    assert cold.may_read("t", 0, 0, 1) is not None
    shelf.written += 100
    await until(lambda: cold._is_limited)
    taken = 0
    while cold.may_read("t", 0, 0, 1) is not None:
        taken += 1
    assert 0 < taken <= PULLS_MAX
    shelf.written += 100
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(cold.turn())
        waiting = [tasks.create_task(cold.turn()) for _ in range(2 * PULLS_MAX)]
        await asyncio.sleep(0)
        gone.cancel()
        assert not any(task.done() for task in waiting)
    await until(lambda: cold._turn is None)  # Without pulls there are no turns.

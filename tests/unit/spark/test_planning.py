import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kappamq.model.message import Queue
from kappamq.spark.planning import (
    Bounds,
    DataLost,
    OffsetRange,
    admit,
    plan_ranges,
    rows_for_bytes,
    split_ranges,
)

A, B, C = (Queue("t", "broker-a", number) for number in range(3))
counts = st.lists(st.integers(0, 1000), min_size=1, max_size=6)


def plan(start: int, end: int, held: Bounds | None, *, fails: bool = True) -> list[tuple[int, int]]:
    found = plan_ranges({A: start}, {A: end}, {A: held} if held else {}, fails_on_loss=fails)
    return [(range_.start, range_.end) for range_ in found.ranges]


def test_a_range_that_is_held() -> None:
    assert plan(3, 9, Bounds(3, 9)) == [(3, 9)]
    assert plan(3, 3, Bounds(5, 9)) == []
    assert plan(0, 0, None) == []


@pytest.mark.parametrize(
    ("start", "end", "held", "message", "rest"),
    [
        (2, 9, Bounds(5, 9), "lost offsets 2 to 5", [(5, 9)]),
        (2, 4, Bounds(5, 9), "lost offsets 2 to 4", []),
        (2, 9, Bounds(0, 6), "ends at 6, but should be read up to 9", [(2, 6)]),
        (8, 9, Bounds(0, 3), "ends at 3, before offset 8", [(0, 3)]),
        (8, 2, Bounds(0, 3), "ends at 3, before offset 8", [(0, 2)]),
        (2, 9, None, "is gone with offsets 2 to 9", []),
    ],
)
def test_losses_are_loud_or_left_out(
    start: int, end: int, held: Bounds | None, message: str, rest: list[tuple[int, int]]
) -> None:
    with pytest.raises(DataLost, match=message):
        plan(start, end, held)
    assert plan(start, end, held, fails=False) == rest


def test_new_queues_are_read_from_their_beginning() -> None:
    held = {A: Bounds(0, 5), B: Bounds(0, 2)}
    found = plan_ranges({A: 5}, {A: 5, B: 2}, held, fails_on_loss=True)
    assert found.ranges == (OffsetRange(B, 0, 2),)
    with pytest.raises(DataLost, match="lost offsets 0 to 1"):
        plan_ranges({}, {B: 2}, {B: Bounds(1, 2)}, fails_on_loss=True)


@given(counts, st.integers(1, 2000))
@example([1, 1, 1, 9], 8)
def test_admission_fills_the_limit_and_never_exceeds_it(backlogs: list[int], rows_max: int) -> None:
    start = {Queue("t", "b", number): 10 * number for number in range(len(backlogs))}
    latest = {queue: start[queue] + backlogs[queue.queue_id] for queue in start}
    end = admit(start, latest, rows_max)
    assert sum(end[queue] - start[queue] for queue in end) == min(rows_max, sum(backlogs))
    assert all(start[queue] <= end[queue] <= latest[queue] for queue in end)
    waiting = [queue for queue in start if backlogs[queue.queue_id]]
    if rows_max >= len(waiting):
        assert all(end[queue] > start[queue] for queue in waiting)


def test_admission_keeps_new_and_shrunk_queues() -> None:
    assert admit({A: 100}, {A: 200, B: 100}, 20) == {A: 110, B: 10}
    assert admit({A: 5, B: 50}, {A: 3, B: 90}, 10) == {A: 3, B: 60}


def test_bytes_become_rows() -> None:
    assert rows_for_bytes({A: 100, B: 100}, {A: 10.0, B: 30.0}, 2000) == 100
    assert rows_for_bytes({A: 100}, {A: 10.0}, 5000) == 100
    assert rows_for_bytes({A: 100}, {A: 10.0}, 1) == 1


@given(counts, st.none() | st.integers(1, 40), st.none() | st.integers(1, 300))
def test_splitting_loses_nothing(sizes: list[int], partitions_min: int | None, rows_max: int | None) -> None:
    ranges = tuple(OffsetRange(Queue("t", "b", n), 7, 7 + size) for n, size in enumerate(sizes) if size)
    pieces = split_ranges(ranges, partitions_min=partitions_min, partition_rows_max=rows_max)
    covered = [(piece.queue, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [(range_.queue, offset) for range_ in ranges for offset in range(range_.start, range_.end)]
    assert all(piece.size for piece in pieces)
    if rows_max is not None:
        assert all(piece.size <= rows_max for piece in pieces)
    if partitions_min is not None and sum(sizes) >= partitions_min * 20:
        assert len(pieces) >= partitions_min

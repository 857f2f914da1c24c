import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.client.aio.cluster import PullStatus, RawPull
from kappamq.errors import KappaError
from kappamq.model.message import Queue
from kappamq.spark.options import ReadOptions
from kappamq.spark.pulling import LANE_BYTES_MAX, Lane, fetch_lane, read_lanes

QUEUE = Queue("orders", "broker-a", 0)
OPTIONS = ReadOptions(name_servers="", retries=2, retry_interval_ms=1)


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(0, 300), st.integers(1, 40), st.integers(1, 50))
def test_lanes_cover_the_range_in_order_even_when_they_stop_early(
    start: int, size: int, lane_rows: int, step: int
) -> None:
    def fetch(first: int, last: int) -> Lane:
        return Lane(first, last, min(first + step, last), b"")

    with ThreadPoolExecutor(4) as pool:
        lanes = list(read_lanes(start, start + size, fetch, pool, lane_rows=lane_rows))
    position = start
    for lane in lanes:
        assert lane.start == position
        position = lane.reached
    assert position == start + size


class ScriptedCluster:
    """Answers pulls from a table of start offsets."""

    def __init__(self, answers: dict[int, RawPull | KappaError]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    async def pull_raw(self, queue: Queue, start: int, **_options: Any) -> RawPull:
        self.asked.append(start)
        answer = self.answers[start]
        if isinstance(answer, KappaError):
            raise answer
        return answer


def found(next_offset: int, body: bytes = b"x", low: int = 0, high: int = 100) -> RawPull:
    return RawPull(PullStatus.FOUND, body, next_offset, low, high)


def fetch(answers: dict[int, RawPull | KappaError], start: int, end: int) -> tuple[Lane, list[int]]:
    cluster: Any = ScriptedCluster(answers)
    return asyncio.run(fetch_lane(cluster, QUEUE, start, end, OPTIONS)), cluster.asked


def test_pulls_until_the_end() -> None:
    lane, asked = fetch({0: found(4, b"ab"), 4: found(9, b"cd")}, 0, 8)
    assert lane == Lane(0, 8, 9, b"abcd")
    assert asked == [0, 4]


def test_stops_when_full() -> None:
    lane, _ = fetch({0: found(4, bytes(LANE_BYTES_MAX))}, 0, 8)
    assert lane.reached == 4
    assert lane.loss is None


def test_filters_may_skip() -> None:
    nothing = RawPull(PullStatus.NOTHING_MATCHED, b"", 6, 0, 100)
    lane, asked = fetch({0: nothing, 6: found(8)}, 0, 8)
    assert lane.loss is None
    assert asked == [0, 6]


def test_expired_offsets_are_a_loss() -> None:
    moved = RawPull(PullStatus.OFFSET_MOVED, b"", 5, 5, 100)
    lane, _ = fetch({0: moved, 5: found(8)}, 0, 8)
    assert lane.loss is not None
    assert "lost offsets 0 to 5" in lane.loss
    assert lane.records == b"x"


@pytest.mark.parametrize("status", [PullStatus.NOTHING_NEW, PullStatus.OFFSET_MOVED])
def test_a_queue_that_is_shorter_now_is_a_loss(status: PullStatus) -> None:
    lane, _ = fetch({4: RawPull(status, b"", 2, 0, 2)}, 4, 8)
    assert lane.loss is not None
    assert "lost offsets 4 to 8" in lane.loss


def test_a_group_that_is_reset_moves_nothing() -> None:
    reset = RawPull(PullStatus.OFFSET_MOVED, b"", 50, 0, 100)
    with pytest.raises(KappaError, match="no progress"):
        fetch({0: reset}, 0, 8)

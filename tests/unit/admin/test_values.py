"""Figures that values derive."""

from kappamq.admin.values import GroupMembers, Progress, QueueLag, QueueRange
from kappamq.model.message import Queue

QUEUE = Queue("orders", "b1", 0)


def test_counts_and_lags_are_never_negative() -> None:
    assert QueueRange(QUEUE, 5, 3, 0).count == 0
    assert QueueRange(QUEUE, 3, 5, 0).count == 2
    assert QueueLag(QUEUE, 10, 12, 11, 0).lag == 0
    assert QueueLag(QUEUE, 10, 12, 11, 0).inflight == 0


def test_a_group_without_progress_lags_by_everything() -> None:
    assert QueueLag(QUEUE, 10, -1, 0, 0).lag == 10


def test_progress_sums_up() -> None:
    progress = Progress("g", (QueueLag(QUEUE, 10, 4, 6, 0), QueueLag(Queue("a", "b1", 0), 5, 5, 5, 0)))
    assert (progress.lag, progress.topics) == (6, ("a", "orders"))
    assert not GroupMembers().is_online

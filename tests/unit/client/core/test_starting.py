"""Where to start: the table of committed offset, setting and kind of topic."""

import pytest

from kappamq.client.core.starting import (
    AskEnd,
    AskTime,
    Committed,
    Start,
    StartAt,
    StartFrom,
    TryLater,
    where_to_start,
)
from kappamq.errors import UsageError
from kappamq.model.offsets import QueueOffset

ZERO = StartAt(QueueOffset(0))
AT_MS = 1_700_000_000_000


@pytest.mark.parametrize("topic", ["T", "%RETRY%g"])
@pytest.mark.parametrize("start_from", list(StartFrom))
def test_a_committed_offset_wins(topic: str, start_from: StartFrom) -> None:
    for committed in (0, 7):
        start = where_to_start(topic, QueueOffset(committed), start_from, start_at_ms=AT_MS)
        assert start == StartAt(QueueOffset(committed))


@pytest.mark.parametrize("topic", ["T", "%RETRY%g"])
@pytest.mark.parametrize("start_from", list(StartFrom))
def test_without_an_answer_the_queue_waits(topic: str, start_from: StartFrom) -> None:
    assert where_to_start(topic, Committed.UNKNOWN, start_from, start_at_ms=AT_MS) == TryLater()


@pytest.mark.parametrize(
    ("topic", "start_from", "expected"),
    [
        ("T", StartFrom.LAST, AskEnd()),
        ("T", StartFrom.FIRST, ZERO),
        ("T", StartFrom.TIME, AskTime(AT_MS)),
        ("%RETRY%g", StartFrom.LAST, ZERO),
        ("%RETRY%g", StartFrom.FIRST, ZERO),
        ("%RETRY%g", StartFrom.TIME, AskEnd()),
    ],
)
def test_nothing_committed(topic: str, start_from: StartFrom, expected: Start) -> None:
    assert where_to_start(topic, Committed.NONE, start_from, start_at_ms=AT_MS) == expected


def test_a_start_by_time_needs_the_time() -> None:
    with pytest.raises(UsageError, match="pass start_at_ms"):
        where_to_start("T", Committed.NONE, StartFrom.TIME)

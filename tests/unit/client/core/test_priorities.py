"""Lanes: the urgent first, and nobody starves."""

from __future__ import annotations

import pytest

from kappamq.client.core.priorities import Lanes, Priorities, check_level, level_of
from kappamq.errors import UsageError
from kappamq.model.message import StoredMessage


def message(topic: str, level: str | None = None) -> StoredMessage:
    properties = f"_SYS_MSG_PRIORITY_\x01{level}\x02" if level is not None else ""
    return StoredMessage(topic, b"x", 0, 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, properties, 0, 0)


def take_all(lanes: Lanes[str]) -> str:
    return "".join(lanes.pop() for _ in range(len(lanes)))


def test_higher_lanes_come_first_and_each_keeps_its_order() -> None:
    lanes: Lanes[str] = Lanes()
    for priority, item in ((0, "x"), (5, "b"), (0, "y"), (9, "a"), (5, "c")):
        lanes.append(priority, item)
    assert (len(lanes), lanes.highest) == (5, 9)
    assert take_all(lanes) == "abcxy"
    assert (bool(lanes), lanes.highest) == (False, None)
    with pytest.raises(IndexError):
        lanes.pop()


def test_what_is_put_back_comes_first_in_its_lane() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.append(1, "b")
    lanes.append_first(1, "a")
    lanes.append(2, "u")
    assert take_all(lanes) == "uab"


def test_lower_lanes_get_a_turn_in_turn() -> None:
    lanes: Lanes[str] = Lanes(favours_max=3)
    for _ in range(20):
        lanes.append(9, "u")
    for priority, items in ((5, "mm"), (0, "ll")):
        for item in items:
            lanes.append(priority, item)
    assert take_all(lanes) == "uuumuuuluuumuuuluuuuuuuu"


def test_items_can_be_forgotten() -> None:
    lanes: Lanes[str] = Lanes()
    for priority, item in ((1, "a"), (1, "b"), (2, "b")):
        lanes.append(priority, item)
    lanes.discard(lambda item: item == "b")
    assert (len(lanes), lanes.highest, take_all(lanes)) == (1, 1, "a")


def test_topics_or_messages_decide() -> None:
    priorities = Priorities({"urgent": 10, "levels": "message"})
    assert priorities
    assert priorities.of(message("urgent", "3")) == 10
    assert priorities.of(message("levels", "3")) == 3
    assert priorities.of(message("other", "3")) == 0
    assert not Priorities()
    with pytest.raises(UsageError, match="'urgent'"):
        Priorities({"urgent": "high"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "level"), [(None, 0), ("7", 7), ("999", 255), ("-1", 0), ("x", 0), ("9" * 5000, 0), ("²", 0)]
)
def test_levels_of_messages_are_read_with_care(text: str | None, level: int) -> None:
    assert level_of(message("t", text)) == level


@pytest.mark.parametrize("level", [-1, 256])
def test_levels_have_limits(level: int) -> None:
    with pytest.raises(UsageError):
        check_level(level)

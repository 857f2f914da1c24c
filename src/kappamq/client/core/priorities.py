"""What is handed out first when several topics, or messages of several levels, wait.

urgent   ▓▓▓            the highest lane is served first;
orders   ▓▓▓▓▓▓▓▓▓▓▓    one turn in `FAVOURS_MAX` + 1 goes to a lower lane that waits, so that none starves
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from kappamq.errors import UsageError
from kappamq.model.message import StoredMessage
from kappamq.model.properties import Name

Item = TypeVar("Item")

FAVOURS_MAX: Final = 32
"""Turns that a higher lane may get in a row while a lower one waits."""
LEVEL_MAX: Final = 255
"""Highest level of a single message."""

TopicPriorities: TypeAlias = Mapping[str, int | Literal["message"]]
"""Topic → its priority, 0 for those not named; "message" lets the level of each message decide."""


class Priorities:
    """How urgent messages are, by their topic or by their own level."""

    def __init__(self, by_topic: TopicPriorities | None = None) -> None:
        self._by_topic = dict(by_topic or {})
        for topic, priority in self._by_topic.items():
            if priority != "message" and not isinstance(priority, int):
                raise UsageError(f"priority of topic {topic!r} is {priority!r}: use a number, or 'message'")

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def of(self, message: StoredMessage) -> int:
        priority = self._by_topic.get(message.topic, 0)
        return level_of(message) if priority == "message" else priority


def level_of(message: StoredMessage) -> int:
    """Level that a producer gave to a message; 0 for none, or for one that makes no sense."""
    text = message.properties.get(Name.PRIORITY, "")
    return min(int(text), LEVEL_MAX) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def check_level(level: int) -> None:
    """Raise `UsageError` for a level that no message can have."""
    if not 0 <= level <= LEVEL_MAX:
        raise UsageError(f"priority {level} of a message is not possible: use 0 to {LEVEL_MAX}")


class Lanes(Generic[Item]):
    """Items that wait, in a lane for each priority; in order within a lane. Bounded by whoever puts items in."""

    def __init__(self, *, favours_max: int = FAVOURS_MAX) -> None:
        self._favours_max = favours_max
        self._lanes: dict[int, deque[Item]] = {}  # Only lanes that hold something.
        self._favours = 0
        self._turn = 0
        self._last_turn: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def __bool__(self) -> bool:
        return bool(self._lanes)

    @property
    def highest(self) -> int | None:
        """Priority of what waits most urgently."""
        return max(self._lanes, default=None)

    def append(self, priority: int, item: Item) -> None:
        self._lanes.setdefault(priority, deque()).append(item)

    def append_first(self, priority: int, item: Item) -> None:
        """Put an item back to the front of its lane."""
        self._lanes.setdefault(priority, deque()).appendleft(item)

    def pop(self) -> Item:
        """The next item. Raises `IndexError` when there is none."""
        if not self._lanes:
            raise IndexError("nothing waits")
        priority = self._next_priority()
        self._turn += 1
        self._last_turn[priority] = self._turn
        lane = self._lanes[priority]
        item = lane.popleft()
        if not lane:
            del self._lanes[priority]
        return item

    def _next_priority(self) -> int:
        highest = max(self._lanes)
        if len(self._lanes) == 1:
            self._favours = 0
            return highest
        if self._favours < self._favours_max:
            self._favours += 1
            return highest
        self._favours = 0
        lower = [priority for priority in self._lanes if priority != highest]
        return min(lower, key=lambda priority: (self._last_turn.get(priority, 0), -priority))

    def discard(self, is_unwanted: Callable[[Item], bool]) -> None:
        """Forget items."""
        for priority, lane in list(self._lanes.items()):
            kept = deque(item for item in lane if not is_unwanted(item))
            if kept:
                self._lanes[priority] = kept
            else:
                del self._lanes[priority]

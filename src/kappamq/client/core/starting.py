"""Where a consumer starts in a queue that it was just given."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from kappamq.errors import UsageError
from kappamq.model.names import is_retry_topic
from kappamq.model.offsets import QueueOffset


class StartFrom(Enum):
    """Where a group without a committed offset begins. RocketMQ's three deprecated choices mean LAST."""

    LAST = auto()
    FIRST = auto()
    TIME = auto()


class Committed(Enum):
    """What was found instead of a committed offset."""

    NONE = auto()
    UNKNOWN = auto()  # The broker could not be asked.


@dataclass(frozen=True, slots=True)
class StartAt:
    """Start here; the broker corrects an offset that is below its first one."""

    queue_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Ask the broker for the end of the queue and start there."""


@dataclass(frozen=True, slots=True)
class AskTime:
    """Ask the broker for the first message stored at or after this time and start there."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class TryLater:
    """Leave the queue alone until the next balancing round: starting anywhere could lose or repeat messages."""


Start: TypeAlias = StartAt | AskEnd | AskTime | TryLater


def where_to_start(
    topic: str, committed: QueueOffset | Committed, start_from: StartFrom, *, start_at_ms: int | None = None
) -> Start:
    """Decide from the committed offset and the setting; `start_at_ms` belongs to `StartFrom.TIME`."""
    if start_from is StartFrom.TIME and start_at_ms is None:
        raise UsageError("starting from a time needs the time: pass start_at_ms")
    if committed is Committed.UNKNOWN:
        return TryLater()
    if not isinstance(committed, Committed):
        return StartAt(committed)
    if is_retry_topic(topic):
        # RocketMQ: a group's retries have no time of their own, so a start by time takes only what comes from now on.
        return AskEnd() if start_from is StartFrom.TIME else StartAt(QueueOffset(0))
    if start_from is StartFrom.FIRST:
        return StartAt(QueueOffset(0))
    if start_from is StartFrom.TIME and start_at_ms is not None:
        return AskTime(start_at_ms)
    return AskEnd()

"""Offsets as Spark keeps them in a checkpoint, and places in queues as users write them in options.

checkpoint   {"v": 1, "q": {topic: {broker: {queue id: queue offset}}}}
user         earliest │ latest │ group:<name> │ {topic: {broker: {queue id: queue offset, -1 latest, -2 earliest}}}
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from kappamq.errors import UsageError
from kappamq.model.message import Queue
from kappamq.model.names import check_group

VERSION: Final = 1
LATEST: Final = -1
EARLIEST: Final = -2
GROUP_PREFIX: Final = "group:"

QueueOffsets: TypeAlias = dict[Queue, int]


class End(Enum):
    """One of the two ends of every queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a consumer group is; queues without progress count from their beginning."""

    group: str


@dataclass(frozen=True, slots=True)
class Explicit:
    """An offset for each queue; `LATEST` and `EARLIEST` stand for the ends."""

    offsets: Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at or after a time: one for all queues, or one for each."""

    at_ms: int | Mapping[Queue, int]


Place: TypeAlias = End | Committed | Explicit | AtTime


def to_checkpoint(offsets: Mapping[Queue, int]) -> dict[str, Any]:
    """What Spark writes into its log; equal offsets give equal text."""
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return {"v": VERSION, "q": nested}


def from_checkpoint(data: Mapping[str, Any]) -> QueueOffsets:
    """Offsets of a checkpoint. Raises `UsageError` for one of another source or of a later version."""
    if data.get("v") != VERSION or not isinstance(data.get("q"), dict):
        raise UsageError(
            f"the checkpoint holds {json.dumps(data)[:80]}, which is not an offset of this source: "
            "use a checkpoint directory of its own for each query"
        )
    return _flatten(data["q"], "the checkpoint")


def parse_place(option: str, text: str) -> Place:
    """Value of `startingOffsets` or `endingOffsets`."""
    stripped = text.strip()
    if stripped.lower() in ("earliest", "latest"):
        return End(stripped.lower())
    if stripped.startswith(GROUP_PREFIX):
        group = stripped.removeprefix(GROUP_PREFIX)
        check_group(group)
        return Committed(group)
    if stripped.startswith("{"):
        offsets = parse_queue_numbers(option, stripped)
        low = [str(value) for value in offsets.values() if value < EARLIEST]
        if low:
            raise UsageError(f"{option} has offset {low[0]}: use 0 or more, -1 for latest, -2 for earliest")
        return Explicit(offsets)
    raise UsageError(
        f"{option} is {text!r}: use earliest, latest, group:<name> or JSON such as "
        '{"orders": {"broker-a": {"0": 23, "1": -1}}}'
    )


def parse_queue_numbers(option: str, text: str) -> QueueOffsets:
    """A number for each queue, from JSON `{topic: {broker: {queue id: number}}}`."""
    return _flatten(_load(option, text), option)


def parse_assignment(option: str, text: str) -> frozenset[Queue]:
    """Queues of JSON `{topic: {broker: [queue id, …]}}`."""
    data = _load(option, text)
    queues = {
        Queue(topic, broker, queue_id)
        for topic, brokers in _items(data, option)
        for broker, ids in _items(brokers, option)
        for queue_id in _list_of_ints(ids, option)
    }
    if not queues:
        raise UsageError(f"{option} names no queue: write for example " + '{"orders": {"broker-a": [0, 1]}}')
    return frozenset(queues)


def describe(queues: Iterable[Queue]) -> str:
    """Queues for an error message, a few of them by name."""
    names = [f"{queue.topic}/{queue.broker}/{queue.queue_id}" for queue in sorted(queues)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _load(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as fault:
        raise UsageError(f"{option} is not JSON ({fault}): check its quotes and brackets") from None


def _flatten(data: Any, option: str) -> QueueOffsets:
    return {
        Queue(topic, broker, _queue_id(queue_id, option)): _int(value, option)
        for topic, brokers in _items(data, option)
        for broker, queues in _items(brokers, option)
        for queue_id, value in _items(queues, option)
    }


def _items(data: Any, option: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(data, dict):
        raise UsageError(f"{option} has {data!r} where a JSON object belongs: the order is topic, broker, queue id")
    return data.items()


def _list_of_ints(data: Any, option: str) -> list[int]:
    if not isinstance(data, list):
        raise UsageError(f"{option} has {data!r} where a list of queue ids belongs: write for example [0, 1]")
    return [_int(value, option) for value in data]


def _queue_id(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{option} has queue id {text!r}: use a number of 0 or more")
    return int(text)


def _int(value: Any, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{option} has {value!r} where a whole number belongs")
    return value

"""Filters that Spark offers, turned into queues and offsets that need not be read. Spark still applies all of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from kappamq.model.message import Queue
from kappamq.spark.offsets import QueueOffsets

CLOCK_MARGIN_MS: Final = 60_000
"""Store times of a queue are in order except where a broker's clock was set back: look this much further."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What rows can match at most. `None` allows everything."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    offset_from: int = 0
    offset_to: int | None = None
    """Exclusive."""
    stored_from_ms: int | None = None
    stored_to_ms: int | None = None

    def allows(self, queue: Queue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    @property
    def tag_expression(self) -> str | None:
        """For the broker, if every tag can be written as one."""
        if not self.tags or any("|" in tag or tag != tag.strip() or not tag or tag == "*" for tag in self.tags):
            return None
        return " || ".join(sorted(self.tags))


def narrow(filters: Iterable[Any]) -> Narrowing:
    """The narrowest rows that all `filters` (of `pyspark.sql.datasource`) leave; unknown filters are passed over."""
    found = Narrowing()
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        found = _apply(found, type(each).__name__, column, getattr(each, "value", None))
    return found


def narrow_offsets(
    begin: QueueOffsets, end: QueueOffsets, narrowing: Narrowing, offsets_at: Callable[[int], QueueOffsets]
) -> tuple[QueueOffsets, QueueOffsets]:
    """The part of `begin` to `end` that can match; `offsets_at` tells where a store time is in each queue.

    The part lies within the whole: what the filters exclude can be neither read nor lost.
    """
    first = {queue: max(at, narrowing.offset_from) for queue, at in begin.items()}
    last = dict(end)
    if narrowing.offset_to is not None:
        last = {queue: min(at, narrowing.offset_to) for queue, at in last.items()}
    if narrowing.stored_from_ms is not None:
        found = offsets_at(narrowing.stored_from_ms)
        first = {queue: max(at, found[queue]) for queue, at in first.items()}
    if narrowing.stored_to_ms is not None:
        found = offsets_at(narrowing.stored_to_ms + 1)
        last = {queue: min(at, found[queue]) for queue, at in last.items()}
    first = {queue: min(at, end[queue]) for queue, at in first.items()}
    return first, {queue: max(at, first[queue]) for queue, at in last.items()}


_SETS: Final = {"topic": "topics", "broker": "brokers", "queueId": "queue_ids", "tags": "tags"}


def _apply(found: Narrowing, kind: str, column: str, value: Any) -> Narrowing:
    if column in _SETS and kind in ("EqualTo", "In"):
        return _meet(found, _SETS[column], value if kind == "In" else [value])
    if column == "queueOffset" and isinstance(value, int):
        return _bound_offset(found, kind, value)
    if column == "storeTimestamp" and isinstance(value, datetime):
        return _bound_time(found, kind, value)
    return found


def _meet(found: Narrowing, name: str, values: Sequence[Any]) -> Narrowing:
    allowed = frozenset(value for value in values if value is not None)
    before: frozenset[Any] | None = getattr(found, name)
    changes: dict[str, Any] = {name: allowed if before is None else before & allowed}
    return replace(found, **changes)


def _bound_offset(found: Narrowing, kind: str, value: int) -> Narrowing:
    first: int | None = {"EqualTo": value, "GreaterThan": value + 1, "GreaterThanOrEqual": value}.get(kind)
    last: int | None = {"EqualTo": value + 1, "LessThan": value, "LessThanOrEqual": value + 1}.get(kind)
    if first is not None:
        found = replace(found, offset_from=max(found.offset_from, first))
    if last is not None:
        found = replace(found, offset_to=last if found.offset_to is None else min(found.offset_to, last))
    return found


def _bound_time(found: Narrowing, kind: str, value: datetime) -> Narrowing:
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    at_ms = int(moment.timestamp() * 1000)
    if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
        first = at_ms - CLOCK_MARGIN_MS
        found = replace(found, stored_from_ms=max(found.stored_from_ms or first, first))
    if kind in ("EqualTo", "LessThan", "LessThanOrEqual"):
        last = at_ms + CLOCK_MARGIN_MS
        found = replace(found, stored_to_ms=min(found.stored_to_ms or last, last))
    return found

"""Messages of one queue between the pull that brought them and the commit that lets them go.

Concurrent consumption removes messages in any order; the committable offset is that of the oldest one left, so one slow
message holds back the commit of all later ones. Orderly consumption takes from the front, then commits or puts back.

Cost: messages live in a dict, their offsets in a sorted list that is trimmed lazily. Pulls arrive in
ascending order, so `put`, `take` and `remove` are O(1) per message (amortised); one that arrives out of order costs
O(n), and so does putting messages back.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kappamq.errors import ConfigError
from kappamq.model.message import StoredMessage
from kappamq.model.offsets import QueueOffset

LOCK_LIFE_MS: Final = 30_000
"""How long the client trusts a lock after the broker confirmed it; the broker itself keeps it twice as long."""

PULL_LIFE_MS: Final = 120_000
"""A queue not pulled for so long is stuck, and balancing starts it anew."""

_MIB: Final = 1024 * 1024
_SLACK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """When pulling pauses. A limit is passed when it is exceeded, not when it is met."""

    messages_max: int = 1000
    mib_max: int = 100
    span_max: int = 2000

    def __post_init__(self) -> None:
        for name, value in (("messages", self.messages_max), ("mib", self.mib_max), ("span", self.span_max)):
            if value < 1:
                raise ConfigError(f"{name}_max is {value}: a consumer needs room for at least 1")


class ProcessQueue:
    """State of one assigned queue. One owner: nothing here waits or reads a clock.

    Times called `last_…_ms` are of the wall clock and only shown. What is decided by time goes by `elapsed_ms`, which
    does not jump when somebody sets the clock.
    """

    def __init__(self, *, now_ms: int, elapsed_ms: int = 0) -> None:
        self._waiting: dict[int, StoredMessage] = {}
        self._offsets: list[int] = []  # Sorted; from _head on it holds every waiting offset, and removed ones.
        self._head = 0
        self._taken: dict[int, StoredMessage] = {}  # By orderly consumption, not yet committed.
        self._started_at: dict[int, int] = {}  # Elapsed ms.
        self._highest = -1
        self._body_bytes = 0
        self.is_dropped = False
        self.is_locked = False
        self.is_consuming = False
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms
        self.last_lock_ms = now_ms
        self._pulled_at = elapsed_ms
        self.locked_at = elapsed_ms

    # What it holds

    @property
    def message_count(self) -> int:
        """Messages held, those taken by orderly consumption included."""
        return len(self._waiting) + len(self._taken)

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    @property
    def span(self) -> int:
        """Distance between the first and the last waiting offset."""
        self._trim()
        return self._offsets[-1] - self._offsets[self._head] if self._waiting else 0

    @property
    def first(self) -> StoredMessage | None:
        """The oldest waiting message: the one that holds back the commit."""
        self._trim()
        return self._waiting[self._offsets[self._head]] if self._waiting else None

    def offset_range(self) -> tuple[QueueOffset, QueueOffset] | None:
        """First waiting offset, and the one after the last; `None` when nothing waits."""
        self._trim()
        if not self._waiting:
            return None
        return QueueOffset(self._offsets[self._head]), QueueOffset(self._offsets[-1] + 1)

    def is_over(self, limits: CacheLimits, *, is_orderly: bool) -> bool:
        """Whether pulling must pause. The span does not matter to orderly consumption, which leaves no gaps."""
        return (
            self.message_count > limits.messages_max
            or self._body_bytes // _MIB > limits.mib_max
            or (not is_orderly and self.span > limits.span_max)
        )

    # Coming in

    def put(self, messages: Iterable[StoredMessage]) -> bool:
        """Add pulled messages; those already here are ignored. True when an idle queue now has work to dispatch."""
        for message in messages:
            offset = message.queue_offset
            if offset in self._waiting or offset in self._taken:
                continue
            self._insert(offset)
            self._waiting[offset] = message
            self._body_bytes += len(message.body)
            self._highest = max(self._highest, offset)
        if not self._waiting or self.is_consuming:
            return False
        self.is_consuming = True
        return True

    # Concurrent consumption

    def remove(self, messages: Iterable[StoredMessage], *, now_ms: int) -> QueueOffset | None:
        """Let go of consumed messages and return the committable offset; `None` if nothing was waiting at all."""
        self.last_consume_ms = now_ms
        if not self._waiting:
            return None
        for message in messages:
            removed = self._waiting.pop(message.queue_offset, None)
            if removed is not None:
                self._body_bytes -= len(removed.body)
                self._started_at.pop(message.queue_offset, None)
        self._trim()
        return QueueOffset(self._offsets[self._head] if self._waiting else self._highest + 1)

    def contains(self, message: StoredMessage) -> bool:
        """Whether the message still waits here: a queue given away and back has forgotten it."""
        return message.queue_offset in self._waiting

    def mark_started(self, messages: Iterable[StoredMessage], *, elapsed_ms: int) -> None:
        """Note that a handler was given these messages."""
        for message in messages:
            if message.queue_offset in self._waiting:
                self._started_at[message.queue_offset] = elapsed_ms

    def first_if_overdue(self, *, timeout_ms: int, elapsed_ms: int) -> StoredMessage | None:
        """The oldest message, if its handler has had it for longer than `timeout_ms`."""
        first = self.first
        if first is None:
            return None
        started_at = self._started_at.get(first.queue_offset)
        return first if started_at is not None and elapsed_ms - started_at > timeout_ms else None

    # Orderly consumption

    def take(self, count: int, *, now_ms: int) -> list[StoredMessage]:
        """Move up to `count` of the first messages into consumption; none left ends it."""
        self.last_consume_ms = now_ms
        batch: list[StoredMessage] = []
        while len(batch) < count and self._waiting:
            self._trim()
            message = self._waiting.pop(self._offsets[self._head])
            self._head += 1
            self._taken[message.queue_offset] = message
            batch.append(message)
        if not batch:
            self.is_consuming = False
        return batch

    def commit(self) -> QueueOffset | None:
        """Let go of everything taken and return the committable offset; `None` if nothing was taken."""
        if not self._taken:
            return None
        committable = QueueOffset(max(self._taken) + 1)
        self._body_bytes -= sum(len(message.body) for message in self._taken.values())
        self._taken.clear()
        return committable

    def rollback(self) -> None:
        """Put everything taken back to the front."""
        self._put_back(set(self._taken))

    def put_back(self, messages: Iterable[StoredMessage]) -> None:
        """Put some of the taken messages back, to be taken again."""
        self._put_back({message.queue_offset for message in messages} & self._taken.keys())

    # Life

    def mark_pulled(self, *, now_ms: int, elapsed_ms: int) -> None:
        self.last_pull_ms = now_ms
        self._pulled_at = elapsed_ms

    def mark_locked(self, *, now_ms: int, elapsed_ms: int) -> None:
        """The broker confirmed our lock, which we asked for at `elapsed_ms`."""
        self.is_locked = True
        self.last_lock_ms = now_ms
        self.locked_at = elapsed_ms

    def is_lock_expired(self, elapsed_ms: int, *, life_ms: int = LOCK_LIFE_MS) -> bool:
        return elapsed_ms - self.locked_at > life_ms

    def is_pull_expired(self, elapsed_ms: int) -> bool:
        return elapsed_ms - self._pulled_at > PULL_LIFE_MS

    def clear(self) -> None:
        """Forget every message, as after an offset reset."""
        self._waiting.clear()
        self._taken.clear()
        self._started_at.clear()
        self._offsets.clear()
        self._head = 0
        self._highest = -1
        self._body_bytes = 0

    def _insert(self, offset: int) -> None:
        if not self._waiting:
            self._offsets.clear()
            self._head = 0
        if not self._offsets or offset > self._offsets[-1]:
            self._offsets.append(offset)
            return
        index = bisect_left(self._offsets, offset, self._head)
        if self._offsets[index] != offset:  # Else it was removed and not trimmed yet: it just comes alive again.
            self._offsets.insert(index, offset)

    def _put_back(self, offsets: set[int]) -> None:
        for offset in offsets:
            self._waiting[offset] = self._taken.pop(offset)
        self._offsets = sorted(self._waiting)
        self._head = 0

    def _trim(self) -> None:
        """Drop removed offsets from both ends, so that they can be read off directly."""
        if not self._waiting:
            self._offsets.clear()
            self._head = 0
            return
        while self._offsets[self._head] not in self._waiting:
            self._head += 1
        while self._offsets[-1] not in self._waiting:
            self._offsets.pop()
        if len(self._offsets) > 2 * len(self._waiting) + _SLACK:
            # Removed offsets behind a slow message would pile up; rebuilding costs what removing them has saved.
            self._offsets = sorted(self._waiting)
            self._head = 0

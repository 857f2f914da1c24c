"""One conversation: number requests, match replies, expire what nobody answered, cap what is in flight.

Both ends of a connection ask and answer, so each side has an exchange of its own for the requests it made.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from kappamq.errors import TooManyInFlight

Waiter = TypeVar("Waiter")

REQUEST_ID_MAX: Final = 2**31 - 1
INFLIGHT_MAX: Final = 65535


class Exchange(Generic[Waiter]):
    """Requests in flight on one connection. A waiter is whatever the caller wants back with the reply."""

    def __init__(self, *, inflight_max: int = INFLIGHT_MAX) -> None:
        self._inflight_max = inflight_max
        self._next_id = 0
        self._waiting: dict[int, tuple[Waiter, float]] = {}

    @property
    def inflight(self) -> int:
        return len(self._waiting)

    def open(self, waiter: Waiter, *, deadline: float) -> int:
        """Request id for a new request. Raises `TooManyInFlight` at the limit."""
        if len(self._waiting) >= self._inflight_max:
            raise TooManyInFlight(
                f"{self._inflight_max} requests wait for a reply on this connection: slow down or raise the limit"
            )
        request_id = self.next_id()
        while request_id in self._waiting:
            request_id = self.next_id()
        self._waiting[request_id] = (waiter, deadline)
        return request_id

    def open_many(self, waiter: Waiter, count: int, *, deadline: float) -> int:
        """First of `count` request ids that follow each other, all for one waiter. Raises `TooManyInFlight`."""
        if len(self._waiting) + count > self._inflight_max:
            raise TooManyInFlight(
                f"{self._inflight_max} requests wait for a reply on this connection: slow down or raise the limit"
            )
        request_ids = range(self._next_id + 1, self._next_id + 1 + count)
        while request_ids.stop > REQUEST_ID_MAX + 1 or not self._waiting.keys().isdisjoint(request_ids):
            taken = [each for each in request_ids if each in self._waiting]
            first = taken[-1] + 1 if taken and request_ids.stop <= REQUEST_ID_MAX + 1 else 1
            request_ids = range(first, first + count)
        self._waiting.update(dict.fromkeys(request_ids, (waiter, deadline)))
        self._next_id = request_ids.stop - 1
        return request_ids.start

    def next_id(self) -> int:
        """Request id for a request that gets no reply."""
        self._next_id = self._next_id + 1 if self._next_id < REQUEST_ID_MAX else 1
        return self._next_id

    def close(self, request_id: int) -> Waiter | None:
        """Waiter of a request that ended; `None` when nobody waits (any more)."""
        entry = self._waiting.pop(request_id, None)
        return None if entry is None else entry[0]

    def close_run(self, request_ids: Iterable[int], waiter: Waiter) -> int:
        """End requests one after the other as long as they are those of `waiter`; returns how many."""
        waiting, count = self._waiting, 0
        for request_id in request_ids:
            entry = waiting.get(request_id)
            if entry is None or entry[0] is not waiter:
                break
            del waiting[request_id]
            count += 1
        return count

    def waiter_of(self, request_id: int) -> Waiter | None:
        """Who waits for a request that is still open."""
        entry = self._waiting.get(request_id)
        return None if entry is None else entry[0]

    def expire(self, now: float) -> list[Waiter]:
        """Waiters whose deadline has passed; their replies will be dropped."""
        late = [request_id for request_id, (_, deadline) in self._waiting.items() if deadline <= now]
        return [self._waiting.pop(request_id)[0] for request_id in late]

    def abandon(self) -> list[Waiter]:
        """All waiters, when the connection is gone."""
        waiters = [waiter for waiter, _ in self._waiting.values()]
        self._waiting.clear()
        return waiters

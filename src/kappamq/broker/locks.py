"""Leases on queues for ordered consumption: one client of a group at a time. In memory, as in RocketMQ."""

from collections.abc import Iterable

from kappamq.clock import Clock
from kappamq.model.message import Queue


class QueueLocks:
    """group → queue → (client, when it last renewed). Owned by the event loop."""

    def __init__(self, *, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._held: dict[str, dict[Queue, tuple[str, float]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Queue]) -> list[Queue]:
        """Take or renew leases; returns the queues that `client_id` now holds."""
        now = self._clock.monotonic()
        held = self._held.setdefault(group, {})
        locked = []
        for queue in queues:
            owner, renewed = held.get(queue, (client_id, now))
            if owner == client_id or now - renewed > self._lease_seconds:
                held[queue] = (client_id, now)
                locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Give up leases of this client; those of others stay."""
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0.0))[0] == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)

    def is_held(self, group: str) -> bool:
        """Whether any lease of a group is alive: then it consumes in order."""
        now = self._clock.monotonic()
        return any(now - renewed <= self._lease_seconds for _, renewed in self._held.get(group, {}).values())

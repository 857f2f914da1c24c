"""Leases on queues for ordered consumption: one client of a group at a time, also across a restart of the broker.

RocketMQ keeps them in memory: after a restart whoever asks first gets a queue, while its owner before may still be
handling messages. Here owners are on disk before they are told, and a start gives each a whole lease to come back. A
file is written only when owners change, never for a renewal.

    kappamqLocks.json: {"owners": {group: {client: [[topic, broker, queue number], …]}}}
"""

from collections.abc import Iterable
from typing import Any

from kappamq.clock import Clock
from kappamq.model.message import Queue


class QueueLocks:
    """group → queue → (client, when it last renewed). Owned by the event loop."""

    def __init__(self, *, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._held: dict[str, dict[Queue, tuple[str, float]]] = {}
        self.version = 0
        """Changes with the owners."""
        self._saved_version = 0

    def load(self, value: dict[str, Any] | None) -> None:
        """Take over the owners of the last run: how much of their leases is left nobody knows, so all of it counts."""
        now = self._clock.monotonic()
        for group, clients in ((value or {}).get("owners") or {}).items():
            self._held[group] = {
                Queue(topic, broker, queue_id): (client_id, now)
                for client_id, queues in clients.items()
                for topic, broker, queue_id in queues
            }

    def as_file(self) -> dict[str, Any]:
        """Owners whose leases are alive."""
        now = self._clock.monotonic()
        owners: dict[str, dict[str, list[list[str | int]]]] = {}
        for group, held in self._held.items():
            for queue, (client_id, renewed) in held.items():
                if now - renewed <= self._lease_seconds:
                    place: list[str | int] = [queue.topic, queue.broker, queue.queue_id]
                    owners.setdefault(group, {}).setdefault(client_id, []).append(place)
        return {"owners": owners}

    @property
    def is_saved(self) -> bool:
        """Whether the file knows of everybody who became an owner."""
        return self._saved_version == self.version

    def mark_saved(self, version: int) -> None:
        """The file was written when the owners were those of `version`, or later."""
        self._saved_version = max(self._saved_version, version)

    def lock(self, group: str, client_id: str, queues: Iterable[Queue]) -> list[Queue]:
        """Take or renew leases; returns the queues that `client_id` now holds. Tell it once `is_saved`."""
        now = self._clock.monotonic()
        held = self._held.setdefault(group, {})
        locked = []
        for queue in queues:
            owner, renewed = held.get(queue, ("", now))
            if owner in (client_id, "") or now - renewed > self._lease_seconds:
                if owner != client_id:
                    self.version += 1
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

"""How far a group has come: in memory first, then at the brokers, or in a file when every member reads everything.

Local file: `<directory>/<client id>/<group>/offsets.json`, RocketMQ's own layout, with the previous content beside it
as `offsets.json.bak`. A crash while writing leaves one of the two whole.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from kappamq.client.aio.cluster import Cluster
from kappamq.errors import ConfigError, KappaError, RemoteProtocolError
from kappamq.model import fastjson
from kappamq.model.message import Queue
from kappamq.wire.bodies import decode_offset_table

log = logging.getLogger(__name__)

OFFSETS_DIRECTORY: Final = ".rocketmq_offsets"
OFFSETS_FILE: Final = "offsets.json"


class OffsetStore(Protocol):
    """Progress of one group on this client."""

    async def load(self) -> None:
        """Make ready, before anything else."""

    def in_memory(self, queue: Queue) -> int | None:
        """Progress as last told to us."""

    async def stored(self, queue: Queue) -> int | None:
        """Progress as it survives us; `None` when there is none. Raises `KappaError` when it cannot be read now."""

    def update(self, queue: Queue, committed_offset: int, *, only_forward: bool = True) -> None:
        """Note progress; it becomes durable with the next `persist`."""

    async def persist(self, queues: Iterable[Queue]) -> None:
        """Make progress durable. What fails is logged and tried again with the next call."""

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more."""


class RemoteOffsets:
    """Progress kept by the brokers: the members of a group share it."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._offsets: dict[Queue, int] = {}
        self._told: set[tuple[str, str]] = set()

    async def load(self) -> None:
        """Nothing to do: the brokers are asked queue by queue."""

    def in_memory(self, queue: Queue) -> int | None:
        return self._offsets.get(queue)

    async def stored(self, queue: Queue) -> int | None:
        return await self._cluster.committed_offset(queue, self._group)

    def update(self, queue: Queue, committed_offset: int, *, only_forward: bool = True) -> None:
        _update(self._offsets, queue, committed_offset, only_forward=only_forward)

    async def persist(self, queues: Iterable[Queue]) -> None:
        known = [queue for queue in queues if queue in self._offsets]
        # RocketMQ: a broker that gets the first commits of a group for a topic at the same time may forget some of
        # them, although it answers success to all. So the first one goes alone.
        first: list[Queue] = []
        for queue in known:
            place = (queue.topic, queue.broker)
            if place not in self._told:
                self._told.add(place)
                first.append(queue)
        await self._commit_all(first)
        await self._commit_all([queue for queue in known if queue not in first])

    async def _commit_all(self, queues: list[Queue]) -> None:
        queues = [queue for queue in queues if queue in self._offsets]  # Some may have been given away meanwhile.
        calls = (self._cluster.commit_offset(queue, self._group, self._offsets[queue]) for queue in queues)
        for queue, outcome in zip(queues, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(outcome, KappaError):
                log.warning("offset not committed: will try again queue=%s fault=%s", queue, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def forget(self, queue: Queue) -> None:
        self._offsets.pop(queue, None)


class LocalOffsets:
    """Progress kept in a file of this client: every member of a broadcasting group has its own."""

    def __init__(self, client_id: str, group: str, *, directory: Path | None = None) -> None:
        root = directory if directory is not None else Path.home() / OFFSETS_DIRECTORY
        self.path = root / client_id / group / OFFSETS_FILE
        self._offsets: dict[Queue, int] = {}
        self._saved: dict[Queue, int] = {}

    async def load(self) -> None:
        self._offsets = await asyncio.to_thread(_read_offsets, self.path)
        self._saved = dict(self._offsets)

    def in_memory(self, queue: Queue) -> int | None:
        return self._offsets.get(queue)

    async def stored(self, queue: Queue) -> int | None:
        return self._saved.get(queue)

    def update(self, queue: Queue, committed_offset: int, *, only_forward: bool = True) -> None:
        _update(self._offsets, queue, committed_offset, only_forward=only_forward)

    async def persist(self, queues: Iterable[Queue]) -> None:  # noqa: ARG002 - the file holds all of them.
        table = dict(self._offsets)
        if table == self._saved:
            return
        try:
            await asyncio.to_thread(_write_offsets, self.path, table)
        except OSError as fault:
            log.warning("offsets not saved: will try again path=%s fault=%s", self.path, fault)
            return
        self._saved = table

    def forget(self, queue: Queue) -> None:
        """Kept: the file is the only place that knows, and the queue may come back."""


def _update(offsets: dict[Queue, int], queue: Queue, committed_offset: int, *, only_forward: bool) -> None:
    if not only_forward or committed_offset > offsets.get(queue, -1):
        offsets[queue] = committed_offset


def _read_offsets(path: Path) -> dict[Queue, int]:
    """Offsets of the file, else of its backup; none where there is neither. Raises `ConfigError` if both are broken."""
    broken: list[str] = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            text = candidate.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as fault:
            broken.append(f"{candidate}: {fault.strerror}")
            continue
        try:
            return decode_offset_table(text)
        except RemoteProtocolError as fault:
            broken.append(f"{candidate}: {fault}")
    if broken:
        raise ConfigError(f"progress cannot be read ({'; '.join(broken)}): repair the file, or remove it to start anew")
    return {}


def _write_offsets(path: Path, offsets: dict[Queue, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = fastjson.dumps({"offsetTable": dict(sorted(offsets.items()))}, pretty=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(path.name + ".bak"))
    fresh.replace(path)

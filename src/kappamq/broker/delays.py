"""Delay levels: messages that wait in the schedule topic, one queue for each level, and come when their time is up.

Within a level all wait equally long, so a queue is in order of delivery: only its head matters. One task sleeps until
the earliest head is due or a message becomes the head of an empty queue.

Time: the queue entry says when a message is due, by the wall clock at the time of storing. Steps of that clock while
the broker runs are taken out again, so nothing comes early or late because of them. Steps while it was down cannot be
seen; then RocketMQ's rule holds: what is due later than a whole delay from now is due now.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from kappamq.broker.clock_steps import STEP_MS, ClockSteps
from kappamq.broker.deliveries import Snapshot
from kappamq.broker.placing import delivery_of
from kappamq.clock import Clock
from kappamq.errors import InvalidMessage, KappaError, StorageError
from kappamq.model.config import DataVersion
from kappamq.model.message import StoredMessage
from kappamq.model.names import SCHEDULE_TOPIC
from kappamq.model.record import NewRecord, decode_record
from kappamq.store.config_files import load_config, save_config
from kappamq.store.dispatch import Arrival
from kappamq.store.files import FileSystem
from kappamq.store.reading import QueueEntry

log = logging.getLogger(__name__)

BATCH_MAX: Final = 2048
"""Most messages of one level that are delivered in one go."""
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
RETRY_SECONDS: Final = 0.1
SLEEP_SECONDS_MAX: Final = 60.0
LEVELS_MAX: Final = 1000
"""Highest level whose progress is taken from a file."""
DELIVERIES_PER_VERSION: Final = 200

StoreRecords = Callable[[Sequence[NewRecord]], Awaitable[object]]
"""Stores records as durably as a send; raises `KappaError`."""


class Waiting(Protocol):
    """What delivering needs of the store."""

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> list[QueueEntry]: ...
    def read(self, log_offset: int, size: int | None = None) -> bytes: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    @property
    def written(self) -> int: ...


@dataclass(slots=True)
class _Level:
    number: int
    delay_ms: int | None
    """`None` for a level that the settings no longer have: its messages come when they were promised."""
    next: int = 0
    """Queue offset of the head."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """(end, ms): entries below queue offset `end` were stored before the wall clock stepped by `ms`."""

    def due_ms(self, entry: QueueEntry, now_ms: int) -> int:
        due = entry.tags_code + sum(step_ms for end, step_ms in self.steps if entry.queue_offset < end)
        if self.delay_ms is None:
            return due
        # RocketMQ: the clock went back while the broker was down, or the level was longer then.
        return now_ms if due > now_ms + self.delay_ms + STEP_MS else due


class Delays:
    """Delivers delayed messages in order of their level. Owned by the event loop."""

    def __init__(
        self,
        store: Waiting,
        *,
        store_records: StoreRecords,
        delays_ms: Sequence[int],
        clock: Clock,
        gate: asyncio.Lock,
        file: Path,
        files: FileSystem | None = None,
    ) -> None:
        """`gate` is held while deliveries are under way: who holds it sees progress and log agree."""
        self._file = file
        self._files = files
        self._store = store
        self._store_records = store_records
        self._clock = clock
        self._gate = gate
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(delays_ms, start=1)]
        self._wake = asyncio.Event()
        self._clock_steps = ClockSteps(clock)
        self._delivered = 0
        self.version = DataVersion(timestamp=clock.now_ms())

    # ── Progress ────────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, delivered: Iterable[StoredMessage] = ()) -> None:
        """Take progress from `delayOffset.json`, and from the log what was delivered after that was saved."""
        value = load_config(self._file, files=self._files)
        table: dict[int, int] = {}
        if value is not None:
            version = value.get("dataVersion")
            if version is not None:
                self.version = msgspec.convert(version, DataVersion, strict=False)
            table = {int(level): int(offset) for level, offset in (value.get("offsetTable") or {}).items()}
        for message in delivered:
            level = message.queue_id + 1
            table[level] = max(table.get(level, 0), message.queue_offset + 1)
        # There may have been more levels before: what waits in them comes, and what came there does not come again.
        for number in range(len(self._levels) + 1, min(max(table, default=0), LEVELS_MAX) + 1):
            self._levels.append(_Level(number, None))
        for each in self._levels:
            bounds = (
                self._store.min_offset(SCHEDULE_TOPIC, each.number - 1),
                self._store.max_offset(SCHEDULE_TOPIC, each.number - 1),
            )
            each.next = min(max(table.get(each.number, 0), bounds[0]), bounds[1])

    def as_file(self) -> dict[str, Any]:
        """Content of `delayOffset.json`, also sent to slaves."""
        return {"dataVersion": self.version, "offsetTable": {each.number: each.next for each in self._levels}}

    def snapshot(self) -> Snapshot:
        """Progress to be saved."""
        content = self.as_file()
        return Snapshot(lambda: save_config(self._file, content, files=self._files), self._store.written)

    @property
    def delivered(self) -> int:
        """Messages delivered since the start."""
        return self._delivered

    def next_offset(self, level: int) -> int:
        """Queue offset of the message that is delivered next."""
        return self._levels[level - 1].next

    # ── Delivering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Messages began to wait: wake the task when one of them is the head of its level."""
        mine = [each for each in arrivals if each.topic == SCHEDULE_TOPIC and each.queue_id < len(self._levels)]
        self._notice_step(mine)
        if any(arrival.queue_offset <= self._levels[arrival.queue_id].next for arrival in mine):
            self._wake.set()

    async def run_forever(self) -> None:
        """Deliver what is due, sleep until the next is; until cancelled."""
        while True:
            self._wake.clear()
            pause = await self.deliver_due()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def deliver_due(self) -> float:
        """Deliver all that is due now; seconds until something may be due again."""
        while True:
            self._notice_step(())
            now_ms = self._clock.now_ms()
            batches = [(level, self._due(level, now_ms)) for level in self._levels]
            batches = [(level, due) for level, due in batches if due]
            if not batches:
                return self._pause(now_ms)
            try:
                async with self._gate:
                    await self._deliver(batches)
            except KappaError as fault:
                log.warning("delayed messages could not be delivered: will try again fault=%s", fault)
                return RETRY_SECONDS

    def _due(self, level: _Level, now_ms: int) -> list[QueueEntry]:
        due: list[QueueEntry] = []
        size = 0
        for entry in self._entries(level, BATCH_MAX):
            size += entry.size
            if level.due_ms(entry, now_ms) > now_ms or (due and size > BATCH_BYTES_MAX):
                break
            due.append(entry)
        return due

    def _entries(self, level: _Level, count: int) -> list[QueueEntry]:
        queue_id = level.number - 1
        if level.next >= self._store.max_offset(SCHEDULE_TOPIC, queue_id):
            return []
        # Retention may have taken what is older; entries begin at the oldest that is left.
        return self._store.entries(SCHEDULE_TOPIC, queue_id, level.next, count)

    def _pause(self, now_ms: int) -> float:
        """Seconds until the earliest head is due."""
        waits = [level.due_ms(head, now_ms) - now_ms for level in self._levels for head in self._entries(level, 1)]
        return max(0.0, min(SLEEP_SECONDS_MAX, min(waits, default=1 << 40) / 1000))

    async def _deliver(self, batches: list[tuple[_Level, list[QueueEntry]]]) -> None:
        entries = [entry for _, due in batches for entry in due]
        records = await asyncio.to_thread(self._read, entries)
        try:
            if records:
                await self._store_records(records)
        except InvalidMessage:
            await self._deliver_singly(records)
        # No await from here: progress of all levels moves at once.
        for level, due in batches:
            level.next = due[-1].queue_offset + 1
            level.steps = [step for step in level.steps if step[0] > level.next]
        before, self._delivered = self._delivered, self._delivered + len(entries)
        if before // DELIVERIES_PER_VERSION != self._delivered // DELIVERIES_PER_VERSION:
            self.version = self.version.next(self._clock.now_ms())

    async def _deliver_singly(self, records: list[NewRecord]) -> None:
        """One message that can never be stored must not hold up the others."""
        for record in records:
            try:
                await self._store_records([record])
            except InvalidMessage as fault:
                log.error("delayed message dropped: it cannot be stored topic=%s fault=%s", record.topic, fault)

    def _read(self, entries: list[QueueEntry]) -> list[NewRecord]:
        """Records to store for these entries. Runs in a thread: old records come from the disk."""
        records = []
        for entry in entries:
            try:
                message = decode_record(self._store.read(entry.log_offset, entry.size))
            except StorageError as fault:
                log.error("delayed message lost: its record is gone log_offset=%d fault=%s", entry.log_offset, fault)
                continue
            record = delivery_of(message)
            if record is None:
                log.error("delayed message dropped: it has no address log_offset=%d", entry.log_offset)
                continue
            records.append(record)
        return records

    # ── Steps of the clock ──────────────────────────────────────────────────────────────────────────────────────────

    def _notice_step(self, arrivals: Sequence[Arrival]) -> None:
        """Remember by how much the wall clock stepped, and which messages were stored before it did."""
        step_ms = self._clock_steps.notice()
        if not step_ms:
            return
        log.warning("the clock stepped: delays go on as if it had not step_ms=%d", step_ms)
        for level in self._levels:
            end = self._store.max_offset(SCHEDULE_TOPIC, level.number - 1)
            for arrival in arrivals:
                is_after = self._clock_steps.is_after(step_ms, arrival.stored_at_ms)
                if arrival.queue_id == level.number - 1 and is_after:
                    end = min(end, arrival.queue_offset)
            if end > level.next:
                level.steps.append((end, step_ms))

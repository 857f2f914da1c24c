"""What the broker stored on behalf of waiting messages, known again after a crash.

A delivered copy names the waiting record in `prepared_offset` (see `placing`). Progress is saved every few seconds; at
start the log is read from the last save on, and what is found there is not delivered a second time. So a killed broker
delivers every waiting message exactly once; with durable flushing this holds after a power cut, too. Copies that
RocketMQ stored name nothing: what it delivered after its own last save may come again, as it does with RocketMQ.

    state files (delayOffset.json, timercheck) ─▶ then this file: `{"logOffset": P}`

Every delivery below P is in the state files. The order of writing makes a crash in between harmless: the files are then
ahead of P, and reading again what they know already changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kappamq.errors import CorruptRecord, KappaError, StorageError
from kappamq.model.message import Flags, StoredMessage
from kappamq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.model.properties import Name
from kappamq.model.record import decode_record
from kappamq.store.config_files import load_config, save_config
from kappamq.store.files import FileSystem
from kappamq.store.store import Store

log = logging.getLogger(__name__)

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})
SCAN_BYTES_MAX: Final = 2 << 30
"""Most bytes of the log that a start reads again; saves come far more often than this is written."""

SAVE_SECONDS: Final = 10
SAVE_BYTES: Final = 64 * 1024 * 1024

_FLUSH_POLL_SECONDS: Final = 0.05
_FLUSH_POLLS_MAX: Final = 100
_FILE_NAME: Final = "kappamqDeliveries.json"


def waiting_since(store: Store, config: Path, *, files: FileSystem | None = None) -> dict[str, list[StoredMessage]]:
    """Waiting records whose copies were stored since the last save, by the topic in which they waited.

    Reads the log: run it in a thread, before anything is delivered.
    """
    found: dict[str, list[StoredMessage]] = {}
    for record in _records(store, _saved(config, store, files)):
        if not _names_another(record):
            continue
        try:
            waiting = decode_record(store.read(record.prepared_offset))
        except StorageError:
            continue  # It has left the log, and so it cannot be delivered again.
        if waiting.topic in WAITING_TOPICS and waiting.message_id == record.message_id:
            found.setdefault(waiting.topic, []).append(waiting)
    return found


def _names_another(record: StoredMessage) -> bool:
    """Whether a record stands for a waiting one."""
    if record.prepared_offset:
        return record.prepared_offset > 0
    # The very first record of a log has the offset 0, which otherwise means that nothing is named: look closer.
    text = record.properties_text
    has_left = record.topic not in WAITING_TOPICS or Name.TIMER_ROLL_TIMES in text or record.flags & Flags.COMMITTED
    return record.log_offset > 0 and Name.REAL_TOPIC in text and bool(has_left)


def _saved(config: Path, store: Store, files: FileSystem | None) -> int:
    value = load_config(config / _FILE_NAME, files=files) or {}
    saved = value.get("logOffset")
    end = store.max_log_offset
    # A store without our file was written by RocketMQ alone: no copy in it names anything.
    return max(saved if isinstance(saved, int) else end, store.min_log_offset, end - SCAN_BYTES_MAX)


def _records(store: Store, start: int) -> Iterator[StoredMessage]:
    """Records from a log offset to the end; the unused rest of a segment is stepped over."""
    segment_bytes = store.settings.segment_bytes
    while start < store.max_log_offset:
        try:
            record = decode_record(store.read(start))
        except CorruptRecord:
            start = (start // segment_bytes + 1) * segment_bytes
            continue
        yield record
        start += record.size


class Part(Protocol):
    """One service with progress of its own."""

    def snapshot(self) -> "Snapshot":
        """Its progress now. Called while no delivery is under way."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Progress at one moment: how to write it, and below which log offset it knows of every delivery."""

    write: Callable[[], None]
    known_below: int


class Progress:
    """Saves the progress of all that deliver, together with the position in the log that belongs to it."""

    def __init__(
        self,
        store: Store,
        *,
        config: Path,
        gate: asyncio.Lock,
        parts: Sequence[Part],
        files: FileSystem | None = None,
    ) -> None:
        self._files = files
        self._store = store
        self._config = config
        self._gate = gate
        self._parts = parts
        self._saved = store.written

    async def save_forever(self) -> None:
        """Save every few seconds while the log grows; until cancelled."""
        seconds = 0
        while True:
            await asyncio.sleep(1)
            seconds += 1
            grown = self._store.written - self._saved
            if grown >= SAVE_BYTES or (grown and seconds >= SAVE_SECONDS):
                seconds = 0
                try:
                    await self.save()
                except (KappaError, OSError) as fault:
                    log.error("progress of deliveries could not be saved: will try again fault=%s", fault)

    async def save(self) -> None:
        """Write progress; returns when it is on disk. Waits until what it speaks of is on disk, too."""
        async with self._gate:
            snapshots = [part.snapshot() for part in self._parts]
            written = self._store.written
        known_below = min([written, *(each.known_below for each in snapshots)])
        for _ in range(_FLUSH_POLLS_MAX):
            if self._store.flushed >= written:
                break
            await asyncio.sleep(_FLUSH_POLL_SECONDS)
        else:
            return  # The disk is slow or failing: what was saved before still holds.
        await asyncio.to_thread(self._write, snapshots, known_below)
        self._saved = written

    def _write(self, snapshots: list[Snapshot], known_below: int) -> None:
        for each in snapshots:
            each.write()
        save_config(self._config / _FILE_NAME, {"logOffset": known_below}, files=self._files)

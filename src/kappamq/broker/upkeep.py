"""What a broker does at a steady pace: expiry, long-poll sweeps, checkpoints, retention, statistics."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from kappamq.broker.appender import Appender
from kappamq.broker.config_store import ConfigFile
from kappamq.broker.members import Members
from kappamq.broker.parked_pulls import ParkedPulls
from kappamq.broker.statistics import Statistics
from kappamq.errors import StorageError
from kappamq.store.store import Store

log = logging.getLogger(__name__)

RECHECK_SECONDS: Final = 5
CHECKPOINT_SECONDS: Final = 5
MEMBERS_SECONDS: Final = 10
ENTRIES_SECONDS: Final = 0.05
FEW_QUEUES: Final = 64
"""Up to so many queues get their entries written at once; more of them once a second or less."""
QUEUES_PER_SECOND: Final = 1000
"""While more queues than this wait, their entries wait longer: each is a file to open, to write to and to sync."""
HELD_SECONDS_MAX: Final = 10.0
CHECKPOINT_SHARE: Final = 20
"""A checkpoint takes one in so many seconds at most: with very many queues it syncs as many files."""
CHECKPOINT_REST_SECONDS_MAX: Final = 30
HELD_QUEUES_AT_ONCE: Final = 20
"""Queues whose entries are written between two looks at the network."""
SLOW_SLICE_SECONDS: Final = 0.002


async def tick_forever(
    *,
    appender: Appender,
    parked: ParkedPulls,
    members: Members,
    statistics: Statistics,
    max_offset: Callable[[str, int], int],
) -> None:
    """Once a second: answer what waited too long, drop silent clients, sample figures; until cancelled."""
    seconds = 0
    while True:
        await asyncio.sleep(1)
        seconds += 1
        appender.expire()
        statistics.sample_second()
        parked.sweep(max_offset, recheck=seconds % RECHECK_SECONDS == 0)
        if seconds % 10 == 0:
            statistics.sample()
        if seconds % MEMBERS_SECONDS == 0:
            for connection in members.expire():
                connection.close("closed: no heartbeat")


async def write_entries_forever(store: Store) -> None:
    """Write the queue entries that wait in memory, soon while few queues have some; until cancelled."""
    waited = 0.0
    while True:
        await asyncio.sleep(ENTRIES_SECONDS)
        waited += ENTRIES_SECONDS
        if waited >= held_seconds(store.holding):
            waited = 0.0
            await _write_held(store)


async def _write_held(store: Store) -> None:
    """Write all that is held, in slices; after one that made new files, which is slow, others get as much time."""
    while True:
        begun = time.monotonic()
        if not store.write_held_entries(queues_max=HELD_QUEUES_AT_ONCE):
            return
        took = time.monotonic() - begun
        await asyncio.sleep(took if took > SLOW_SLICE_SECONDS else 0)


def held_seconds(queues: int) -> float:
    """How long the entries of so many queues may wait in memory."""
    if queues <= FEW_QUEUES:
        return 0.0
    return min(max(1.0, queues / QUEUES_PER_SECOND), HELD_SECONDS_MAX)


async def checkpoint_forever(store: Store, checkpointing: asyncio.Lock) -> None:
    """Sync queues and index behind the log, so that a start after a crash has little to read again.

    Holds `checkpointing` meanwhile: the store makes one checkpoint at a time.
    """
    published = store.published
    waited = 0
    rest = 0.0
    while True:
        await asyncio.sleep(1)
        waited += 1
        is_due = waited >= CHECKPOINT_SECONDS and store.published != published
        if (is_due or store.needs_checkpoint) and waited >= rest:
            published, waited = store.published, 0
            begun = time.monotonic()
            try:
                async with checkpointing:
                    await asyncio.to_thread(store.checkpoint)
            except StorageError as fault:
                log.warning("checkpoint failed: will try again fault=%s", fault)
            rest = rest_seconds(time.monotonic() - begun)


def rest_seconds(took_seconds: float) -> float:
    """How long no other checkpoint follows one that took so long. RocketMQ trusts the index for a minute after one."""
    return min(took_seconds * CHECKPOINT_SHARE, CHECKPOINT_REST_SECONDS_MAX)


async def retain_forever(store: Store, indexing: asyncio.Lock, *, every_seconds: float) -> None:
    """Delete what retention allows and watch the space on the disk; until cancelled."""
    was_full = False
    while True:
        await asyncio.sleep(min(every_seconds, 1.0) if was_full else every_seconds)
        try:
            state = await asyncio.to_thread(store.disk_state)
            async with indexing:
                report = store.plan_retention()
            if report.paths:
                await asyncio.to_thread(store.delete_files, report.paths)
                log.info("old files deleted reason=%s files=%d", report.reason, len(report.paths))
        except StorageError as fault:
            log.warning("retention failed: will try again fault=%s", fault)
            continue
        if state.is_full != was_full:
            was_full = state.is_full
            if was_full:
                log.error("disk full: writes are refused used=%.2f %s", state.used_ratio, state.reason)
            else:
                log.info("disk has space again: writes are taken used=%.2f", state.used_ratio)


async def save_offsets_forever(file: ConfigFile, *, is_dirty: Callable[[], bool], every_seconds: float) -> None:
    """Save the progress of groups every few seconds; until cancelled."""
    while True:
        await asyncio.sleep(every_seconds)
        if is_dirty():
            try:
                await file.save()
            except (OSError, StorageError) as fault:
                log.error("committed offsets could not be saved: will try again fault=%s", fault)


def local_midnight_ms(now_ms: int) -> int:
    """Start of the day in local time."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1)) * 1000)

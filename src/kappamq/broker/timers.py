"""Messages for any instant: they wait in the timer topic, and the wheel knows which are due with which tick.

    timer topic ─▶ enqueue: a unit in the timer log, chained to its slot of the wheel
    tick ─▶ dequeue: the units of the slot, oldest first ─▶ message to its topic, or back to the timer topic (roll)

A slot is dealt with when its second is over, so a message comes at its instant rounded up to a second, never before.
What is further away than the roll window is stored again when the window is over: so it also outlives the retention of
the log. Only positions of one slot are ever in memory, eight bytes for each message.

Time is the wall clock: an instant is an instant, and a delay is turned into one when the message is sent. When the
clock is set back, slots that are ahead by the new time wait for it; when it is set forward, all that is due comes, but
for messages that were sent with a delay: they are stored again for an instant that is later by the step. So a delay is
never cut short while the broker runs; a clock set back makes it longer. A start knows only the wall clock.

Nothing here holds the only copy of anything. Progress is saved every few seconds (`deliveries`), units behind the last
save are found in the timer log, and messages behind its end in the timer topic; what was delivered meanwhile is known
from the log. If wheel or timer log are missing, they are made again from the timer topic.
"""

import asyncio
import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kappamq.broker.clock_steps import ClockSteps
from kappamq.broker.delays import StoreRecords, Waiting
from kappamq.broker.deliveries import Snapshot
from kappamq.broker.placing import TIMER_PRECISION_MS, copy_of, delivery_of
from kappamq.broker.recalls import delete_key
from kappamq.broker.timer_files import DELETE, LOG_FILE_BYTES, ROLL, SLOTS, Slot, TimerCheck, TimerLog, TimerWheel, Unit
from kappamq.clock import Clock, elapsed_ms
from kappamq.errors import InvalidMessage, KappaError, StorageError
from kappamq.kernel import java_hash
from kappamq.model.message import StoredMessage
from kappamq.model.names import TIMER_TOPIC
from kappamq.model.properties import PROPERTIES_BYTES_MAX, Name
from kappamq.model.record import NewRecord, decode_record
from kappamq.store.dispatch import Arrival
from kappamq.store.files import FileSystem, RealFileSystem, storage_error
from kappamq.store.reading import QueueEntry

log = logging.getLogger(__name__)

ROLL_WINDOW_MS: Final = 2 * 86_400_000
"""What is further ahead than this is stored again in between (RocketMQ: timerRollWindowSlot)."""
BATCH_MAX: Final = 2048
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
RETRY_SECONDS: Final = 0.2

_AT_ONCE_MS: Final = 2**63 - 1
"""RocketMQ: the enqueue time of a message that was due before it came into the wheel."""
_SPARE_SLOTS: Final = 60
STEPS_MAX: Final = 100
"""Steps of the clock that are remembered."""
_DELAYS: Final = frozenset({Name.TIMER_DELAY_SECONDS, Name.TIMER_DELAY_MS})
_SPARE_PROPERTY_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class _Placed:
    """Units to be written and records to be stored at once, for some entries of the timer topic."""

    units: list[tuple[int, Unit]]
    at_once: list[NewRecord]
    next_offset: int


@dataclass(slots=True)
class _SlotWork:
    """A slot that is being dealt with: how far it is, and where the log ended when it was begun."""

    tick_ms: int
    positions: "array[int]"
    deletes: frozenset[str]
    began: int
    done: int = 0


class Timers:
    """Delivers timed messages. Owned by the event loop; files are touched in threads while the gate is held."""

    def __init__(
        self,
        store: Waiting,
        *,
        store_records: StoreRecords,
        clock: Clock,
        gate: asyncio.Lock,
        root: Path,
        retention_hours: float,
        files: FileSystem | None = None,
        slots: int = SLOTS,
        log_file_bytes: int = LOG_FILE_BYTES,
    ) -> None:
        """`root` is the store directory; `retention_hours` bounds how long a record may wait in the log."""
        self._store = store
        self._store_records = store_records
        self._clock = clock
        self._gate = gate
        self._files = files or RealFileSystem()
        self._check_path = root / "config" / "timercheck"
        self._wheel = TimerWheel(self._files, root / "timerwheel", slots=slots)
        self._log = TimerLog(self._files, root / "timerlog", file_bytes=log_file_bytes)
        half_kept_ms = int(retention_hours * 3_600_000 / 2) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
        self._window_ms = max(2 * TIMER_PRECISION_MS, min(ROLL_WINDOW_MS, half_kept_ms))
        self._read_ms = self._now_tick()
        self._queue_offset = 0
        self._counter = 0
        self._delivered: set[int] = set()
        """Log offsets of records whose copies are stored already."""
        self._work: _SlotWork | None = None
        self._wake = asyncio.Event()

        self._clock_steps = ClockSteps(clock)
        self._steps: tuple[tuple[int, int, int], ...] = ()
        """(log offset, ms, elapsed ms): records before it were stored before the clock stepped by so many ms."""

    # ── Start and end ───────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, delivered: Iterable[StoredMessage] = ()) -> None:
        """Go on where the last run ended. Run it in a thread.

        `delivered` are timer records whose copies were stored after progress was saved for the last time.
        """
        self._delivered = {message.log_offset for message in delivered}
        check = TimerCheck.load(self._files, self._check_path)
        self._queue_offset = self._store.min_offset(TIMER_TOPIC, 0)
        if check is None:
            self._reset_files()
            return
        self._read_ms, self._counter = check.read_ms, check.counter
        if check.log_end and (self._wheel.is_new or not self._log.reaches(check.log_end)):
            self._rebuild(check.queue_offset)
            return
        last: Unit | None = None
        for position, unit in self._log.recover(check.log_end):
            last = unit
            if unit.tick_ms >= self._read_ms:
                self._link(position, unit)
        self._relink_lost()
        self._queue_offset = max(self._queue_offset, check.queue_offset)
        if last is not None:
            try:
                message = decode_record(self._store.read(last.log_offset, last.size))
                self._queue_offset = max(self._queue_offset, message.queue_offset + 1)
            except StorageError:
                pass  # Its record has expired, and with it all before it in the queue.

    def _relink_lost(self) -> None:
        """After a power cut the wheel may have reached the disk before the units it names: chain what is left anew."""
        ticks = self._wheel.ticks_beyond(self._log.end)
        if not ticks:
            return
        for tick_ms in ticks:
            self._wheel.clear(tick_ms)
        for position, unit in self._log.recover(self._log.start):
            if unit.tick_ms >= self._read_ms:
                self._link(position, unit)

    def _link(self, position: int, unit: Unit) -> None:
        slot = self._wheel.slot(unit.tick_ms)
        if slot is None:
            self._wheel.put(unit.tick_ms, Slot(position, position, 1))
        elif slot.last < position:
            self._wheel.put(unit.tick_ms, Slot(slot.first, position, slot.units + 1))

    def _rebuild(self, enqueued: int) -> None:
        """Make wheel and timer log again from the timer topic: all but what was due before progress was saved.

        `enqueued` is the queue offset that was reached then; what follows it was in no slot yet.
        """
        log.warning("timer files are incomplete: they are made again from the timer topic")
        self._reset_files()
        start, end = self._store.min_offset(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0)
        for entry in self._all_entries(start, end):
            message = self._read(entry)
            if message is None:
                continue
            if message.prepared_offset > 0:
                self._delivered.add(message.prepared_offset)
            if entry.queue_offset < enqueued and _tick_of(message) < self._read_ms:
                self._delivered.add(message.log_offset)
        self._queue_offset = start

    def _reset_files(self) -> None:
        self._log.truncate()
        self._wheel.reset()

    def _all_entries(self, start: int, end: int) -> Iterable[QueueEntry]:
        while start < end:
            entries = self._store.entries(TIMER_TOPIC, 0, start, BATCH_MAX)
            if not entries:
                return
            yield from entries
            start = entries[-1].queue_offset + 1

    def snapshot(self) -> Snapshot:
        """Progress to be saved."""
        self._counter += 1
        check = self.check()

        def write() -> None:
            self._log.sync()
            self._wheel.sync()
            check.save(self._files, self._check_path)

        return Snapshot(write, self._store.written if self._work is None else self._work.began)

    def check(self) -> TimerCheck:
        """Progress now, as slaves ask for it."""
        return TimerCheck(self._read_ms, self._log.end, self._queue_offset, self._clock.now_ms(), self._counter)

    def close(self) -> None:
        self._wheel.close()
        self._log.close()

    # ── Running ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Messages began to wait: they want to get into the wheel before their tick."""
        mine = [arrival for arrival in arrivals if arrival.topic == TIMER_TOPIC]
        if mine:
            self._notice_step(mine)
            self._wake.set()

    async def run_forever(self) -> None:
        """Enqueue what arrives and deliver with every tick; until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.run_once()
                pause = (TIMER_PRECISION_MS - self._clock.now_ms() % TIMER_PRECISION_MS) / 1000 + 0.001
            except (KappaError, OSError) as fault:
                log.warning("timed messages could not be handled: will try again fault=%s", fault)
                pause = RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def run_once(self) -> None:
        """Do all that can be done now."""
        self._notice_step(())
        is_busy = True
        while is_busy:
            # What is stored by now may belong to a slot that is over by now, or take a message of it back: it goes
            # first. What comes later can wait for the slots: else a steady stream would hold them up for ever.
            now_tick, end = self._now_tick(), self._store.max_offset(TIMER_TOPIC, 0)
            # If the clock was set back, slots from its new time on may get units again; those dealt with are empty.
            self._read_ms = min(self._read_ms, now_tick)
            is_busy = False
            while self._queue_offset < end and await self._enqueue():
                is_busy = True
            while await self._dequeue(now_tick):
                is_busy = True

    def _now_tick(self) -> int:
        return self._clock.now_ms() // TIMER_PRECISION_MS * TIMER_PRECISION_MS

    def _notice_step(self, arrivals: Sequence[Arrival]) -> None:
        step_ms = self._clock_steps.notice()
        if not step_ms:
            return
        log.warning("the clock stepped: timed messages follow it, delays do not step_ms=%d", step_ms)
        after = [each.log_offset for each in arrivals if self._clock_steps.is_after(step_ms, each.stored_at_ms)]
        now = elapsed_ms(self._clock)
        # Whatever waits longer than the roll window is stored again within it, with the steps taken into account.
        kept = [step for step in self._steps if now - step[2] < 2 * self._window_ms]
        self._steps = (*kept, (min(after, default=self._store.written), step_ms, now))[-STEPS_MAX:]

    def _stepped_ms(self, message: StoredMessage) -> int:
        """By how much the clock stepped while a message waited that was sent with a delay; 0 for an instant."""
        if not self._steps or _DELAYS.isdisjoint(message.properties):
            return 0
        return sum(step_ms for end, step_ms, _ in self._steps if message.log_offset < end)

    def _due_copy(self, message: StoredMessage, enqueued_ms: int) -> NewRecord | None:
        """What is stored when a message's slot is over: the message at its address, or again here for later."""
        now_ms = self._clock.now_ms()
        stepped_ms = self._stepped_ms(message)
        if stepped_ms > 0 and _stepped_tick(message, stepped_ms) >= self._now_tick():
            return _postponed_copy(message, stepped_ms)
        return _delivered_copy(message, enqueued_ms, now_ms)

    # ── Into the wheel ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _enqueue(self) -> bool:
        """Bring the next messages of the timer topic into the wheel; whether any went there."""
        async with self._gate:
            # Taken here and not in the thread: there, an entry may be seen before its record can be read.
            entries = self._store.entries(TIMER_TOPIC, 0, self._queue_offset, BATCH_MAX)
            placed = await asyncio.to_thread(self._place, entries)
            if placed.at_once:
                await _store_all(self._store_records, placed.at_once)
            try:
                await asyncio.to_thread(self._write_units, placed.units)
            except StorageError:
                self._delivered.update(record.prepared_offset for record in placed.at_once)
                raise
            # No await from here: progress moves with the units.
            is_new = placed.next_offset > self._queue_offset
            self._queue_offset = placed.next_offset
        return is_new

    def _place(self, entries: list[QueueEntry]) -> _Placed:
        """Decide for entries what becomes of them. Changes nothing."""
        now_tick = self._now_tick()
        # A slot that is over may still take units; a recall that comes late finds its message there.
        open_from_ms = self._read_ms if self._work is None else self._work.tick_ms + TIMER_PRECISION_MS
        # A slot one turn of the wheel ahead of one that is not yet dealt with must wait.
        horizon_ms = self._read_ms + (self._wheel.slots - _SPARE_SLOTS) * TIMER_PRECISION_MS
        units: list[tuple[int, Unit]] = []
        at_once: list[NewRecord] = []
        next_offset = self._queue_offset
        for entry in entries:
            message = self._read(entry)
            if message is not None and message.log_offset not in self._delivered:
                tick_ms = _tick_of(message)
                is_delete = Name.TIMER_DELETE_ID in message.properties
                if tick_ms < open_from_ms:
                    record = None if is_delete else self._due_copy(message, _AT_ONCE_MS)
                    at_once += [record] if record is not None else []
                else:
                    unit = self._unit(message, tick_ms, now_tick, is_delete=is_delete)
                    if unit.tick_ms >= horizon_ms:
                        break
                    units.append((unit.tick_ms, unit))
            next_offset = entry.queue_offset + 1
        return _Placed(units, at_once, next_offset)

    def _unit(self, message: StoredMessage, tick_ms: int, now_tick: int, *, is_delete: bool) -> Unit:
        magic, slot_ms = 1 | (DELETE if is_delete else 0), tick_ms
        excess_ms = tick_ms - now_tick - self._window_ms
        if excess_ms >= 0:
            magic |= ROLL
            # RocketMQ: half the window when little is left behind it, so that the last stretch is not a short one.
            span_ms = self._window_ms // 2 if excess_ms < self._window_ms // 3 else self._window_ms
            slot_ms = now_tick + span_ms // TIMER_PRECISION_MS * TIMER_PRECISION_MS
        topic_hash = java_hash(message.properties.get(Name.REAL_TOPIC, ""))
        # A slot that is long over, as after a month of standstill, would be too far from now for the field.
        written_ms = min(now_tick, slot_ms)
        return Unit(-1, magic, written_ms, slot_ms - written_ms, message.log_offset, message.size, topic_hash)

    def _write_units(self, units: list[tuple[int, Unit]]) -> None:
        """Write units, then chain them to their slots: a crash in between is mended by reading the timer log."""
        if not units:
            return
        slots: dict[int, Slot] = {}
        before: dict[int, Slot | None] = {
            tick_ms: self._wheel.slot(tick_ms) for tick_ms in {tick_ms for tick_ms, _ in units}
        }
        chained: list[Unit] = []
        for position, (tick_ms, unit) in zip(self._log.positions(len(units)), units):
            slot = slots.get(tick_ms) or before[tick_ms]
            chained.append(unit._replace(previous=slot.last if slot is not None else -1))
            count = (slot.units if slot is not None else 0) + (-1 if unit.magic & DELETE else 1)
            slots[tick_ms] = Slot(slot.first if slot is not None else position, position, count)
        end = self._log.end
        linked: list[int] = []
        try:
            self._log.append(chained)
            for tick_ms, slot in slots.items():
                self._wheel.put(tick_ms, slot)
                linked.append(tick_ms)
        except OSError as error:
            # The same units will be written again at the same place: nothing may point to them until then.
            self._log.end = end
            for tick_ms in linked:
                self._wheel.put(tick_ms, before[tick_ms] or Slot(-1, -1, 0))
            raise storage_error("writing timer files failed", error) from error

    # ── Out of the wheel ────────────────────────────────────────────────────────────────────────────────────────────

    async def _dequeue(self, now_tick: int) -> bool:
        """Deal with the next slot before `now_tick`; whether there is anything new to be done now."""
        work = self._work
        if work is None:
            tick_ms = await asyncio.to_thread(self._wheel.next_filled, self._read_ms, now_tick)
            if tick_ms is None:
                has_moved = now_tick > self._read_ms
                self._read_ms = max(self._read_ms, now_tick)
                return has_moved
            positions, deletes = await asyncio.to_thread(self._collect, tick_ms)
            self._read_ms = tick_ms
            self._work = work = _SlotWork(tick_ms, positions, deletes, self._store.written)
        while work.done < len(work.positions):
            async with self._gate:
                records, done = await asyncio.to_thread(self._copies, work)
                await _store_all(self._store_records, records)
                work.done = done
        async with self._gate:
            await asyncio.to_thread(self._finish, work.tick_ms)
            self._read_ms = work.tick_ms + TIMER_PRECISION_MS
            self._work = None
        return True

    def _collect(self, tick_ms: int) -> "tuple[array[int], frozenset[str]]":
        """Positions of the units of a slot, oldest first, and the keys of messages that were taken back."""
        positions = array("q")
        deletes: set[str] = set()
        slot = self._wheel.slot(tick_ms)
        position = slot.last if slot is not None else -1
        while position >= 0:
            unit = self._log.unit(position)
            if unit is None or unit.tick_ms != tick_ms:
                log.error("timer chain is broken: what is before is not known here tick=%d at=%d", tick_ms, position)
                break
            if unit.magic & DELETE and not unit.magic & ROLL:
                message = self._read_unit(unit)
                if message is not None:
                    deletes.add(message.properties.get(Name.TIMER_DELETE_ID, ""))
            else:
                positions.append(position)
            position = unit.previous
        positions.reverse()
        return positions, frozenset(deletes)

    def _copies(self, work: "_SlotWork") -> tuple[list[NewRecord], int]:
        """Records to store for the next units of a slot, and how many units are done then."""
        records: list[NewRecord] = []
        size = 0
        at, positions = work.done, work.positions
        end = min(at + BATCH_MAX, len(positions))
        while at < end and size < BATCH_BYTES_MAX:
            unit = self._log.unit(positions[at])
            at += 1
            message = self._read_unit(unit) if unit is not None else None
            if unit is None or message is None or message.log_offset in self._delivered:
                continue
            if work.deletes and _keys_of(message) & work.deletes:
                continue
            record: NewRecord | None
            if unit.magic & ROLL:
                stepped_ms = self._stepped_ms(message)
                record = _rolled_copy(message, unit.written_at_ms, self._clock.now_ms(), stepped_ms=stepped_ms)
            else:
                record = self._due_copy(message, unit.written_at_ms)
            if record is None:
                log.error("timed message dropped: it has no address log_offset=%d", message.log_offset)
                continue
            records.append(record)
            size += message.size
        return records, at

    def _finish(self, tick_ms: int) -> None:
        self._wheel.clear(tick_ms)
        # No slot is further ahead of its writing than the wheel is long.
        self._log.drop_before(tick_ms - self._wheel.slots * TIMER_PRECISION_MS)

    # ── Reading records ─────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, entry: QueueEntry) -> StoredMessage | None:
        return self._read_at(entry.log_offset, entry.size)

    def _read_unit(self, unit: Unit) -> StoredMessage | None:
        return self._read_at(unit.log_offset, unit.size)

    def _read_at(self, log_offset: int, size: int) -> StoredMessage | None:
        try:
            message = decode_record(self._store.read(log_offset, size))
        except StorageError as fault:
            log.error("timed message lost: its record is gone log_offset=%d fault=%s", log_offset, fault)
            return None
        return message if message.topic == TIMER_TOPIC else None


async def _store_all(store_records: StoreRecords, records: Sequence[NewRecord]) -> None:
    """Store records together; one that can never be stored does not hold up the others."""
    if not records:
        return
    try:
        await store_records(records)
    except InvalidMessage:
        for record in records:
            try:
                await store_records([record])
            except InvalidMessage as fault:
                log.error("timed message dropped: it cannot be stored topic=%s fault=%s", record.topic, fault)


def _tick_of(message: StoredMessage) -> int:
    """The slot a message belongs to; 0, which is long over, when it does not say."""
    text = message.properties.get(Name.TIMER_OUT_MS, "")
    return int(text) // TIMER_PRECISION_MS * TIMER_PRECISION_MS if text.isdecimal() else 0


def _stepped_tick(message: StoredMessage, stepped_ms: int) -> int:
    """The slot of a message that waited while the clock stepped: rounded up, so that it is not early."""
    return max(0, -(-(_tick_of(message) + stepped_ms) // TIMER_PRECISION_MS) * TIMER_PRECISION_MS)


def _keys_of(message: StoredMessage) -> set[str]:
    """What a recall may name this message by. RocketMQ: the unique id, with the topic in 5.3.2 and 5.3.3."""
    unique_id = message.properties.get(Name.UNIQUE_ID, "")
    return {unique_id, delete_key(message.properties.get(Name.REAL_TOPIC, ""), unique_id)} if unique_id else set()


def _delivered_copy(message: StoredMessage, enqueued_ms: int, now_ms: int) -> NewRecord | None:
    return delivery_of(message, properties=_with_times(message, enqueued_ms, now_ms))


def _rolled_copy(message: StoredMessage, enqueued_ms: int, now_ms: int, *, stepped_ms: int = 0) -> NewRecord:
    if stepped_ms:
        return _postponed_copy(message, stepped_ms)
    rolls = message.properties.get(Name.TIMER_ROLL_TIMES, "0")
    times = str(int(rolls) + 1 if rolls.isdecimal() else 1)
    properties = _with_times(message, enqueued_ms, now_ms, {Name.TIMER_ROLL_TIMES: times})
    return copy_of(message, topic=TIMER_TOPIC, queue_id=0, properties=properties)


def _postponed_copy(message: StoredMessage, stepped_ms: int) -> NewRecord:
    """The message for the instant that its delay ends at by the new time."""
    properties = message.properties | {Name.TIMER_OUT_MS: str(_stepped_tick(message, stepped_ms))}
    return copy_of(message, topic=TIMER_TOPIC, queue_id=0, properties=properties)


def _with_times(
    message: StoredMessage, enqueued_ms: int, now_ms: int, more: dict[str, str] | None = None
) -> dict[str, str] | None:
    """Properties of the copy; `None` for those of the message."""
    if len(message.properties_text) > (PROPERTIES_BYTES_MAX - _SPARE_PROPERTY_BYTES) // 4:
        size = len(message.properties_text.encode())
        if size > PROPERTIES_BYTES_MAX - _SPARE_PROPERTY_BYTES:
            return None  # These are for people; a message with many properties goes without.
    times = {Name.TIMER_ENQUEUE_MS: str(enqueued_ms), Name.TIMER_DEQUEUE_MS: str(now_ms)}
    return message.properties | (more or {}) | times

"""The parts of a broker that deliver on their own account, on a simulated disk that can lose power at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.delays import Delays
from kappamq.broker.deliveries import Progress, waiting_since
from kappamq.broker.placing import PlacingRules, as_half, place
from kappamq.broker.timers import Timers
from kappamq.broker.topics import BuiltInTopics, Topics
from kappamq.broker.transactions import Half, TransactionRules, Transactions
from kappamq.clock import ManualClock
from kappamq.model.message import StoredMessage
from kappamq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.model.properties import encode_properties
from kappamq.model.record import NewRecord, decode_records
from kappamq.store.config_files import load_config, save_config
from kappamq.store.store import Appended, FetchLimit, Store
from tests.faults.records import HOST, small_settings
from tests.faults.simulated_files import Killed, SimulatedFileSystem

ROOT: Final = Path("/store")
CONFIG: Final = ROOT / "config"
LEVELS_MS: Final = (1000, 5000, 60_000)
TOPIC: Final = "orders"
GROUP: Final = "producers"
PLACING: Final = PlacingRules(delay_levels=len(LEVELS_MS), timer_enabled=True, timer_max_delay_seconds=10**8)
WHEEL_SLOTS: Final = 4096
UNITS_PER_LOG_FILE: Final = 7


class CrashingBroker:
    """Start it, send to it, let time pass, crash it; then ask the log what consumers would have seen."""

    def __init__(self, *, is_torn: bool = False) -> None:
        """With `is_torn` the records of one append reach the disk one by one, and a crash may come in between."""
        self._is_torn = is_torn
        self.files = SimulatedFileSystem()
        self.clock = ManualClock()
        self.asked: list[tuple[Half, StoredMessage]] = []
        self.levels_ms: tuple[int, ...] = LEVELS_MS
        self.store: Store | None = None

    # ── Life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        self.files.now_ms = self.clock.now_ms()
        settings = small_settings(delay_levels_ms=self.levels_ms, segment_bytes=32_768)
        store = self.store = Store.open(ROOT, settings, clock=self.clock, files=self.files)
        self.offsets = CommittedOffsets(clock=self.clock)
        self.offsets.load(load_config(CONFIG / "consumerOffset.json", files=self.files))
        gate = asyncio.Lock()
        found = waiting_since(store, CONFIG, files=self.files)
        self.delays = Delays(
            store,
            store_records=self.append,
            delays_ms=self.levels_ms,
            clock=self.clock,
            gate=gate,
            file=CONFIG / "delayOffset.json",
            files=self.files,
        )
        self.delays.load(found.get(SCHEDULE_TOPIC, []))
        self.timers = Timers(
            store,
            store_records=self.append,
            clock=self.clock,
            gate=gate,
            root=ROOT,
            retention_hours=1,
            files=self.files,
            slots=WHEEL_SLOTS,
            log_file_bytes=52 * UNITS_PER_LOG_FILE + 20,
        )
        self.timers.load(found.get(TIMER_TOPIC, []))
        built_in = BuiltInTopics(
            cluster="c", broker="b", template_queues=4, auto_create=True, delay_levels=len(LEVELS_MS)
        )
        self.transactions = Transactions(
            store,
            store_records=self.append,
            offsets=self.offsets,
            clock=self.clock,
            rules=TransactionRules(
                timeout_ms=6000, check_interval_ms=10_000, check_max=3, store_host=HOST, placing=PLACING
            ),
            ask=lambda half, message: self.asked.append((half, message)),
            topics=Topics(built_in, clock=self.clock, on_change=lambda: None),
        )
        self.transactions.load(found.get(HALF_TOPIC, []))
        self.progress = Progress(store, config=CONFIG, gate=gate, parts=[self.delays, self.timers], files=self.files)
        await self.transactions.repair()
        await self.progress.save()

    async def append(self, records: Sequence[NewRecord]) -> list[Appended]:
        """Store durably and make visible, as the appender does."""
        assert self.store is not None
        places: list[Appended] = []
        for part in [[record] for record in records] if self._is_torn else [list(records)]:
            places += self.store.append(part)
            self.store.mark_flushed(self.store.flush())
        arrivals = self.store.publish()
        self.delays.arrived(arrivals)
        self.timers.arrived(arrivals)
        self.transactions.arrived(arrivals)
        return places

    async def save(self) -> None:
        """What the broker does every few seconds."""
        await self.progress.save()
        self.transactions.note_progress()
        save_config(CONFIG / "consumerOffset.json", self.offsets.as_file(), files=self.files)

    async def stop(self) -> None:
        await self.save()
        self.timers.close()
        assert self.store is not None
        self.store.close()

    # ── Work ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, body: bytes, **properties: str) -> list[Appended]:
        record, text = _record(body, properties)
        return await self.append([place(record, text, rules=PLACING, now_ms=self.clock.now_ms())])

    async def send_half(self, body: bytes, **properties: str) -> Appended:
        record, text = _record(body, {"PGROUP": GROUP, "TRAN_MSG": "true", **properties})
        [placed] = await self.append([as_half(record, text)])
        return placed

    async def deliver(self) -> None:
        """Deliver all that is due by now and ask what is to be asked."""
        await self.delays.deliver_due()
        await self.timers.run_once()
        await self.transactions.ask_due()

    # ── What consumers see ──────────────────────────────────────────────────────────────────────────────────────────

    def messages(self, topic: str = TOPIC) -> list[StoredMessage]:
        assert self.store is not None
        found: list[StoredMessage] = []
        while True:
            fetched = self.store.fetch(topic, 0, len(found), limit=FetchLimit(count=64, bytes_max=1 << 20))
            batch = [message for piece in fetched.records for message in decode_records(piece)]
            if not batch:
                return found
            found += batch

    def counts(self) -> Counter[bytes]:
        return Counter(message.body for message in self.messages())


def run_until_crash(broker: CrashingBroker, work: Callable[[], Coroutine[Any, Any, None]], *, crash_at: int) -> bool:
    """Work until the disk has made `crash_at` steps; whether the process was killed there."""
    left = crash_at

    def count(_action: str, _path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    broker.files.on_step = count
    try:
        asyncio.run(work())
    except Killed:
        return True
    finally:
        broker.files.on_step = None
    return False


def crash(broker: CrashingBroker, random: Random | None) -> None:
    """End the process, or with dice the whole machine."""
    if random is None:
        broker.files.kill()
    else:
        broker.files.power_cut(random)


def _record(body: bytes, properties: dict[str, str]) -> tuple[NewRecord, str]:
    text = encode_properties({"UNIQ_KEY": body.hex().upper(), **properties})
    return NewRecord(TOPIC, 0, body, text.encode(), 1, HOST, HOST), text

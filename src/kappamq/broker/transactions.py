"""Transactions: half messages wait in a topic of their own until their producer has decided.

    half message ─▶ RMQ_SYS_TRANS_HALF_TOPIC ──commit──▶ message in its topic, then the operation record: one append
                                             ──roll back──▶ operation record
                                             ──silence──▶ the producer group is asked; after some times it is given up

An operation record (topic RMQ_SYS_TRANS_OP_HALF_TOPIC, tag `d`) holds the queue offset of the half message that it
ends, as one number: RocketMQ 4.9 and 5.x read it. What is undecided follows from both queues and is found again at
start; a committed message names its half message, so that a crash between it and its operation record commits nothing
twice.

A half message stays where it is while it is asked about (RocketMQ stores it anew each time). So an answer that was on
its way meets the same offsets, and no decision that was acknowledged is ever asked for again. How often a message was
asked about is kept in memory: after a restart counting begins anew.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.delays import StoreRecords
from kappamq.broker.placing import PlacingRules, address_of, copy_of, place
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import Busy, KappaError, StorageError
from kappamq.model.message import TRANSACTION_MASK, Flags, StoredMessage
from kappamq.model.names import GIVEN_UP_TOPIC, HALF_TOPIC, OPERATION_TOPIC
from kappamq.model.properties import PROPERTIES_BYTES_MAX, Name, encode_properties
from kappamq.model.record import NewRecord, decode_record
from kappamq.store.dispatch import Arrival
from kappamq.store.store import Store

log = logging.getLogger(__name__)

SYSTEM_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Group under which the progress in both queues is kept, as in RocketMQ."""
OPERATION_TAG: Final = "d"
UNDECIDED_MAX: Final = 1_000_000
"""Half messages that may be undecided at once; beyond it, sends of half messages are answered *busy*."""
CHECKS_PER_SECOND_MAX: Final = 2000
DECISIONS_KEPT_MAX: Final = 10_000
"""Decisions that are remembered so that a repeated request gets the same answer."""
NOTE_SECONDS: Final = 1.0

_READ_COUNT: Final = 1024
_OPERATIONS_PER_BLOCK: Final = 1000


@dataclass(slots=True)
class Half:
    """One undecided half message."""

    queue_offset: int
    log_offset: int
    size: int
    immunity_ms: int
    checks: int = 0
    is_deciding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRules:
    """When to ask, how often, and what the broker writes under which address."""

    timeout_ms: int
    check_interval_ms: int
    check_max: int
    store_host: bytes
    placing: PlacingRules


class Transactions:
    """All undecided half messages of this broker. Owned by the event loop."""

    def __init__(
        self,
        store: Store,
        *,
        store_records: StoreRecords,
        offsets: CommittedOffsets,
        clock: Clock,
        rules: TransactionRules,
        ask: Callable[[Half, StoredMessage], None],
        topics: Topics,
    ) -> None:
        """`ask` sends the question for a half message to a producer; it may raise `KappaError`."""
        self._store = store
        self._store_records = store_records
        self._offsets = offsets
        self._clock = clock
        self._rules = rules
        self._ask = ask
        self._topics = topics
        self._undecided: dict[int, Half] = {}
        """By queue offset, in that order."""
        self._schedule: list[tuple[float, int]] = []
        self._decisions: dict[int, int] = {}
        self._blocks: deque[tuple[int, int, int]] = deque()
        """(first operation offset, end, highest half offset) of operation records that a restart may need."""
        self._unrecorded: list[int] = []
        """Half messages that were committed just before a crash took the operation record."""
        self._wake = asyncio.Event()

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, committed: Iterable[StoredMessage] = ()) -> None:
        """Find the undecided ones: half messages without an operation record. May take a while: run it in a thread.

        `committed` are half messages whose committed copy is in the log, perhaps without its operation record.
        """
        store = self._store
        operation_start = self._start_of(OPERATION_TOPIC)
        half_start = self._start_of(HALF_TOPIC)
        ended: set[int] = set()
        for message in _messages(store, OPERATION_TOPIC, operation_start):
            halves = _halves_of(message)
            ended.update(halves)
            self._note_operation(message.queue_offset, max(halves, default=-1))
        self._unrecorded = [each.queue_offset for each in committed if each.queue_offset not in ended]
        ended.update(self._unrecorded)
        now_ms = self._clock.now_ms()
        for message in _messages(store, HALF_TOPIC, half_start):
            if message.queue_offset in ended:
                continue
            half = Half(
                message.queue_offset,
                message.log_offset,
                message.size,
                self._immunity_ms(message.properties.get(Name.CHECK_IMMUNITY_SECONDS)),
                _number(message.properties.get(Name.TRANSACTION_CHECKS), 0),
            )
            age_ms = now_ms - message.stored_at_ms
            self._add(half, after_ms=min(max(half.immunity_ms - age_ms, 0), half.immunity_ms))

    async def repair(self) -> None:
        """Store the operation records that a crash took; to be done before progress is saved for the first time."""
        if self._unrecorded:
            await self._store_records([self._operation(queue_offset) for queue_offset in self._unrecorded])
            self._unrecorded = []

    def _start_of(self, topic: str) -> int:
        found = self._offsets.find(topic, SYSTEM_GROUP, 0) or 0
        return max(found, self._store.min_offset(topic, 0))

    def use(self, rules: TransactionRules) -> None:
        """Go by other rules from now on."""
        self._rules = rules

    # ── What is undecided ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def undecided(self) -> int:
        """Half messages without a decision."""
        return len(self._undecided)

    def check_room(self) -> None:
        """Raise `Busy` when no more half messages can be kept in mind."""
        if len(self._undecided) >= UNDECIDED_MAX:
            raise Busy(f"{UNDECIDED_MAX} transactions are undecided, the limit: decide some, or try again later")

    @property
    def timeout_ms(self) -> int:
        """How old a half message must be before its producer is asked."""
        return self._rules.timeout_ms

    def find(self, queue_offset: int) -> Half | None:
        """An undecided half message."""
        return self._undecided.get(queue_offset)

    def decision_of(self, queue_offset: int) -> int | None:
        """What was decided a short time ago."""
        return self._decisions.get(queue_offset)

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Half messages and operation records became visible."""
        for arrival in arrivals:
            if arrival.topic == HALF_TOPIC:
                immunity_ms = self._immunity_ms(_immunity_text(arrival.properties_text))
                half = Half(arrival.queue_offset, arrival.log_offset, arrival.size, immunity_ms)
                self._add(half, after_ms=immunity_ms)
            elif arrival.topic == OPERATION_TOPIC:
                # Our own records are known by the order of deciding; the highest offset is all that matters here.
                self._note_operation(arrival.queue_offset, self._store.max_offset(HALF_TOPIC, 0) - 1)

    def _add(self, half: Half, *, after_ms: int) -> None:
        self._undecided[half.queue_offset] = half
        at = self._clock.monotonic() + after_ms / 1000
        if not self._schedule or at < self._schedule[0][0]:
            self._wake.set()
        heapq.heappush(self._schedule, (at, half.queue_offset))

    def _immunity_ms(self, text: str | None) -> int:
        seconds = _number(text, -1)
        return seconds * 1000 if seconds >= 0 else self._rules.timeout_ms

    # ── Deciding ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, half: Half, message: StoredMessage) -> None:
        """Store the message where it belongs; returns when it and its operation record are durable."""
        address = address_of(message)
        if address is None:
            raise StorageError(
                f"half message at log offset {message.log_offset} has no address: it cannot be committed"
            )
        record = copy_of(message, topic=address[0], queue_id=address[1], properties=_counted(half, message))
        record = replace(record, flags=message.flags & ~TRANSACTION_MASK | Flags.COMMITTED)
        now_ms = self._clock.now_ms()
        placed = place(record, message.properties_text, rules=self._rules.placing, now_ms=now_ms)
        await self._end(half, Flags.COMMITTED, [placed])

    async def roll_back(self, half: Half) -> None:
        """Forget the message; returns when that is durable."""
        await self._end(half, Flags.ROLLED_BACK, [])

    async def _end(self, half: Half, decision: int, records: list[NewRecord]) -> None:
        """Store records and the operation record in this order: the second is never in the log without the first."""
        half.is_deciding = True
        try:
            await self._store_records([*records, self._operation(half.queue_offset)])
        except KappaError:
            half.is_deciding = False
            raise
        self._undecided.pop(half.queue_offset, None)
        self._decisions[half.queue_offset] = decision
        if len(self._decisions) > DECISIONS_KEPT_MAX:
            del self._decisions[next(iter(self._decisions))]

    def _operation(self, queue_offset: int) -> NewRecord:
        host = self._rules.store_host
        return NewRecord(
            OPERATION_TOPIC,
            0,
            str(queue_offset).encode(),
            encode_properties({Name.TAGS: OPERATION_TAG}).encode(),
            self._clock.now_ms(),
            host,
            host,
        )

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run_forever(self) -> None:
        """Ask about what stays undecided, give up in the end, note progress; until cancelled."""
        while True:
            self._wake.clear()
            asked = await self.ask_due()
            self.note_progress()
            pause = NOTE_SECONDS if asked else min(max(self._pause(), 0.0), NOTE_SECONDS)
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _pause(self) -> float:
        return self._schedule[0][0] - self._clock.monotonic() if self._schedule else NOTE_SECONDS

    async def ask_due(self) -> int:
        """Ask for every half message whose time has come; how many."""
        now = self._clock.monotonic()
        asked = 0
        while self._schedule and self._schedule[0][0] <= now and asked < CHECKS_PER_SECOND_MAX:
            _, queue_offset = heapq.heappop(self._schedule)
            half = self._undecided.get(queue_offset)
            if half is None:
                continue
            heapq.heappush(self._schedule, (now + self._rules.check_interval_ms / 1000, queue_offset))
            if half.is_deciding:
                continue
            asked += 1
            try:
                await self._ask_one(half)
            except KappaError as fault:
                log.warning("undecided transaction not asked about: will try again fault=%s", fault)
        return asked

    async def _ask_one(self, half: Half) -> None:
        try:
            message = decode_record(await asyncio.to_thread(self._store.read, half.log_offset, half.size))
        except StorageError as fault:
            log.error("half message is gone: given up queue_offset=%d fault=%s", half.queue_offset, fault)
            await self.roll_back(half)
            return
        # A decision may have come while the record was read: then there is nothing to ask any more.
        if half.is_deciding or half.queue_offset not in self._undecided:
            return
        if half.checks >= self._rules.check_max:
            log.warning(
                "transaction given up: nobody decided queue_offset=%d checks=%d", half.queue_offset, half.checks
            )
            self._topics.ensure(GIVEN_UP_TOPIC, 1)
            given_up = copy_of(message, topic=GIVEN_UP_TOPIC, queue_id=0, properties=_counted(half, message))
            await self._end(half, 0, [given_up])
            return
        half.checks += 1
        self._ask(half, message)

    # ── Progress ────────────────────────────────────────────────────────────────────────────────────────────────────

    def note_progress(self) -> None:
        """Set the offsets of both queues behind which nothing is needed after a restart."""
        oldest = next(iter(self._undecided), self._store.max_offset(HALF_TOPIC, 0))
        while self._blocks and self._blocks[0][2] < oldest:
            self._blocks.popleft()
        operation = self._blocks[0][0] if self._blocks else self._store.max_offset(OPERATION_TOPIC, 0)
        for topic, offset in ((HALF_TOPIC, oldest), (OPERATION_TOPIC, operation)):
            if self._offsets.find(topic, SYSTEM_GROUP, 0) != offset:
                self._offsets.commit(topic, SYSTEM_GROUP, 0, offset)

    def _note_operation(self, queue_offset: int, half_offset: int) -> None:
        if self._blocks and self._blocks[-1][1] - self._blocks[-1][0] < _OPERATIONS_PER_BLOCK:
            start, _, highest = self._blocks.pop()
            self._blocks.append((start, queue_offset + 1, max(highest, half_offset)))
        else:
            self._blocks.append((queue_offset, queue_offset + 1, half_offset))


def check_body(half: Half, message: StoredMessage) -> bytes:
    """The half message as a producer is shown it: under its own address."""
    topic, queue_id = address_of(message) or (message.topic, message.queue_id)
    return copy_of(message, topic=topic, queue_id=queue_id, properties=_counted(half, message)).encode(
        queue_offset=half.queue_offset, log_offset=half.log_offset, stored_at_ms=message.stored_at_ms, append_crc=False
    )


def _counted(half: Half, message: StoredMessage) -> dict[str, str] | None:
    """Properties that tell how often was asked, where there is room for that; `None`: as they are."""
    properties = message.properties | {Name.TRANSACTION_CHECKS: str(half.checks)}
    properties.pop(Name.RECORD_CRC, None)
    has_room = len(encode_properties(properties).encode()) <= PROPERTIES_BYTES_MAX
    return properties if half.checks and has_room else None


def resumed(message: StoredMessage) -> NewRecord:
    """A given-up half message that is to be asked about again, from the beginning."""
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in (Name.TRANSACTION_CHECKS, Name.RECORD_CRC, Name.PREPARED_QUEUE_OFFSET)
    }
    return replace(copy_of(message, topic=HALF_TOPIC, queue_id=0, properties=properties), prepared_offset=0)


def _messages(store: Store, topic: str, start: int) -> Iterator[StoredMessage]:
    """All messages of queue 0 from an offset on that can be read."""
    while start < store.max_offset(topic, 0):
        entries = store.entries(topic, 0, start, _READ_COUNT)
        if not entries:
            return
        for entry in entries:
            try:
                yield decode_record(store.read(entry.log_offset, entry.size))
            except StorageError as fault:
                log.warning("record of a transaction is gone topic=%s fault=%s", topic, fault)
        start = entries[-1].queue_offset + 1


def _halves_of(operation: StoredMessage) -> list[int]:
    """Queue offsets that an operation record ends: one number, or several with commas (RocketMQ 5.1 and later)."""
    if operation.tags != OPERATION_TAG:
        return []
    return [int(word) for word in operation.body.decode("ascii", "replace").split(",") if word.strip().isdecimal()]


def _immunity_text(properties_text: str) -> str | None:
    _, found, rest = properties_text.partition(Name.CHECK_IMMUNITY_SECONDS + "\x01")
    return rest.partition("\x02")[0] if found else None


def _number(text: str | None, otherwise: int) -> int:
    try:
        return int(text) if text is not None else otherwise
    except ValueError:
        return otherwise

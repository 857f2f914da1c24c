"""Transactions against a model: decided once, not asked about afterwards, wherever the process or machine ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappamq.model.record import decode_record
from kappamq.store.store import Appended
from tests.property.crashing_broker import CrashingBroker, crash, run_until_crash

COMMIT, ROLL_BACK = "commit", "roll back"


@dataclass(frozen=True)
class Open:
    """A half message is sent; `immunity` in seconds, or the broker's own timeout."""

    immunity: int | None = None
    delay_level: int = 0


@dataclass(frozen=True)
class Decide:
    """The producer decides one of its open transactions."""

    which: int
    decision: str


@dataclass(frozen=True)
class Pass:
    """Time goes by, then the broker asks what it has to ask."""

    ms: int


@dataclass(frozen=True)
class Save:
    """Progress is saved."""


Step = Open | Decide | Pass | Save

STEPS = st.lists(
    st.one_of(
        st.builds(Open, immunity=st.sampled_from((None, 0, 2, 30)), delay_level=st.sampled_from((0, 0, 1))),
        st.builds(Decide, which=st.integers(0, 5), decision=st.sampled_from((COMMIT, ROLL_BACK))),
        st.builds(Pass, ms=st.sampled_from((0, 1000, 6000, 10_000, 31_000))),
        st.just(Save()),
    ),
    min_size=1,
    max_size=14,
)


@dataclass
class Transaction:
    """What the producer knows about one transaction."""

    body: bytes
    place: Appended
    immunity_ms: int
    sent_ms: int
    decision: str | None = None
    is_acknowledged: bool = False


@dataclass
class Model:
    """The producer's view."""

    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)

    async def play(self, broker: CrashingBroker, steps: list[Step]) -> None:
        await broker.start()
        for number, step in enumerate(steps):
            match step:
                case Open():
                    await self._open(broker, b"%d" % number, step)
                case Decide():
                    still_open = [each for each in self.transactions.values() if each.decision is None]
                    if still_open:
                        await self._decide(broker, still_open[step.which % len(still_open)], step.decision)
                case Pass():
                    broker.clock.advance(ms=step.ms)
                    await self._deliver(broker)
                case Save():
                    await broker.save()

    async def _open(self, broker: CrashingBroker, body: bytes, step: Open) -> None:
        more = {} if step.immunity is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(step.immunity)}
        if step.delay_level:
            more["DELAY"] = str(step.delay_level)
        self.sent.add(body)
        place = await broker.send_half(body, **more)
        immunity_ms = 6000 if step.immunity is None else step.immunity * 1000
        self.transactions[body] = Transaction(body, place, immunity_ms, broker.clock.now_ms())

    async def _decide(self, broker: CrashingBroker, mine: Transaction, decision: str) -> None:
        """As the handler of decisions does; a transaction that is no longer open is left alone."""
        assert broker.store is not None
        half = broker.transactions.find(mine.place.queue_offset)
        if half is None:
            return
        mine.decision = decision
        message = decode_record(broker.store.read(mine.place.log_offset))
        assert message.body == mine.body
        if decision == COMMIT:
            await broker.transactions.commit(half, message)
        else:
            await broker.transactions.roll_back(half)
        mine.is_acknowledged = True

    async def _deliver(self, broker: CrashingBroker) -> None:
        broker.asked.clear()
        await broker.deliver()
        for half, message in broker.asked:
            mine = self.transactions.get(message.body)
            if mine is not None:
                assert not mine.is_acknowledged, "asked about after the decision was acknowledged"
                assert broker.clock.now_ms() >= mine.sent_ms + mine.immunity_ms
                assert half.queue_offset == mine.place.queue_offset

    async def finish(self, broker: CrashingBroker) -> None:
        """Start again; whatever is asked about is committed; then look."""
        await broker.start()
        for _ in range(6):
            broker.clock.advance(ms=31_000)
            await self._deliver(broker)
            for half, message in list(broker.asked):
                found = broker.transactions.find(half.queue_offset)
                assert found is not None
                await broker.transactions.commit(found, message)
                mine = self.transactions.get(message.body)
                if mine is not None:
                    mine.decision, mine.is_acknowledged = COMMIT, True
            await broker.save()
        assert broker.transactions.undecided == 0
        counts = broker.counts()
        given_up = {message.body for message in broker.messages("TRANS_CHECK_MAX_TIME_TOPIC")}
        assert set(counts.values()) <= {1}, "committed twice"
        assert set(counts) <= self.sent
        for mine in self.transactions.values():
            is_there = mine.body in counts
            if mine.decision == COMMIT and mine.is_acknowledged:
                assert is_there, "an acknowledged commit is gone"
            elif mine.decision == ROLL_BACK and mine.is_acknowledged and mine.body not in given_up:
                assert not is_there, "a rolled-back message appeared"
            elif mine.decision is None:
                assert mine.body in given_up
        await broker.stop()


async def restart_and_compare(broker: CrashingBroker) -> None:
    """Once more from the files: nothing opens again."""
    before = broker.counts()
    await broker.start()
    assert broker.transactions.undecided == 0
    assert broker.counts() == before
    await broker.stop()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(1, 400), st.none() | st.randoms(use_true_random=False), st.booleans())
def test_decisions_hold_whatever_happens(steps: list[Step], crash_at: int, dice: Random | None, is_torn: bool) -> None:
    broker, model = CrashingBroker(is_torn=is_torn), Model()
    run_until_crash(broker, lambda: model.play(broker, steps), crash_at=crash_at)
    crash(broker, dice)
    asyncio.run(model.finish(broker))
    asyncio.run(restart_and_compare(broker))


SCRIPT: list[Step] = [
    Open(),
    Open(),
    Open(immunity=0),
    Decide(1, COMMIT),
    Save(),
    Pass(7000),
    Decide(0, ROLL_BACK),
    Open(delay_level=1),
    Decide(1, COMMIT),
    Save(),
    Open(),
    Decide(0, COMMIT),
]


@pytest.mark.parametrize("is_torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "power-cut"])
def test_a_crash_at_every_step_of_the_disk(power_cut: bool, is_torn: bool) -> None:
    crash_at = 0
    is_killed = True
    while is_killed:
        crash_at += 2
        broker, model = CrashingBroker(is_torn=is_torn), Model()
        is_killed = run_until_crash(broker, lambda m=model, b=broker: m.play(b, SCRIPT), crash_at=crash_at)  # type: ignore[misc]
        crash(broker, Random(crash_at) if power_cut else None)
        asyncio.run(model.finish(broker))
        asyncio.run(restart_and_compare(broker))
    assert crash_at > 100


def test_what_nobody_decides_is_given_up_after_the_last_question() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send_half(b"orphan")
        broker.clock.advance(ms=5999)
        await broker.deliver()
        assert not broker.asked
        broker.clock.advance(ms=1)
        for _ in range(4):
            await broker.deliver()
            broker.clock.advance(ms=10_000)
        assert len(broker.asked) == 3
        assert [message.body for message in broker.messages("TRANS_CHECK_MAX_TIME_TOPIC")] == [b"orphan"]
        assert broker.transactions.undecided == 0
        await broker.stop()

    asyncio.run(scenario())

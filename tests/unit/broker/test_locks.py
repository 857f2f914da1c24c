"""Leases on queues."""

from kappamq.broker.locks import QueueLocks
from kappamq.clock import ManualClock
from kappamq.model.message import Queue

FIRST, SECOND = Queue("t", "b", 0), Queue("t", "b", 1)


def make() -> tuple[QueueLocks, ManualClock]:
    clock = ManualClock()
    return QueueLocks(clock=clock, lease_seconds=60), clock


def test_one_owner_until_the_lease_lapses() -> None:
    locks, clock = make()
    assert locks.lock("g", "one", [FIRST, SECOND]) == [FIRST, SECOND]
    assert locks.lock("g", "two", [FIRST, SECOND]) == []
    clock.advance(ms=60_000)
    assert locks.lock("g", "two", [FIRST]) == []
    clock.advance(ms=1)
    assert locks.lock("g", "two", [FIRST]) == [FIRST]
    assert locks.lock("g", "one", [FIRST, SECOND]) == [SECOND]


def test_renewal_extends_the_lease() -> None:
    locks, clock = make()
    locks.lock("g", "one", [FIRST])
    for _ in range(5):
        clock.advance(ms=50_000)
        assert locks.lock("g", "one", [FIRST]) == [FIRST]
    assert locks.lock("g", "two", [FIRST]) == []


def test_only_the_owner_can_unlock_and_groups_do_not_meet() -> None:
    locks, clock = make()
    locks.lock("g", "one", [FIRST])
    locks.unlock("g", "two", [FIRST])
    assert locks.lock("g", "two", [FIRST]) == []
    assert locks.lock("other", "two", [FIRST]) == [FIRST]
    locks.unlock("g", "one", [FIRST])
    assert locks.lock("g", "two", [FIRST]) == [FIRST]
    assert locks.is_held("g")
    clock.advance(ms=60_001)
    assert not locks.is_held("g")
    assert not locks.is_held("nobody")

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


def test_owners_outlive_a_restart_for_a_whole_lease() -> None:
    locks, clock = make()
    locks.lock("g", "one", [FIRST, SECOND])
    locks.lock("other", "two", [FIRST])
    clock.advance(ms=50_000)
    saved = locks.as_file()
    again = QueueLocks(clock=clock, lease_seconds=60)
    again.load(saved)
    assert again.lock("g", "two", [FIRST, SECOND]) == []
    assert again.lock("g", "one", [FIRST]) == [FIRST]
    assert again.lock("other", "two", [FIRST]) == [FIRST]
    clock.advance(ms=60_001)
    assert again.lock("g", "two", [SECOND]) == [SECOND]
    assert again.as_file() == {"owners": {"g": {"two": [["t", "b", 1]]}}}
    again.load(None)


def test_only_new_owners_need_saving() -> None:
    locks, clock = make()
    assert locks.is_saved
    locks.lock("g", "one", [FIRST])
    assert not locks.is_saved
    version = locks.version
    locks.lock("g", "one", [SECOND])
    locks.mark_saved(version)
    assert not locks.is_saved
    locks.mark_saved(locks.version)
    locks.mark_saved(version)
    clock.advance(ms=30_000)
    locks.lock("g", "one", [FIRST, SECOND])
    locks.lock("g", "two", [FIRST])
    assert locks.is_saved
    clock.advance(ms=60_001)
    locks.lock("g", "two", [FIRST])
    assert not locks.is_saved

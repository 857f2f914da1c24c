"""A process queue beside a model that keeps plain dicts and sorts them every time."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.client.core.process_queue import ProcessQueue
from kappamq.model.message import StoredMessage

offset_lists = st.lists(st.integers(0, 60), max_size=12)


def stored(offset: int) -> StoredMessage:
    return StoredMessage("T", bytes(offset), 0, offset, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, "", 0, 0)


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(now_ms=0)
        self.waiting: set[int] = set()
        self.taken: set[int] = set()
        self.highest = -1

    @rule(offsets=offset_lists)
    def put(self, offsets: list[int]) -> None:
        self.queue.put(map(stored, offsets))
        fresh = set(offsets) - self.taken - self.waiting
        self.waiting |= fresh
        self.highest = max([self.highest, *fresh])

    @rule(start=st.integers(0, 60), count=st.integers(1, 100))
    def put_run(self, start: int, count: int) -> None:
        self.put(list(range(start, start + count)))

    @rule(offsets=offset_lists)
    def remove(self, offsets: list[int]) -> None:
        committable = self.queue.remove(map(stored, offsets), now_ms=0)
        if not self.waiting:
            assert committable is None
            return
        self.waiting -= set(offsets)
        assert committable == min(self.waiting, default=self.highest + 1)

    @rule(start=st.integers(0, 60), count=st.integers(1, 100))
    def remove_run(self, start: int, count: int) -> None:
        self.remove(list(range(start, start + count)))

    @rule(count=st.integers(1, 20))
    def take(self, count: int) -> None:
        expected = sorted(self.waiting)[:count]
        assert [message.queue_offset for message in self.queue.take(count, now_ms=0)] == expected
        self.waiting -= set(expected)
        self.taken |= set(expected)

    @rule()
    def commit(self) -> None:
        assert self.queue.commit() == (max(self.taken) + 1 if self.taken else None)
        self.taken.clear()

    @rule()
    def rollback(self) -> None:
        self.queue.rollback()
        self.waiting |= self.taken
        self.taken.clear()

    @rule(offsets=offset_lists)
    def put_back(self, offsets: list[int]) -> None:
        self.queue.put_back(map(stored, offsets))
        back = self.taken & set(offsets)
        self.taken -= back
        self.waiting |= back

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.waiting.clear()
        self.taken.clear()
        self.highest = -1

    @invariant()
    def agrees(self) -> None:
        held = self.waiting | self.taken
        assert self.queue.message_count == len(held)
        assert self.queue.body_bytes == sum(held)
        expected = (min(self.waiting), max(self.waiting) + 1) if self.waiting else None
        assert self.queue.offset_range() == expected
        assert self.queue.span == (max(self.waiting) - min(self.waiting) if self.waiting else 0)


TestComparison = Comparison.TestCase
TestComparison.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

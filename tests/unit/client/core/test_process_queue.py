"""The cache of one queue: commits, limits, orderly consumption, flags."""

import pytest

from kappamq.client.core.process_queue import LOCK_LIFE_MS, PULL_LIFE_MS, CacheLimits, ProcessQueue
from kappamq.errors import ConfigError
from kappamq.model.message import StoredMessage


def stored(queue_offset: int, body: bytes = b"12345") -> StoredMessage:
    return StoredMessage(
        topic="T",
        body=body,
        queue_id=0,
        queue_offset=queue_offset,
        log_offset=queue_offset * 100,
        flag=0,
        flags=0,
        born_at_ms=0,
        born_host_packed=bytes(8),
        stored_at_ms=0,
        store_host_packed=bytes(8),
        retry_count=0,
        prepared_offset=0,
        properties_text="",
        body_crc=0,
        size=100,
    )


def holding(*queue_offsets: int) -> ProcessQueue:
    queue = ProcessQueue(now_ms=0)
    queue.put(map(stored, queue_offsets))
    return queue


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_new_and_empty() -> None:
    queue = ProcessQueue(now_ms=5)
    assert (queue.message_count, queue.body_bytes, queue.span, queue.first) == (0, 0, 0, None)
    assert queue.offset_range() is None
    assert (queue.is_dropped, queue.is_locked, queue.is_consuming) == (False, False, False)
    assert (queue.last_pull_ms, queue.last_consume_ms, queue.last_lock_ms) == (5, 5, 5)
    assert queue.remove([stored(1)], now_ms=9) is None
    assert queue.last_consume_ms == 9
    assert not queue.put([])
    assert queue.commit() is None


def test_counts_ignore_duplicates() -> None:
    queue = holding(10, 11, 11, 14)
    queue.put([stored(10)])
    assert (queue.message_count, queue.body_bytes, queue.span) == (3, 15, 4)
    assert queue.offset_range() == (10, 15)
    assert queue.contains(stored(14))
    assert not queue.contains(stored(12))


def test_put_says_when_an_idle_queue_has_work() -> None:
    queue = ProcessQueue(now_ms=0)
    assert queue.put([stored(1)])
    assert not queue.put([stored(2)])
    assert offsets(queue.take(5, now_ms=3)) == [1, 2]
    assert queue.last_consume_ms == 3
    assert queue.is_consuming
    assert queue.take(5, now_ms=4) == []
    assert not queue.is_consuming
    assert queue.put([stored(3)])


def test_the_slowest_message_holds_back_the_commit() -> None:
    queue = holding(10, 11, 12, 13)
    assert queue.remove([stored(12), stored(11)], now_ms=0) == 10
    assert queue.remove([stored(13)], now_ms=0) == 10
    assert queue.span == 0
    assert queue.remove([stored(10)], now_ms=0) == 14
    assert (queue.message_count, queue.body_bytes) == (0, 0)


def test_removing_what_is_not_there_changes_nothing() -> None:
    queue = holding(10)
    assert queue.remove([stored(99)], now_ms=0) == 10
    assert (queue.message_count, queue.body_bytes) == (1, 5)


def test_messages_may_arrive_out_of_order_and_again() -> None:
    queue = holding(10, 12, 14)
    queue.remove([stored(12)], now_ms=0)
    queue.put([stored(12), stored(11), stored(9)])
    assert offsets(queue.take(9, now_ms=0)) == [9, 10, 11, 12, 14]


def test_first_and_span_follow_removals_at_both_ends() -> None:
    queue = holding(*range(10))
    queue.remove([stored(9), stored(0), stored(1)], now_ms=0)
    assert queue.first is not None
    assert queue.first.queue_offset == 2
    assert queue.span == 6


def test_memory_follows_what_is_held_behind_a_slow_message() -> None:
    queue = holding(0)
    for offset in range(1, 5000):
        queue.put([stored(offset)])
        assert queue.remove([stored(offset)], now_ms=0) == 0
    assert len(queue._offsets) < 200
    assert queue.remove([stored(0)], now_ms=0) == 5000


def test_limits_are_passed_when_exceeded() -> None:
    queue = holding(0, 1, 10)
    assert not queue.is_over(CacheLimits(messages_max=3, span_max=10), is_orderly=False)
    assert queue.is_over(CacheLimits(messages_max=2), is_orderly=True)
    assert queue.is_over(CacheLimits(span_max=9), is_orderly=False)
    assert not queue.is_over(CacheLimits(span_max=9), is_orderly=True)


def test_limit_of_bytes_counts_whole_mebibytes() -> None:
    queue = ProcessQueue(now_ms=0)
    queue.put([stored(0, bytes(2 * 1024 * 1024 - 1))])
    assert not queue.is_over(CacheLimits(mib_max=1), is_orderly=True)
    queue.put([stored(1, b"x")])
    assert queue.is_over(CacheLimits(mib_max=1), is_orderly=True)


@pytest.mark.parametrize("name", ["messages_max", "mib_max", "span_max"])
def test_limits_are_validated(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        CacheLimits(**{name: 0})


def test_orderly_commit() -> None:
    queue = holding(10, 11, 12)
    assert offsets(queue.take(2, now_ms=0)) == [10, 11]
    assert (queue.message_count, queue.body_bytes) == (3, 15)
    assert queue.commit() == 12
    assert (queue.message_count, queue.body_bytes) == (1, 5)
    assert queue.commit() is None


def test_orderly_rollback() -> None:
    queue = holding(10, 11, 12)
    queue.take(1, now_ms=0)
    queue.take(1, now_ms=0)
    queue.rollback()
    assert queue.message_count == 3
    assert offsets(queue.take(3, now_ms=0)) == [10, 11, 12]


def test_orderly_put_back_some() -> None:
    queue = holding(10, 11, 12)
    taken = queue.take(2, now_ms=0)
    queue.put_back([taken[1], taken[1], stored(99)])
    assert queue.commit() == 11
    assert offsets(queue.take(3, now_ms=0)) == [11, 12]


def test_taken_messages_are_not_put_twice() -> None:
    queue = holding(10)
    queue.take(1, now_ms=0)
    queue.put([stored(10)])
    assert queue.message_count == 1
    assert queue.take(1, now_ms=0) == []


def test_overdue_first_message() -> None:
    queue = holding(10, 11)
    assert queue.first_if_overdue(timeout_ms=100, elapsed_ms=10_000) is None
    queue.mark_started([stored(11), stored(99)], elapsed_ms=0)
    assert queue.first_if_overdue(timeout_ms=100, elapsed_ms=10_000) is None
    queue.mark_started([stored(10)], elapsed_ms=50)
    assert queue.first_if_overdue(timeout_ms=100, elapsed_ms=150) is None
    overdue = queue.first_if_overdue(timeout_ms=100, elapsed_ms=151)
    assert overdue is not None
    assert overdue.queue_offset == 10
    queue.remove([overdue], now_ms=151)
    second = queue.first_if_overdue(timeout_ms=100, elapsed_ms=151)
    assert second is not None
    assert second.queue_offset == 11
    queue.remove([second], now_ms=151)
    assert queue.first_if_overdue(timeout_ms=100, elapsed_ms=151) is None
    queue.put([stored(10)])
    assert queue.first_if_overdue(timeout_ms=100, elapsed_ms=10_000) is None


def test_expiry_of_lock_and_pull() -> None:
    queue = ProcessQueue(now_ms=77, elapsed_ms=1000)
    assert not queue.is_lock_expired(1000 + LOCK_LIFE_MS)
    assert queue.is_lock_expired(1001 + LOCK_LIFE_MS)
    assert queue.is_lock_expired(1100, life_ms=99)
    assert not queue.is_pull_expired(1000 + PULL_LIFE_MS)
    assert queue.is_pull_expired(1001 + PULL_LIFE_MS)
    queue.mark_locked(now_ms=80, elapsed_ms=1003)
    queue.mark_pulled(now_ms=81, elapsed_ms=1002)
    assert not queue.is_lock_expired(1003 + LOCK_LIFE_MS)
    assert not queue.is_pull_expired(1002 + PULL_LIFE_MS)
    assert (queue.is_locked, queue.last_lock_ms, queue.last_pull_ms) == (True, 80, 81)


def test_clear() -> None:
    queue = holding(10, 11)
    queue.take(1, now_ms=0)
    queue.clear()
    assert (queue.message_count, queue.body_bytes, queue.span) == (0, 0, 0)
    queue.put([stored(3)])
    assert queue.remove([stored(3)], now_ms=0) == 4

"""Queue selectors agree with Java's."""

import pytest

from kappamq.client.core.selecting import (
    jump_hash,
    key_hash,
    select_at_random,
    select_by_hash,
    select_by_priority,
    select_by_sharding_key,
)
from kappamq.errors import UsageError
from kappamq.model.message import Message, Queue
from kappamq.model.properties import Name


def queues(count: int) -> list[Queue]:
    return [Queue("T", "a", queue_id) for queue_id in range(count)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("order-1001", 708180863),
        ("user_77", -147134508),
        ("", 0),
        (0, 0),
        (-1, -1),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
        (2**31, -(2**31)),
        (2**32, 1),
        (2**63 - 1, -(2**31)),
        (-(2**63), -(2**31)),
        (-(2**31) - 1, -(2**31)),
        (True, 1231),
        (False, 1237),
    ],
)
def test_java_hash_codes(key: str | int, expected: int) -> None:
    assert key_hash(key) == expected


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1])
def test_keys_beyond_64_bits(key: int) -> None:
    with pytest.raises(UsageError, match="does not fit 64 bits"):
        key_hash(key)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("order-1001", 3), ("order-1002", 0), ("A", 1), ("user_77", 0), (-7, 3), (7, 3), (-(2**31), 0)],
)
def test_select_by_hash(key: str | int, expected: int) -> None:
    assert select_by_hash(queues(4), key).queue_id == expected


def test_select_at_random() -> None:
    assert select_at_random(queues(4), lambda count: count - 1).queue_id == 3


@pytest.mark.parametrize(
    ("count", "key", "expected"),
    [
        (4, "order-1001", 2),
        (4, "A", 0),
        (4, "user_77", 3),
        (8, "order-1001", 2),
        (8, "A", 0),
        (8, "user_77", 7),
        (1, "A", 0),
    ],
)
def test_select_by_sharding_key(count: int, key: str, expected: int) -> None:
    message = Message("T", b"x", properties={Name.SHARDING_KEY: key})
    selected = select_by_sharding_key(queues(count)[::-1], message)
    assert selected == Queue("T", "a", expected)


def test_no_sharding_key() -> None:
    assert select_by_sharding_key(queues(4), Message("T", b"x")) is None


def test_jump_hash_moves_keys_only_to_the_new_bucket() -> None:
    for key in range(-500, 500):
        before, after = jump_hash(key, 9), jump_hash(key, 10)
        assert 0 <= before < 9
        assert after in (before, 9)


def test_nothing_to_select_from() -> None:
    with pytest.raises(UsageError, match="no queue to select from"):
        select_by_hash([], "k")
    with pytest.raises(UsageError, match="no queue to select from"):
        select_at_random([], lambda count: 0)
    with pytest.raises(UsageError, match="no queue to select from"):
        select_by_sharding_key([], Message("T", b"x", properties={Name.SHARDING_KEY: "k"}))


def test_a_priority_is_the_number_of_a_queue() -> None:
    queues = [Queue("t", "a", 2), Queue("t", "a", 0), Queue("t", "a", 1), Queue("t", "b", 0), Queue("t", "b", 1)]
    first, last = (lambda _: 0), (lambda count: count - 1)
    assert select_by_priority(queues, 1, first) == Queue("t", "a", 1)
    assert select_by_priority(queues, 1, last) == Queue("t", "b", 1)
    assert select_by_priority(queues, 9, first) == Queue("t", "a", 2)
    assert select_by_priority(queues, 9, last) == Queue("t", "b", 1)
    with pytest.raises(UsageError):
        select_by_priority([], 1, first)

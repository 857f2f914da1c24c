"""Choosing the queue of a message by a key, so that messages of one key stay in order."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kappamq.errors import UsageError
from kappamq.model.message import Message, Queue
from kappamq.model.properties import Name, java_hash

Key: TypeAlias = str | int
"""What can be hashed as Java would: texts, integers up to 64 bits, booleans."""

_JUMP_MULTIPLIER: Final = 2862933555777941757


def key_hash(key: Key) -> int:
    """`hashCode` of the Java object that a Java producer would pass: String, Integer, Long or Boolean.

    An integer that fits 32 bits counts as Integer: a Java producer that passes a small negative Long differs.
    """
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, bool):
        return 1231 if key else 1237
    if -(1 << 31) <= key < 1 << 31:
        return key
    if -(1 << 63) <= key < 1 << 63:
        folded = (key ^ (key >> 32)) & 0xFFFF_FFFF
        return folded - (1 << 32) if folded & 0x8000_0000 else folded
    raise UsageError(f"key {key} does not fit 64 bits: use a text, or a smaller number")


def select_by_hash(queues: Sequence[Queue], key: Key) -> Queue:
    """The queue that RocketMQ's hash selector takes for the same key and the same list."""
    # Java's remainder has the sign of the hash, and the selector drops that sign: so only the magnitude counts.
    return queues[abs(key_hash(key)) % _size(queues)]


def select_at_random(queues: Sequence[Queue], pick: Callable[[int], int]) -> Queue:
    """Any queue; `pick(n)` is a random number below n."""
    return queues[pick(_size(queues))]


def select_by_sharding_key(queues: Sequence[Queue], message: Message) -> Queue | None:
    """The queue of the sharding key as RocketMQ 5 proxies choose it, over sorted queues; `None` without a key.

    Unlike a plain hash it moves few keys when queues are added.
    """
    key = message.properties.get(Name.SHARDING_KEY)
    if not key:
        return None
    return sorted(queues)[jump_hash(java_hash(key), _size(queues))]


def select_by_priority(queues: Sequence[Queue], priority: int, pick: Callable[[int], int]) -> Queue:
    """The queue whose number is the priority, on any broker; a broker with fewer queues gives its last one."""
    _size(queues)
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    levels = [sorted(own)[min(priority, len(own) - 1)] for own in by_broker.values()]
    return levels[pick(len(levels))]


def jump_hash(key: int, buckets: int) -> int:
    """Jump consistent hash (Lamping and Veach) of a 64-bit key."""
    state = key & 0xFFFF_FFFF_FFFF_FFFF
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        state = (state * _JUMP_MULTIPLIER + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket


def _size(queues: Sequence[Queue]) -> int:
    if not queues:
        raise UsageError("no queue to select from: refresh the route, or create the topic with writable queues")
    return len(queues)

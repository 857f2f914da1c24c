"""Where packed sends go: the growing ends of queues, as compiled code sees them; here is their specification.

A turn may bring one message to each of hundreds of queues. So whatever is done for each queue of a run is done by one
call for all of them, on packed rows (`QUEUE_ROW`): looking a queue up, counting on, making entries visible, counting.
"""

from collections.abc import Iterator
from struct import Struct

SEND_ROW = Struct("=IIiIIIIIIIIIiiiiq")
"""target, source, request id, marks, body at, body bytes, text at, text bytes, unique id at, unique id bytes, keys at,
keys bytes, tags code, flags, flag, retry count, born at. The body lies in the buffer that was scanned, which the source
tells; text (the properties as stored), unique id and keys lie in the texts."""
QUEUE_ROW = Struct("=IIIqq")
"""target, entries, sends, queue offset of the first entry, bytes of the records. Entries lie together, in the order of
these rows."""
TARGETS_MAX = 262_144
"""Most queues that one table has."""
UNIT_BYTES = 20
HELD_BYTES_MAX = 8192
"""Entries of one queue that wait in memory at most."""
NONE_HELD = 1 << 62
"""What `first_held` is while nothing is held."""


class QueueTail:
    """The growing end of one queue, with the entries that are visible but not yet in its files.

    Only the owner changes it. Other threads may read: they take `end` first, and what is held with one call.
    """

    __slots__ = ("_held", "end", "is_deleted", "is_holding", "log_end", "next", "tail")

    def __init__(self) -> None:
        self.next = 0
        """The offset that the next appended record gets."""
        self.end = 0
        """That of the next visible one."""
        self.tail = 0
        """Offset after the entries that are about to become visible."""
        self.log_end = 0
        """Log offset behind the record of the last entry, or a later one that no other record of the queue is below."""
        self.is_deleted = False
        self.is_holding = False
        """Noted as one that has entries in memory alone."""
        self._held = (NONE_HELD, b"")

    @property
    def first_held(self) -> int:
        """Offset of the first entry that is held."""
        return self._held[0]

    def held(self) -> bytes:
        """All entries that are held."""
        return self._held[1]

    def held_part(self, start: int, count: int) -> tuple[int, bytes]:
        """`first_held`, and those of `count` entries from `start` that are held. [any thread]"""
        first, units = self._held
        at = max(0, start - first) * UNIT_BYTES
        return first, units[at : max(0, start + count - first) * UNIT_BYTES]

    def hold(self, units: bytes, log_end: int) -> bool:
        """Make entries visible that stay in memory; `False`: too many. No record of the queue below `log_end` lacks
        one then."""
        first, held = self._held
        if len(held) + len(units) > HELD_BYTES_MAX or len(units) % UNIT_BYTES:
            return False
        if not held:
            first = self.end
        if units:
            self._held = (first, held + units)
        self.log_end = log_end
        self.end = self.tail = self.end + len(units) // UNIT_BYTES
        return True

    def drop_held(self) -> None:
        """They are in the files now, or nobody wants them any more."""
        self._held = (NONE_HELD, b"")


class Targets:
    """Queues by topic and number, as scans find them; rows name them by their place in this table.

    It only grows. Who made it begins a new one when topics change; runs keep theirs.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._names: list[tuple[bytes, int]] = []
        self._tails: list[QueueTail | None] = []
        self._stored: dict[int, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._tails)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Topic and number of each queue."""
        return iter(list(self._names))

    def number_of(self, topic: bytes, queue_id: int) -> int:
        """The place of a queue, which is made if need be; raises `ValueError` when the table is full."""
        number = self._numbers.get((topic, queue_id))
        if number is None:
            if len(self) >= TARGETS_MAX or len(topic) > 0x7FFF:
                raise ValueError("there are too many targets, or a topic is too long")
            topic.decode()  # Raises `ValueError`, too.
            number = self._numbers[topic, queue_id] = len(self)
            self._names.append((topic, queue_id))
            self._tails.append(None)
        return number

    def has(self, topic: bytes, queue_id: int) -> bool:
        return (topic, queue_id) in self._numbers

    def name_of(self, number: int) -> tuple[bytes, int]:
        """Topic and number of a queue."""
        if number < 0:
            raise IndexError("there is no such target")
        return self._names[number]

    def tail_of(self, number: int) -> QueueTail:
        """The queue; raises `ValueError` while it is not set."""
        tail = self._tails[number] if 0 <= number < len(self) else None
        if tail is None:
            raise ValueError("a row names a queue that is not there")
        return tail

    def set_tail(self, number: int, tail: QueueTail) -> None:
        self._tails[number] = tail

    def lost(self, rows: bytes | bytearray) -> list[int]:
        """Those of the targets of send rows whose queue is not set, or was deleted."""
        return [target for target in _distinct(rows) if target < len(self) and self._is_lost(target)]

    def _is_lost(self, target: int) -> bool:
        tail = self._tails[target]
        return tail is None or tail.is_deleted

    def take_back(self, queues: bytes) -> None:
        """The records of these rows were not written: their queues go on from where they were."""
        for target, _count, _sends, start, _size in reversed(_rows_of(QUEUE_ROW, queues)):
            self.tail_of(target).next = start

    def hold(self, queues: bytes, units: bytes, log_end: int) -> tuple[list[QueueTail], list[int]]:
        """`QueueTail.hold` for all of these rows, where entries begin just where the queue ends.

        Returns the queues that were not noted as holding before, and the numbers of rows that are left.
        """
        rows = _rows_of(QUEUE_ROW, queues)
        tails = [self.tail_of(row[0]) for row in rows]
        if len(units) != sum([row[1] for row in rows]) * UNIT_BYTES:
            raise ValueError("the entries are not those of the rows")
        fresh: list[QueueTail] = []
        left: list[int] = []
        at = 0
        for number, (tail, (_target, count, _sends, start, _size)) in enumerate(zip(tails, rows)):
            mine = units[at : at + count * UNIT_BYTES]
            at += len(mine)
            is_next = start == tail.tail == tail.end and not tail.is_deleted
            if not is_next or not tail.hold(mine, log_end):
                left.append(number)
            elif not tail.is_holding:
                tail.is_holding = True
                fresh.append(tail)
        return fresh, left

    def count(self, queues: bytes) -> tuple[int, int, int]:
        """Note what was stored, for `take_stored`; returns messages, bytes and sends of all together."""
        rows = _rows_of(QUEUE_ROW, queues)
        for target, count, sends, _start, size in rows:
            self.tail_of(target)
            before = self._stored.get(target, (0, 0, 0))
            self._stored[target] = (before[0] + count, before[1] + size, before[2] + sends)
        return sum([row[1] for row in rows]), sum([row[4] for row in rows]), sum([row[2] for row in rows])

    def take_stored(self) -> list[tuple[str, int, int, int]]:
        """Topic, messages, bytes and sends of each queue since the last call, where there were any."""
        stored, self._stored = self._stored, {}
        return [
            (self._names[target][0].decode(), *figures) for target, figures in sorted(stored.items()) if any(figures)
        ]


def _distinct(rows: bytes | bytearray) -> list[int]:
    """Targets of send rows, in the order in which they come."""
    return list(dict.fromkeys([row[0] for row in _rows_of(SEND_ROW, rows)]))


def _rows_of(row: Struct, packed: bytes | bytearray) -> list[tuple[int, ...]]:
    if len(packed) % row.size:
        raise ValueError("rows are cut short")
    return list(row.iter_unpack(packed))

"""Reading records out of log bytes, fast: is there a valid one, where is the next one, what does dispatch need of it.

The same checks as `model.record.verify_record`, without building a message: recovery walks millions of records. What
makes a record valid is said in `kernel.verify_reference`.
"""

from collections.abc import Iterator
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from kappamq.errors import CorruptRecord
from kappamq.kernel import valid_size
from kappamq.kernel.reference import MAGIC_V1, MAGIC_V2
from kappamq.kernel.verify_reference import NO_CRC, LogBytes
from kappamq.model.message import Flags
from kappamq.model.record import BLANK_BYTES, BLANK_MAGIC, verify_record

_MARK = Struct(">ii")
_PLACE = Struct(">ii20xq")
_FACTS = Struct(">12xi4xq8xi")
_I64 = Struct(">q")
_I32 = Struct(">i")
_I16 = Struct(">h")
_BORN_V6 = int(Flags.BORN_HOST_V6)
_STORE_V6 = int(Flags.STORE_HOST_V6)
_MAGIC_BYTES: Final = (_I32.pack(MAGIC_V1), _I32.pack(MAGIC_V2))


class RecordFacts(NamedTuple):
    """What consume queues and index need of a record."""

    topic: str
    queue_id: int
    queue_offset: int
    flags: int
    stored_at_ms: int
    properties_text: str


def is_in_place(log: LogBytes, at: int, *, log_offset: int, size: int) -> bool:
    """Whether a record of `size` bytes that says it lies at `log_offset` begins at `at`, checksums aside."""
    found, magic, own_offset = _PLACE.unpack_from(log, at)
    return found == size and own_offset == log_offset and magic in (MAGIC_V1, MAGIC_V2)


def is_blank_mark(log: LogBytes, at: int, limit: int) -> bool:
    """Whether the rest of the segment is declared unused."""
    if limit - at < BLANK_BYTES:
        return False
    left, magic = _MARK.unpack_from(log, at)
    return bool(magic == BLANK_MAGIC and left == limit - at)


def why_invalid(log: LogBytes, at: int, *, log_offset: int) -> str:
    """Reason why there is no valid record, for people."""
    try:
        verify_record(memoryview(log), at, log_offset=log_offset)
    except CorruptRecord as fault:
        return str(fault)
    return "it reaches over the end of the segment"


def valid_records(
    log: LogBytes, at: int, limit: int, *, log_start: int, crc_from: int = NO_CRC
) -> Iterator[tuple[int, int]]:
    """Positions and sizes of the valid records that follow each other from `at`; byte 0 has log offset `log_start`."""
    size = valid_size(log, at, limit, log_start + at, crc_from=crc_from)
    while size:
        yield at, size
        at += size
        size = valid_size(log, at, limit, log_start + at, crc_from=crc_from)


def find_valid_record(log: mmap, at: int, limit: int, *, log_start: int) -> int | None:
    """Position of the first valid record at or behind `at`, wherever it begins."""
    candidates = [log.find(mark, at + 4, limit) for mark in _MAGIC_BYTES]
    while any(found >= 0 for found in candidates):
        nearest = min(found for found in candidates if found >= 0)
        if valid_size(log, nearest - 4, limit, log_start + nearest - 4):
            return nearest - 4
        candidates = [
            log.find(mark, nearest + 1, limit) if found == nearest else found
            for mark, found in zip(_MAGIC_BYTES, candidates)
        ]
    return None


def stored_at(log: LogBytes, at: int) -> int:
    """Store time of the record at `at`."""
    (flags,) = _I32.unpack_from(log, at + 36)
    (stored_at_ms,) = _I64.unpack_from(log, at + (68 if flags & _BORN_V6 else 56))
    return int(stored_at_ms)


def read_facts(log: LogBytes, at: int) -> RecordFacts:
    """Facts of the record at `at`, whose sizes are known to be right."""
    queue_id, queue_offset, flags = _FACTS.unpack_from(log, at)
    born_extra = 12 if flags & _BORN_V6 else 0
    (stored_at_ms,) = _I64.unpack_from(log, at + 56 + born_extra)
    position = at + 84 + born_extra + (12 if flags & _STORE_V6 else 0)
    position += 4 + _I32.unpack_from(log, position)[0]
    if _I32.unpack_from(log, at + 4)[0] == MAGIC_V1:
        topic_end = position + 1 + log[position]
        topic = log[position + 1 : topic_end]
    else:
        topic_end = position + 2 + _I16.unpack_from(log, position)[0]
        topic = log[position + 2 : topic_end]
    properties_end = topic_end + 2 + _I16.unpack_from(log, topic_end)[0]
    return RecordFacts(
        str(topic, "utf-8", "replace"),
        queue_id,
        queue_offset,
        flags,
        stored_at_ms,
        str(log[topic_end + 2 : properties_end], "utf-8", "replace"),
    )

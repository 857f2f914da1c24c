"""Verifying records where they lie in the log, in plain Python: the specification of what `_verify` does faster.

The record layout is drawn in `reference.py`. A queue entry is 20 bytes: log offset i64, record size i32, tags code i64.
The compiled functions let other threads run meanwhile, and wait for the disk without them.
"""

from mmap import mmap
from struct import Struct
from typing import Final, TypeAlias
from zlib import crc32

from kappamq.kernel.columns_reference import RECORD_BYTES_MIN
from kappamq.kernel.reference import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME, MAGIC_V1, MAGIC_V2

INTERFACE = 1
"""Number of this set of functions: a compiled module with another number was built from other sources."""

LogBytes: TypeAlias = "mmap | bytes"

NO_CRC: Final = (1 << 63) - 1
"""A log offset that no record reaches."""

_CHECKED = Struct(">iii16xqi")
_FACTS = Struct(">12xi4xq8xi")
_UNIT = Struct(">qiq")
_I32 = Struct(">i")
_I16 = Struct(">h")
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_CRC_NAME_BYTES = len(CRC_PROPERTY_NAME)


def valid_size(log: LogBytes, at: int, limit: int, log_offset: int, *, crc_from: int = NO_CRC) -> int:
    """Size of the valid record at `at` that says it lies at `log_offset`; 0 when there is none before `limit`.

    From log offset `crc_from` on a record must have the appended checksum: without it, one whose properties were lost
    in a power cut would pass for a record of RocketMQ, which has a checksum of the body only.
    """
    limit = min(limit, len(log))
    if at < 0 or limit - at < RECORD_BYTES_MIN:
        return 0
    total, magic, body_crc, own_offset, flags = _CHECKED.unpack_from(log, at)
    if own_offset != log_offset or magic not in (MAGIC_V1, MAGIC_V2) or total < RECORD_BYTES_MIN or at + total > limit:
        return 0
    end = at + total
    position = at + 84 + (12 if flags & _BORN_V6 else 0) + (12 if flags & _STORE_V6 else 0)
    if position + 4 > end:
        return 0
    (body_bytes,) = _I32.unpack_from(log, position)
    body_start = position + 4
    position = body_start + body_bytes
    if body_bytes < 0 or position + 4 > end:
        return 0
    if magic == MAGIC_V1:
        position += 1 + log[position]
    else:
        position += 2 + _I16.unpack_from(log, position)[0]
    if not body_start <= position <= end - 2:
        return 0
    (properties_bytes,) = _I16.unpack_from(log, position)
    if properties_bytes < 0 or position + 2 + properties_bytes != end:
        return 0
    if properties_bytes >= CRC_PROPERTY_BYTES:
        tail = log[end - CRC_PROPERTY_BYTES : end]
        if tail[:_CRC_NAME_BYTES] == CRC_PROPERTY_NAME and tail[-1] == 2:
            digits = tail[-2 : _CRC_NAME_BYTES - 1 : -1]
            found = crc32(log[at : end - CRC_PROPERTY_BYTES]) & 0x7FFFFFFF
            return total if digits == b"%010d" % found else 0
    if log_offset >= crc_from:
        return 0
    found = crc32(log[body_start : body_start + body_bytes]) & 0x7FFFFFFF
    return total if found == body_crc else 0


def belongs_to(log: LogBytes, at: int, *, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether the record at `at`, whose sizes are known to be right, is the one of this place in a queue."""
    found_id, found_offset, flags = _FACTS.unpack_from(log, at)
    if found_id != queue_id or found_offset != queue_offset:
        return False
    position = at + 84 + (12 if flags & _BORN_V6 else 0) + (12 if flags & _STORE_V6 else 0)
    position += 4 + _I32.unpack_from(log, position)[0]
    if _I32.unpack_from(log, at + 4)[0] == MAGIC_V1:
        return log[position] == len(topic) and log[position + 1 : position + 1 + len(topic)] == topic
    return _I16.unpack_from(log, position)[0] == len(topic) and log[position + 2 : position + 2 + len(topic)] == topic


def verify_entries(
    units: bytes, log: LogBytes, *, start: int, end: int, topic: bytes, queue_id: int, queue_offset: int
) -> int:
    """How many entries, from the first on, name valid records that are the ones of their places in the queue.

    Byte 0 of `log` has log offset `start`; records end at or below log offset `end`. `queue_offset` is the place of the
    first entry.
    """
    if len(units) % _UNIT.size:
        raise ValueError("queue entries are cut short")
    if start < 0 or end < start:
        return 0
    limit = min(len(log), end - start)
    for index, (log_offset, size, _code) in enumerate(_UNIT.iter_unpack(units)):
        at = log_offset - start
        if size <= 0 or valid_size(log, at, limit, log_offset) != size:
            return index
        if not belongs_to(log, at, topic=topic, queue_id=queue_id, queue_offset=queue_offset + index):
            return index
    return len(units) // _UNIT.size


def record_runs(units: bytes, *, start: int, end: int, gap_bytes: int, run_bytes_max: int) -> list[tuple[int, int]]:
    """Ranges of the log, as (log offset, bytes), that hold the records of these entries, in their order.

    Records that are less than `gap_bytes` apart share a range; entries that lie outside of [start, end), are blank, or
    larger than `run_bytes_max` have none.
    """
    if len(units) % _UNIT.size:
        raise ValueError("queue entries are cut short")
    start = max(start, 0)
    runs: list[tuple[int, int]] = []
    run_start = run_end = -1
    for log_offset, size, _code in _UNIT.iter_unpack(units):
        if not 0 < size <= run_bytes_max or log_offset < start or log_offset + size > end:
            continue
        if run_end >= 0 and run_start <= log_offset <= run_end + gap_bytes:
            grown = max(run_end, log_offset + size)
            if grown - run_start <= run_bytes_max:
                run_end = grown
                continue
        if run_end >= 0:
            runs.append((run_start, run_end - run_start))
        run_start, run_end = log_offset, log_offset + size
    if run_end >= 0:
        runs.append((run_start, run_end - run_start))
    return runs

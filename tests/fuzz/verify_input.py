"""Pieces of a log for the verifiers, spoiled at random, and the comparison of what both make of them."""

import random
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from kappamq.kernel import verify_reference as reference
from kappamq.model.record import NewRecord

UNIT: Final = Struct(">qiq")
V6_HOST: Final = bytes(range(20))
V4_HOST: Final = bytes(range(8))
FIELDS_AT: Final = (0, 1, 2, 3, 4, 7, 8, 12, 20, 28, 36, 84, 85, 86, 87, 88, 100, 112)
"""Where sizes, magic, places and flags lie: what is changed most."""


@dataclass(frozen=True, slots=True)
class Log:
    """Bytes from log offset `start` on, and where records were once put, as (log offset, size)."""

    data: bytes
    start: int
    records: tuple[tuple[int, int], ...]


class Logs:
    """Pieces of logs as brokers write them, then spoiled."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def sound(self, *, count: int, start: int) -> Log:
        data = bytearray()
        records = []
        for number in range(count):
            record = self._record(number, start + len(data))
            records.append((start + len(data), len(record)))
            data += record
        return Log(bytes(data), start, tuple(records))

    def next(self) -> Log:
        source = self._random
        log = self.sound(count=source.randrange(1, 6), start=source.choice((0, 4096, 1 << 40)))
        data = bytearray(log.data)
        records = list(log.records)
        for _ in range(source.randrange(0, 4)):
            record_at = source.choice(records)[0] - log.start
            at = record_at + source.choice(FIELDS_AT) if source.random() < 0.6 else source.randrange(len(data))
            data[min(at, len(data) - 1)] = source.choice((0, 1, 2, 127, 128, 255, source.randrange(256)))
        if source.random() < 0.3:
            del data[source.randrange(len(data)) :]
        if source.random() < 0.3:
            number = source.randrange(len(records))
            log_offset, size = records[number]
            records[number] = (
                log_offset + source.choice((0, 1, -1, 1 << 62, -(1 << 62))),
                source.choice((size, size + 1, 0, -1, 2**31 - 1)),
            )
        return Log(bytes(data), log.start, tuple(records))

    def _record(self, queue_offset: int, log_offset: int) -> bytes:
        source = self._random
        record = NewRecord(
            "orders",
            3,
            bytes(source.randrange(40)),
            source.choice((b"", b"TAGS\x01a\x02", b"colour\x01red")),
            1,
            source.choice((V4_HOST, V6_HOST)),
            source.choice((V4_HOST, V6_HOST)),
        )
        has_crc = source.random() < 0.7
        return record.encode(queue_offset=queue_offset, log_offset=log_offset, stored_at_ms=7, append_crc=has_crc)


def entries_of(log: Log) -> bytes:
    """Queue entries of the records of a log."""
    return b"".join([UNIT.pack(log_offset, size, 0) for log_offset, size in log.records])


def difference(log: Log) -> str | None:
    """Which function of the compiled verifier does something else than the reference."""
    from kappamq.kernel import _verify as compiled

    size = len(log.data)
    units = entries_of(log)
    for log_offset, _size in log.records:
        for limit in (size, size - 1, size + 9):
            for crc_from in (reference.NO_CRC, log_offset):
                arguments = (log.data, log_offset - log.start, limit, log_offset)
                if compiled.valid_size(*arguments, crc_from=crc_from) != reference.valid_size(
                    *arguments, crc_from=crc_from
                ):
                    return "valid_size"
    for first in range(len(log.records)):
        for end in (log.start + size, log.start + size // 2, 1 << 62, log.start - 1):
            place: dict[str, Any] = {
                "start": log.start,
                "end": end,
                "topic": b"orders",
                "queue_id": 3,
                "queue_offset": first,
            }
            part = units[first * UNIT.size :]
            if compiled.verify_entries(part, log.data, **place) != reference.verify_entries(part, log.data, **place):
                return "verify_entries"
    limits = {"start": log.start, "end": log.start + size, "gap_bytes": 50, "run_bytes_max": 400}
    if compiled.record_runs(units, **limits) != reference.record_runs(units, **limits):
        return "record_runs"
    return None

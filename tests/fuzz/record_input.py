"""Pull replies for the readers of records, spoiled at random, and the comparison of what both make of them."""

import random
from struct import Struct
from typing import Any, Final

from kappamq.errors import CorruptRecord
from kappamq.kernel import columns_reference as reference
from kappamq.model.record import NewRecord

COLUMNS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "bornTimestamp",
    "keys",
    "tags",
    "messageId",
    "reconsumeTimes",
    "properties",
    "flags",
    "body",
)
HOSTS: Final = (bytes(8), bytes(range(8)), bytes(range(20)))
FIELDS_AT: Final = (0, 4, 36, 52, 72, 84, 85, 86, 90, 104)
"""Where sizes, magic and flags lie: what is changed most."""
_PLACES = Struct("=3q")


class Records:
    """Replies as brokers make them, then spoiled."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def next(self) -> bytes:
        source = self._random
        data = bytearray(b"".join([self._record() for _ in range(source.randrange(1, 5))]))
        if source.random() < 0.3:
            return bytes(data)
        for _ in range(source.randrange(1, 4)):
            is_aimed = source.random() < 0.5
            at = source.choice(FIELDS_AT) + source.randrange(4) if is_aimed else source.randrange(len(data))
            data[min(at, len(data) - 1)] = source.choice((0, 1, 2, 127, 128, 255, source.randrange(256)))
        if source.random() < 0.2:
            del data[source.randrange(len(data)) :]
        return bytes(data)

    def _record(self) -> bytes:
        source = self._random
        names = source.choices(("TAGS", "KEYS", "UNIQ_KEY", "colour", "é", ""), k=source.randrange(5))
        text = "".join([f"{name}\x01{source.choice(('a', '', '日本', 'x' * 40))}\x02" for name in names])
        record = NewRecord(
            source.choice(("Orders", "t" * 130)),
            source.randrange(4),
            bytes(source.randrange(60)),
            text.encode(),
            source.choice((1_700_000_000_000, -(2**63), 2**63 - 1)),
            source.choice(HOSTS[1:]),
            source.choice(HOSTS[1:]),
            flags=source.choice((0, 0, 0, 1, 0xC0)),
        )
        return record.encode(
            queue_offset=source.randrange(9), log_offset=5, stored_at_ms=7, append_crc=source.random() < 0.5
        )


def difference(data: bytes) -> str | None:
    """Which function of the compiled reader does something else than the reference."""
    from kappamq.kernel import _columns as compiled

    wanted = _outcome(reference, data)
    if _outcome(compiled, data) != wanted:
        return "decode_records"
    for starts in (None, _PLACES.pack(0, len(data) // 2, len(data) - 1)):
        for tags in (None, (b"a", "日本".encode())):
            try:
                found = compiled.decode_columns(data, COLUMNS, starts=starts, first=1, end=8, tags=tags)
                is_sound = found is None or wanted[0] == "returned"
            except CorruptRecord:
                is_sound = wanted[0] == "raised"
            if starts is None and not is_sound:
                return "decode_columns"
    return None


def _outcome(kernel: Any, data: bytes) -> tuple[str, Any]:
    try:
        return "returned", kernel.decode_records(data, lambda *values: values, "b")
    except CorruptRecord as fault:
        return "raised", str(fault)

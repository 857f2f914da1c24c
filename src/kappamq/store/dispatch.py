"""What consume queues and index need to know of a record, derived once: from a new record, or from log bytes."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from kappamq.model.message import TRANSACTION_MASK, Flags
from kappamq.model.names import SCHEDULE_TOPIC
from kappamq.model.properties import Name, property_of, tags_code
from kappamq.store.log_scan import RecordFacts

TAG_CODES_CACHED: Final = 4096
UNKNOWN_LEVEL_MS: Final = 1000
LEVEL_CHANGE_MS_MAX: Final = 10 * 366 * 86_400_000
"""By how much the delay of a level may have changed since a message was stored."""

_PREPARED = int(Flags.PREPARED)
_ROLLED_BACK = int(Flags.ROLLED_BACK)
_FACTS = tuple(f"{name}\x01" for name in (Name.TAGS, Name.KEYS, Name.UNIQUE_ID))

_tags_code = lru_cache(maxsize=TAG_CODES_CACHED)(tags_code)


class Arrival(NamedTuple):
    """One record that became visible. The first fields wake parked pulls; the rest is for queues and index."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    stored_at_ms: int
    properties_text: str
    log_offset: int
    size: int
    keys: tuple[str, ...]
    has_queue_entry: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that were appended together, and where the log ended then."""

    end: int
    arrivals: list[Arrival]
    stored_at_ms: int = 0

    @property
    def count(self) -> int:
        return len(self.arrivals)

    def forget(self, topic: str) -> None:
        """Its queues are gone: its records get no entries."""
        self.arrivals[:] = [arrival for arrival in self.arrivals if arrival.topic != topic]


def is_code_of(topic: str, code: int, derived: int) -> bool:
    """Whether the code of a queue entry may stand for a record whose code is now derived as `derived`."""
    # RocketMQ: codes below the range of 32 bits are addresses in consumequeue_ext.
    if code == derived or code < -(1 << 31):
        return True
    # A delivery time that was promised under other delay levels holds.
    return topic == SCHEDULE_TOPIC and abs(code - derived) <= LEVEL_CHANGE_MS_MAX


def derive(facts: RecordFacts, log_offset: int, size: int, delay_levels_ms: tuple[int, ...]) -> Arrival:
    """The queue and index entries of one record."""
    return derive_from(*facts, log_offset, size, delay_levels_ms)


def derive_from(
    topic: str,
    queue_id: int,
    queue_offset: int,
    flags: int,
    stored_at_ms: int,
    text: str,
    log_offset: int,
    size: int,
    delay_levels_ms: tuple[int, ...],
) -> Arrival:
    """The same from single values: one object less for each appended record."""
    code = 0
    unique_id = keys_text = ""
    # Later duplicates win, as everywhere with properties.
    for piece in text.split("\x02"):
        if piece.startswith(_FACTS):
            name, _separator, value = piece.partition("\x01")
            if not value:
                continue
            if name == "TAGS":
                code = _tags_code(value)
            elif name == "UNIQ_KEY":
                unique_id = value
            else:
                keys_text = value
    if topic == SCHEDULE_TOPIC:
        code = _delivery_time(text, stored_at_ms, delay_levels_ms, otherwise=code)
    keys: tuple[str, ...] = (unique_id,) if unique_id else ()
    if keys_text:
        keys += tuple(filter(None, keys_text.split(" ")))
    has_queue_entry = True
    if flags & TRANSACTION_MASK:
        # RocketMQ: records of these types are no messages of their queue; nothing writes them today.
        kind = flags & TRANSACTION_MASK
        has_queue_entry = kind not in (_PREPARED, _ROLLED_BACK)
        if kind == _ROLLED_BACK:
            keys = ()
    return Arrival(topic, queue_id, queue_offset, code, stored_at_ms, text, log_offset, size, keys, has_queue_entry)


def _delivery_time(text: str, stored_at_ms: int, delay_levels_ms: tuple[int, ...], *, otherwise: int) -> int:
    level_text = property_of(text, Name.DELAY)
    if level_text is None or not level_text.lstrip("-").isdigit():
        return otherwise
    level = min(int(level_text), len(delay_levels_ms))
    if level <= 0:
        return otherwise
    return stored_at_ms + (delay_levels_ms[level - 1] if delay_levels_ms else UNKNOWN_LEVEL_MS)

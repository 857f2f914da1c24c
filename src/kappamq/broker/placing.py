"""Where a message really goes: delayed, timed and half messages wait in topics of the broker's own.

Their address travels in properties. Pure: a record in, the same record or one with another address out, and back.

A record that the broker stores on behalf of a waiting one names it: `prepared_offset` is the log offset of the waiting
record. RocketMQ does so for committed transactions; here it also holds for delayed and timed messages, so that after a
crash the log itself says what was delivered already.
"""

from dataclasses import dataclass, replace
from typing import Final

from kappamq.errors import InvalidMessage
from kappamq.model.message import TRANSACTION_MASK, Flags, StoredMessage
from kappamq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.model.properties import Name, decode_properties, encode_properties, property_of
from kappamq.model.record import NewRecord

TIMER_PRECISION_MS: Final = 1000
"""Timers tick once a second; a message comes at its instant rounded up to a tick."""

_DELAY_MARK = Name.DELAY + "\x01"
_TIMER_MARK = "TIMER_DEL"  # Common to TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS.
_TIMER_NAMES = (Name.TIMER_DELAY_SECONDS, Name.TIMER_DELAY_MS, Name.TIMER_DELIVER_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingRules:
    """How many delay levels there are and how far ahead a timer may reach."""

    delay_levels: int
    timer_enabled: bool
    timer_max_delay_seconds: int


def place(record: NewRecord, properties_text: str, *, rules: PlacingRules, now_ms: int) -> NewRecord:
    """The record as it is to be stored: redirected when it carries a delay level or an instant.

    Raises `InvalidMessage` for a delay that is not a number or too long.
    """
    has_delay = _DELAY_MARK in properties_text
    if not has_delay and _TIMER_MARK not in properties_text:
        return record
    if record.flags & TRANSACTION_MASK not in (0, Flags.COMMITTED):
        return record
    properties = decode_properties(properties_text)
    if has_delay:
        level = delay_level_of(properties)
        if level > 0:
            return _at_level(record, properties, min(level, rules.delay_levels))
    return _at_instant(record, properties, rules=rules, now_ms=now_ms)


def _at_level(record: NewRecord, properties: dict[str, str], level: int) -> NewRecord:
    for name in _TIMER_NAMES:
        properties.pop(name, None)
    properties[Name.DELAY] = str(level)
    return redirect(record, properties, SCHEDULE_TOPIC, level - 1)


def _at_instant(record: NewRecord, properties: dict[str, str], *, rules: PlacingRules, now_ms: int) -> NewRecord:
    deliver_at_ms = _deliver_at(properties, now_ms)
    if deliver_at_ms is None or record.topic == TIMER_TOPIC or Name.TIMER_OUT_MS in properties:
        return record
    if not rules.timer_enabled:
        raise InvalidMessage("messages with an instant are switched off here: use a delay level, or timer_enabled=true")
    if deliver_at_ms <= now_ms:
        if Name.TIMER_DELETE_ID in properties:
            raise InvalidMessage("a message cannot be recalled after its time has come")
        return record
    if deliver_at_ms - now_ms > rules.timer_max_delay_seconds * 1000:
        raise InvalidMessage(
            f"a delay of {(deliver_at_ms - now_ms) // 1000} s is too long: the limit is "
            f"{rules.timer_max_delay_seconds} s (timer_max_delay_seconds)"
        )
    properties[Name.TIMER_OUT_MS] = str(timer_tick(deliver_at_ms))
    return redirect(record, properties, TIMER_TOPIC, 0)


def timer_tick(deliver_at_ms: int) -> int:
    """The tick before the one at which a message is delivered: RocketMQ keeps this in TIMER_OUT_MS."""
    return (deliver_at_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS


def redirect(record: NewRecord, properties: dict[str, str], topic: str, queue_id: int) -> NewRecord:
    """A record that waits elsewhere, with its address in its properties."""
    properties |= {Name.REAL_TOPIC: record.topic, Name.REAL_QUEUE_ID: str(record.queue_id)}
    return replace(record, topic=topic, queue_id=queue_id, properties=encode_properties(properties).encode())


def as_half(record: NewRecord, properties_text: str) -> NewRecord:
    """A message of an undecided transaction: it waits where no consumer looks, with plain flags."""
    properties = decode_properties(properties_text)
    if Name.UNIQUE_ID in properties:
        properties[Name.TRANSACTION_ID] = properties[Name.UNIQUE_ID]
    return replace(redirect(record, properties, HALF_TOPIC, 0), flags=record.flags & ~TRANSACTION_MASK)


def is_half(properties_text: str, retry_count: int) -> bool:
    """Whether a send opens a transaction."""
    mark = property_of(properties_text, Name.TRANSACTION) if Name.TRANSACTION in properties_text else None
    if mark is None or mark.lower() != "true":
        return False
    # RocketMQ: a transactional message that is sent again to a retry topic was committed long ago.
    return not (retry_count > 0 and delay_level_of(decode_properties(properties_text)) > 0)


def address_of(message: StoredMessage) -> tuple[str, int] | None:
    """Topic and queue that a waiting message is meant for; `None` when it does not say."""
    topic = message.properties.get(Name.REAL_TOPIC)
    queue_id = message.properties.get(Name.REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        return None
    return topic, int(queue_id)


def delivery_of(message: StoredMessage, *, properties: dict[str, str] | None = None) -> NewRecord | None:
    """The record that brings a waiting message to its address; `None` when it has none that may be written.

    RocketMQ: the properties stay as they are, unless given; DELAY, REAL_TOPIC and REAL_QID remain visible.
    """
    address = address_of(message)
    if address is None or address[0] in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        return None
    return copy_of(message, topic=address[0], queue_id=address[1], properties=properties)


def copy_of(
    message: StoredMessage, *, topic: str, queue_id: int, properties: dict[str, str] | None = None
) -> NewRecord:
    """A record with the content of a stored one, which it names."""
    text = message.properties_text if properties is None else encode_properties(properties)
    return NewRecord(
        topic,
        queue_id,
        message.body,
        text.encode(),
        message.born_at_ms,
        message.born_host_packed,
        message.store_host_packed,
        message.flag,
        message.flags,
        message.retry_count,
        message.log_offset,
    )


def delay_level_of(properties: dict[str, str]) -> int:
    """Delay level that a message asks for, 0 for none. Raises `InvalidMessage` when it is not a number."""
    text = properties.get(Name.DELAY)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise InvalidMessage(
            f"delay level {text[:20]!r} is not a number: give a level from 1 on, or leave DELAY out"
        ) from None


def _deliver_at(properties: dict[str, str], now_ms: int) -> int | None:
    """Instant that a message asks for, by whichever of the three properties comes first; `None` for none."""
    for name, start_ms, unit_ms in (
        (Name.TIMER_DELAY_SECONDS, now_ms, 1000),
        (Name.TIMER_DELAY_MS, now_ms, 1),
        (Name.TIMER_DELIVER_MS, 0, 1),
    ):
        text = properties.get(name)
        if text is not None:
            try:
                return start_ms + int(text) * unit_ms
            except ValueError:
                raise InvalidMessage(f"{name} is {text[:20]!r}: give a whole number") from None
    return None

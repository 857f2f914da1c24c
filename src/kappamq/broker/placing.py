"""Where a message really goes: delayed messages wait in topics of the broker's own, with their address in properties.

Pure: a record in, the same record or one with another address out.
"""

from dataclasses import replace

from kappamq.errors import InvalidMessage
from kappamq.model.message import TRANSACTION_MASK, Flags
from kappamq.model.names import SCHEDULE_TOPIC
from kappamq.model.properties import Name, decode_properties, encode_properties
from kappamq.model.record import NewRecord

_DELAY_MARK = Name.DELAY + "\x01"


def place(record: NewRecord, properties_text: str, *, delay_levels: int) -> NewRecord:
    """The record as it is to be stored: redirected to the schedule topic when it carries a delay level."""
    if _DELAY_MARK not in properties_text:
        return record
    transaction = record.flags & TRANSACTION_MASK
    if transaction not in (0, Flags.COMMITTED):
        return record
    properties = decode_properties(properties_text)
    level = delay_level_of(properties)
    if level <= 0:
        return record
    level = min(level, delay_levels)
    properties |= {
        Name.DELAY: str(level),
        Name.REAL_TOPIC: record.topic,
        Name.REAL_QUEUE_ID: str(record.queue_id),
    }
    return replace(record, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(properties).encode())


def delay_level_of(properties: dict[str, str]) -> int:
    """Delay level that a message asks for, 0 for none. Raises `InvalidMessage` when it is not a number."""
    text = properties.get(Name.DELAY)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise InvalidMessage(f"delay level {text[:20]!r} is not a number: use 1 to 18, or leave DELAY out") from None

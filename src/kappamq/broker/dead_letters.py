"""Retries and dead letters: where a message goes that a group could not consume. Pure rules.

failed, k times before ─▶ %RETRY%group, delay level 3 + k ─▶ … ─▶ %DLQ%group once the maximum is reached
"""

from dataclasses import dataclass, replace
from typing import Final

from kappamq.broker.placing import copy_of
from kappamq.kernel.reference import CRC_PROPERTY_BYTES
from kappamq.model.message import StoredMessage
from kappamq.model.names import dead_letter_topic, retry_topic
from kappamq.model.properties import PROPERTIES_BYTES_MAX, Name, decode_properties, encode_properties
from kappamq.model.record import NewRecord

DEAD_LETTER_QUEUES: Final = 1
FIRST_RETRY_LEVEL: Final = 3
CAUSE_PROPERTY: Final = Name.CAUSE
CAUSE_BYTES_MAX: Final = 1024
RETRY_MAX_VERSION: Final = 121
"""RocketMQ: clients older than 3.4.9 (this number) do not say their own maximum of retries."""
_TEXT_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 1 - CRC_PROPERTY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a consumer says about a message it could not handle."""

    group: str
    delay_level: int
    retry_count_max: int
    cause: str | None = None


def is_dead(retry_count: int, failure: Failure) -> bool:
    """Whether a message that failed once more is given up."""
    return failure.delay_level < 0 or retry_count >= failure.retry_count_max


def retry_record(message: StoredMessage, failure: Failure, *, queue_id: int, store_host: bytes) -> NewRecord:
    """The record that brings a failed message back to its group, or to the dead letters of the group."""
    properties = dict(message.properties)
    properties.setdefault(Name.RETRY_TOPIC, message.topic)
    properties.setdefault(Name.ORIGIN_MESSAGE_ID, message.offset_id)
    properties[Name.WAIT] = "false"
    properties.pop(Name.RECORD_CRC, None)
    if is_dead(message.retry_count, failure):
        topic, queue_id = dead_letter_topic(failure.group), 0
        properties[Name.DELAY] = "0"
        _add_dead_letter_facts(properties, cause=failure.cause)
    else:
        topic = retry_topic(failure.group)
        properties[Name.DELAY] = str(failure.delay_level or FIRST_RETRY_LEVEL + message.retry_count)
    record = copy_of(message, topic=topic, queue_id=queue_id, properties=properties)
    return replace(record, store_host=store_host, retry_count=message.retry_count + 1, prepared_offset=0)


def dead_letter_properties(text: str, *, cause: str) -> str:
    """Properties of a message that a client sent to a retry topic and that goes to the dead letters instead.

    `cause` is for a client that does not tell one.
    """
    properties = decode_properties(text)
    properties[Name.DELAY] = "0"
    _add_dead_letter_facts(properties, cause=properties.pop(CAUSE_PROPERTY, None) or cause)
    return encode_properties(properties)


def unknown_cause(consumer: str) -> str:
    """What is known of a failure that the consumer does not explain: RocketMQ's own consumers never do."""
    return f"the consumer at {consumer} told no cause"


def _add_dead_letter_facts(properties: dict[str, str], *, cause: str | None) -> None:
    """Say in a dead letter where it came from and why, as far as there is room: a letter must not fail to be one."""
    facts = {}
    if cause:
        facts[CAUSE_PROPERTY] = _property_value(cause)
    if Name.RETRY_TOPIC in properties:
        facts[Name.DEAD_ORIGIN_TOPIC] = properties[Name.RETRY_TOPIC]
    if Name.ORIGIN_MESSAGE_ID in properties:
        facts[Name.DEAD_ORIGIN_MESSAGE_ID] = properties[Name.ORIGIN_MESSAGE_ID]
    for name, value in facts.items():
        if len(encode_properties({**properties, name: value}).encode()) <= _TEXT_BYTES_MAX:
            properties[name] = value


def _property_value(text: str) -> str:
    """Text that fits one property: no separators, at most `CAUSE_BYTES_MAX` bytes."""
    plain = text.replace("\x01", " ").replace("\x02", " ").replace("\x00", " ").strip()
    return plain.encode(errors="replace")[:CAUSE_BYTES_MAX].decode(errors="ignore")

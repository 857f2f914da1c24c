"""From a user's message to what a send request carries: checked, stamped with a unique id, compressed."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from kappamq.client.compression import Compression, compress
from kappamq.errors import InvalidMessage, UsageError
from kappamq.model.message import Flags, Message
from kappamq.model.names import WRITE_PROTECTED_TOPICS, check_topic
from kappamq.model.properties import PROPERTIES_BYTES_MAX, RESERVED, Name, encode_properties
from kappamq.wire.batch import BatchItem, encode_batch

DELAY_LEVEL_MAX: Final = 18
TOPICS_CACHED: Final = 1024
"""Names of topics that were checked and found good."""

_SETTABLE: Final = frozenset(
    {
        Name.DELAY,
        Name.TIMER_DELAY_SECONDS,
        Name.TIMER_DELAY_MS,
        Name.TIMER_DELIVER_MS,
        Name.SHARDING_KEY,
        Name.UNIQUE_ID,
        Name.CHECK_IMMUNITY_SECONDS,
        Name.PRIORITY,
        Name.INSTANCE_ID,
    }
)
"""Reserved names that a user may set because they ask for something."""


_BEFORE_KEYS: Final = f"{Name.KEYS}\x01"
_BEFORE_TAGS: Final = f"{Name.TAGS}\x01"
_BEFORE_ID: Final = f"{Name.UNIQUE_ID}\x01"
_AFTER_ID: Final = f"\x02{Name.WAIT}\x01true\x02"
_AFTER_ID_NO_WAIT: Final = f"\x02{Name.WAIT}\x01false\x02"


class Prepared(Struct, gc=False):
    """Everything of a send request that does not depend on the queue."""

    topic: str
    message_id: str
    body: bytes
    properties: str
    flags: int
    flag: int = 0
    is_batch: bool = False
    is_reply: bool = False
    retry_count: int = 0
    retry_count_max: int | None = None


def check_message(message: Message, *, body_bytes_max: int) -> None:
    """Raise `InvalidMessage` or `InvalidName` for what no broker would take."""
    check_destination(message.topic)
    if not message.body:
        raise InvalidMessage("the body is empty: send at least one byte")
    if len(message.body) > body_bytes_max:
        raise InvalidMessage(
            f"body of {len(message.body)} bytes is over the limit of {body_bytes_max}: send less, or a reference to it"
        )
    for name, value in message.properties.items():
        _check_property(name, value)
    for what, text in (("tags", message.tags), ("keys", message.keys_text)):
        if text and ("\x01" in text or "\x02" in text):
            raise InvalidMessage(f"{what} {text!r} contain a separator (0x01 or 0x02): remove it")


@lru_cache(maxsize=TOPICS_CACHED)
def check_destination(topic: str) -> None:
    """Raise `InvalidMessage` or `InvalidName` for a topic that a user cannot send to."""
    check_topic(topic)
    if topic in WRITE_PROTECTED_TOPICS:
        raise InvalidMessage(f"topic {topic!r} is written by brokers only: choose another topic")


def _check_property(name: str, value: str) -> None:
    if not name or not value or name.isspace() or value.isspace():
        raise InvalidMessage(f"property {name!r} with value {value!r} is blank: give it a name and a value")
    if name in RESERVED and name not in _SETTABLE:
        raise InvalidMessage(f"property name {name!r} is reserved by the protocol: choose another name")
    if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
        raise InvalidMessage(f"property {name!r} contains a separator (0x01 or 0x02): remove it")


def plain_properties(message: Message, message_id: str) -> str | None:
    """The properties of the request that `prepare` makes, for a message that has none of its own.

    `None` for every other message, and where something is wrong with it: `prepare` and `check_message` know what.
    """
    if message.properties or message.flag:
        return None
    keys, tags = message.keys, message.tags
    if not isinstance(keys, str):
        keys = message.keys_text
    text = f"{_BEFORE_ID}{message_id}{_AFTER_ID if message.wait_stored else _AFTER_ID_NO_WAIT}"
    marks = 2
    if keys:
        text = f"{_BEFORE_KEYS}{keys}\x02{text}"
        marks += 1
    if tags:
        text = f"{text}{_BEFORE_TAGS}{tags}\x02"
        marks += 1
    # A separator inside of a value would show as one too many.
    is_plain = text.count("\x01") == marks and text.count("\x02") == marks and len(text) <= PROPERTIES_BYTES_MAX // 4
    return text if is_plain else None


def prepare(
    message: Message,
    message_id: str,
    *,
    extra: Mapping[str, str] | None = None,
    compression: Compression = Compression.NONE,
    level: int = 5,
    compress_from_bytes: int = 4096,
) -> Prepared:
    """What the send request carries. A unique id that the message already has is kept, so a resend keeps its id."""
    properties = _properties(message, message_id)
    if extra:
        properties.update(extra)
    body, flags = message.body, 0
    if len(body) >= compress_from_bytes:
        body, flags = compress(body, compression, level=level)
    if properties.get(Name.TRANSACTION) == "true":
        flags |= Flags.PREPARED
    text = encode_properties(properties)
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(
            f"properties of {len(text.encode())} bytes are over the limit of {PROPERTIES_BYTES_MAX}: "
            "put the data into the body"
        )
    return Prepared(message.topic, properties[Name.UNIQUE_ID], body, text, flags, message.flag)


def prepare_batch(messages: Sequence[Message], message_ids: Sequence[str], *, body_bytes_max: int) -> Prepared:
    """One request for all messages, which `batching.check_batch` has accepted; never compressed."""
    items: list[BatchItem] = []
    ids: list[str] = []
    for message, message_id in zip(messages, message_ids, strict=True):
        properties = _properties(message, message_id)
        ids.append(properties[Name.UNIQUE_ID])
        items.append(BatchItem(message.body, encode_properties(properties).encode(), message.flag))
    body = encode_batch(items)
    if len(body) > body_bytes_max:
        raise InvalidMessage(
            f"batch of {len(body)} bytes is over the limit of {body_bytes_max}: split it with split_batches()"
        )
    outer = {Name.WAIT: "true" if messages[0].wait_stored else "false"}
    return Prepared(messages[0].topic, ",".join(ids), body, encode_properties(outer), 0, is_batch=True)


def delay_properties(*, delay_level: int | None, deliver_at_ms: int | None, delay_ms: int | None) -> dict[str, str]:
    """Properties that hold a message back, of at most one way to say it."""
    if sum(value is not None for value in (delay_level, deliver_at_ms, delay_ms)) > 1:
        raise UsageError("delay_level, deliver_at and delay exclude each other: give one of them")
    if delay_level is not None:
        if not 0 <= delay_level <= DELAY_LEVEL_MAX:
            raise UsageError(f"delay level {delay_level} does not exist: use 1 to {DELAY_LEVEL_MAX}, or 0 for none")
        return {Name.DELAY: str(delay_level)} if delay_level else {}
    if deliver_at_ms is not None:
        return {Name.TIMER_DELIVER_MS: str(deliver_at_ms)}
    if delay_ms is not None:
        if delay_ms < 0:
            raise UsageError(f"a delay of {delay_ms} ms lies in the past: use 0 or more")
        return {Name.TIMER_DELAY_MS: str(delay_ms)}
    return {}


def _properties(message: Message, message_id: str) -> dict[str, str]:
    # RocketMQ: its own clients put KEYS, TAGS and WAIT on every message, in no fixed order.
    properties: dict[str, str] = {}
    if keys := message.keys_text:
        properties[Name.KEYS] = keys
    properties[Name.UNIQUE_ID] = message_id
    properties[Name.WAIT] = "true" if message.wait_stored else "false"
    if message.tags:
        properties[Name.TAGS] = message.tags
    if message.properties:
        properties.update(message.properties)
    return properties

"""Cutting a list of messages into batches that one request can carry."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kappamq.errors import InvalidMessage, UsageError
from kappamq.model.message import BODY_BYTES_MAX, Message
from kappamq.model.names import is_retry_topic
from kappamq.model.properties import Name

ITEM_BYTES: Final = 22
"""Of a batch item beside body and properties: size, magic, CRC, flag, body length, properties length."""

_ADDED_BYTES: Final = len("WAIT=false;") + len("UNIQ_KEY=;") + 56
"""Of the properties that sending adds; a unique id has 56 digits at most."""

_DELAY_NAMES: Final = (Name.TIMER_DELAY_SECONDS, Name.TIMER_DELAY_MS, Name.TIMER_DELIVER_MS)


def item_bytes_max(message: Message) -> int:
    """Upper bound of what the message takes within a batch."""
    properties = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in message.properties.items())
    for name, value in ((Name.TAGS, message.tags), (Name.KEYS, message.keys_text)):
        properties += len(name) + len(value.encode()) + 2 if value else 0
    return ITEM_BYTES + len(message.body) + properties + _ADDED_BYTES


def check_batch(messages: Sequence[Message]) -> None:
    """Raise `InvalidMessage` unless the messages may travel together, naming the first that may not."""
    if not messages:
        raise InvalidMessage("the batch is empty: send at least one message")
    first = messages[0]
    for index, message in enumerate(messages):
        if message.topic != first.topic:
            raise InvalidMessage(
                f"message {index} of the batch goes to topic {message.topic!r}, message 0 to {first.topic!r}: "
                "send one batch per topic"
            )
        if message.wait_stored != first.wait_stored:
            raise InvalidMessage(
                f"message {index} of the batch has wait_stored={message.wait_stored}, message 0 "
                f"{first.wait_stored}: send them in separate batches"
            )
        if _is_delayed(message):
            raise InvalidMessage(f"message {index} of the batch is delayed: send delayed messages one by one")
    if is_retry_topic(first.topic):
        raise InvalidMessage(f"topic {first.topic!r} holds retries: send such messages one by one")


def split_batches(
    messages: Sequence[Message],
    *,
    bytes_max: int = BODY_BYTES_MAX,
    size_of: Callable[[Message], int] = item_bytes_max,
) -> Iterator[list[Message]]:
    """Batches of at most `bytes_max`, in the order given, as full as that order allows.

    Everything is checked before the first batch comes out: a mistake in the list sends nothing.
    """
    if bytes_max < 1:
        raise UsageError(f"batches of at most {bytes_max} bytes hold nothing: allow more")
    check_batch(messages)
    sizes = [size_of(message) for message in messages]
    for index, size in enumerate(sizes):
        if size > bytes_max:
            raise InvalidMessage(
                f"message {index} of the batch takes {size} bytes, a batch at most {bytes_max}: "
                "make it smaller or send it alone"
            )
    return _fill(messages, sizes, bytes_max)


def _fill(messages: Sequence[Message], sizes: Sequence[int], bytes_max: int) -> Iterator[list[Message]]:
    batch: list[Message] = []
    used = 0
    for message, size in zip(messages, sizes, strict=True):
        if used + size > bytes_max:
            yield batch
            batch, used = [], 0
        batch.append(message)
        used += size
    yield batch


def _is_delayed(message: Message) -> bool:
    if message.properties.get(Name.DELAY, "0") != "0":
        return True
    # RocketMQ: does not look at timers here. A timer inside a batch is not honoured everywhere, so it is refused.
    return any(message.properties.get(name) for name in _DELAY_NAMES)

"""From the body of a pull reply to messages that a handler may see."""

from collections.abc import Iterable
from typing import Final

from kappamq.client.compression import decompress
from kappamq.kernel import decode_records
from kappamq.model.message import Flags, StoredMessage
from kappamq.model.names import is_retry_topic
from kappamq.model.properties import Name, property_of
from kappamq.model.record import Buffer
from kappamq.model.selector import Selector
from kappamq.wire.batch import decode_batch

_INNER_BATCH: Final = int(Flags.NEED_UNWRAP | Flags.INNER_BATCH)
_SPECIAL: Final = int(Flags.COMPRESSED) | _INNER_BATCH


def decode_pull(body: Buffer, *, broker: str, selector: Selector | None = None) -> list[StoredMessage]:
    """Messages in order, bodies as they were sent; those whose tag only hashes like a wanted one are left out."""
    messages, flags = decode_records(body, StoredMessage, broker)
    if flags & _SPECIAL:
        messages = [plain for message in messages for plain in _unwrap(message)]
    if selector is not None and selector.tags:
        return [message for message in messages if property_of(message.properties_text, Name.TAGS) in selector.tags]
    return messages


def restore_topic(messages: Iterable[StoredMessage]) -> None:
    """Show retried messages under the topic they were sent to."""
    for message in messages:
        if is_retry_topic(message.topic):
            message.topic = message.properties.get(Name.RETRY_TOPIC) or message.topic


def _unwrap(message: StoredMessage) -> Iterable[StoredMessage]:
    if not message.flags & _SPECIAL:
        yield message
        return
    message.body = decompress(message.body, message.flags)
    message.flags &= ~Flags.COMPRESSED
    if message.flags & _INNER_BATCH != _INNER_BATCH:
        yield message
        return
    for position, item in enumerate(decode_batch(message.body)):
        yield StoredMessage(
            topic=message.topic,
            body=item.body,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset + position,
            log_offset=message.log_offset,
            flag=item.flag,
            flags=message.flags & ~_INNER_BATCH,
            born_at_ms=message.born_at_ms,
            born_host_packed=message.born_host_packed,
            stored_at_ms=message.stored_at_ms,
            store_host_packed=message.store_host_packed,
            retry_count=message.retry_count,
            prepared_offset=message.prepared_offset,
            properties_text=item.properties.decode(),
            body_crc=0,
            size=message.size,
            broker=message.broker,
        )

"""Requests as messages: one that waits for an answer, and the answer that finds its way back."""

import asyncio

from kappamq.client.compression import decompress
from kappamq.errors import UsageError
from kappamq.model.ids import pack_host, split_address
from kappamq.model.message import Flags, Message, StoredMessage
from kappamq.model.names import REPLY_TOPIC_SUFFIX
from kappamq.model.properties import Name
from kappamq.wire.headers import PushReplyRequest

REPLY_TYPE = "reply"


class PendingReplies:
    """Requests of this producer whose reply has not come."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[StoredMessage]] = {}

    def expect(self, correlation_id: str) -> "asyncio.Future[StoredMessage]":
        waiter: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = waiter
        return waiter

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def on_reply(self, correlation_id: str, request: PushReplyRequest, body: bytes) -> bool:
        """Hand a reply to whoever waits for it; False when nobody does."""
        waiter = self._waiting.pop(correlation_id, None)
        if waiter is None or waiter.done():
            return False
        waiter.set_result(_message_of(request, body))
        return True


def request_properties(correlation_id: str, client_id: str, timeout_ms: int) -> dict[str, str]:
    """What makes a message a request."""
    return {Name.CORRELATION_ID: correlation_id, Name.REPLY_TO_CLIENT: client_id, Name.TTL: str(timeout_ms)}


def reply_message(request: StoredMessage, body: bytes) -> Message:
    """The message that answers a request. Raises `UsageError` for a message that wants no answer."""
    cluster = request.properties.get(Name.CLUSTER)
    if not cluster or not request.properties.get(Name.CORRELATION_ID):
        raise UsageError(
            f"message {request.message_id} is no request: it has no {Name.CORRELATION_ID} or {Name.CLUSTER}"
        )
    return Message(cluster + REPLY_TOPIC_SUFFIX, body)


def reply_properties(request: StoredMessage) -> dict[str, str]:
    """What brings a reply back to the client that asked."""
    copied = (Name.CORRELATION_ID, Name.REPLY_TO_CLIENT, Name.TTL)
    found = {name: request.properties[name] for name in copied if name in request.properties}
    return {Name.MESSAGE_TYPE: REPLY_TYPE, **found}


def _message_of(request: PushReplyRequest, body: bytes) -> StoredMessage:
    return StoredMessage(
        topic=request.topic,
        body=decompress(body, request.flags),
        queue_id=request.queue_id,
        queue_offset=0,
        log_offset=0,
        flag=request.flag,
        flags=request.flags & ~Flags.COMPRESSED,
        born_at_ms=request.born_at_ms,
        born_host_packed=_pack(request.born_host),
        stored_at_ms=request.stored_at_ms,
        store_host_packed=_pack(request.store_host),
        retry_count=request.retry_count,
        prepared_offset=0,
        properties_text=request.properties,
        body_crc=0,
        size=0,
    )


def _pack(address: str) -> bytes:
    # RocketMQ: Java may write "/127.0.0.1:10911", with the empty host name before the slash.
    host, port = split_address(address.rpartition("/")[2] or "0.0.0.0:0")
    return pack_host(host, port)

"""Request-reply: a reply is pushed to the client that waits for it, and stored."""

import logging
import random
from collections.abc import Mapping
from typing import Final

from kappamq.broker.appender import Appender
from kappamq.broker.members import Members
from kappamq.broker.router import Handler
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import InvalidMessage, KappaError, NotPermitted, TransportError
from kappamq.model.config import Permission
from kappamq.model.ids import format_host, offset_id
from kappamq.model.message import TRANSACTION_MASK
from kappamq.model.names import WRITE_PROTECTED_TOPICS
from kappamq.model.properties import Name, decode_properties, encode_properties
from kappamq.model.record import NewRecord
from kappamq.net.connection import Connection
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import PushReplyRequest, SendRequest, SendRequestV1, decode_fields

log = logging.getLogger(__name__)

PUSH_MS: Final = 10_000
"""How long the asking client has to take its reply."""


class ReplyHandlers:
    """Requests 324 and 325."""

    def __init__(
        self,
        *,
        topics: Topics,
        members: Members,
        appender: Appender,
        statistics: Statistics,
        store_host: bytes,
        permission: int,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._members = members
        self._appender = appender
        self._statistics = statistics
        self._store_host = store_host
        self._permission = permission
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply_v1,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    async def reply_v1(self, connection: Connection, request: Command) -> Command:
        return await self._reply(connection, request, decode_fields(request.fields, SendRequestV1))

    async def reply_v2(self, connection: Connection, request: Command) -> Command:
        return await self._reply(connection, request, decode_fields(request.fields, SendRequest))

    async def _reply(self, connection: Connection, request: Command, send: SendRequest | SendRequestV1) -> Command:
        topic = self._topics.get(send.topic)
        if not self._permission & topic.perm & Permission.WRITE or send.topic in WRITE_PROTECTED_TOPICS:
            raise NotPermitted(f"the topic[{send.topic}] sending message is forbidden: it is not writable")
        is_given = 0 <= send.queue_id < topic.queue_count
        queue_id = send.queue_id if is_given else random.randrange(topic.queue_count)
        if not request.body:
            raise InvalidMessage("the reply has an empty body: send at least one byte")
        properties = decode_properties(send.properties)
        properties[Name.PUSH_REPLY_TIME] = str(self._clock.now_ms())
        record = NewRecord(
            send.topic,
            queue_id,
            request.body,
            encode_properties(properties).encode(),
            send.born_at_ms,
            connection.peer_host,
            self._store_host,
            send.flag,
            send.flags & ~TRANSACTION_MASK,
            send.retry_count,
        )
        trouble = await self._push(send, record, properties.get(Name.REPLY_TO_CLIENT))
        # RocketMQ: the reply is stored whether it was taken or not.
        fields = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        try:
            [stored] = await self._appender.store([record])
        except KappaError as fault:
            log.warning("reply not stored topic=%s fault=%s", send.topic, fault)
        else:
            self._statistics.stored(send.topic, 1, stored.size)
            fields["msgId"] = offset_id(self._store_host, stored.log_offset)
            fields["queueOffset"] = str(stored.queue_offset)
        return request.reply(ResponseCode.SYSTEM_ERROR if trouble else ResponseCode.SUCCESS, trouble, fields=fields)

    async def _push(self, send: SendRequest | SendRequestV1, record: NewRecord, client_id: str | None) -> str | None:
        """Hand the reply to the client that asked; what went wrong, `None` when it was taken."""
        if not client_id:
            return f"{Name.REPLY_TO_CLIENT} is missing: copy it from the request"
        member = self._members.producer_by_client_id(client_id)
        if member is None:
            return (
                f"push reply message fail, channel of <{client_id}> not found: the asking client is not connected here"
            )
        push = PushReplyRequest(
            producer_group=send.producer_group,
            topic=send.topic,
            default_topic=send.default_topic,
            default_topic_queues=send.default_topic_queues,
            queue_id=record.queue_id,
            flags=record.flags,
            born_at_ms=record.born_at_ms,
            flag=record.flag,
            properties=record.properties.decode(),
            retry_count=record.retry_count,
            unit_mode=send.unit_mode,
            born_host=format_host(record.born_host),
            store_host=format_host(record.store_host),
            stored_at_ms=self._clock.now_ms(),
        )
        try:
            answer = await member.connection.call(push.command(body=record.body), timeout_ms=PUSH_MS)
        except TransportError as fault:
            return f"push reply message to {client_id} fail: {fault}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: {answer.remark or answer.code}"
        return None

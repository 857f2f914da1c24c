"""What brokers ask of clients: who is asked, and how the answer travels back.

Requests arrive on the event loop and must not hold it: what may take time becomes a task of the cluster.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from kappamq.client.aio.stacks import stacks
from kappamq.client.aio.tasks import OwnedTasks
from kappamq.client.core.receiving import decode_pull
from kappamq.errors import KappaError, UsageError
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.properties import Name, decode_properties
from kappamq.model.subscription import ConsumerMembership
from kappamq.net.connection import Connection
from kappamq.wire.bodies import decode_offset_table, encode_object
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import code_of
from kappamq.wire.headers import (
    CheckTransactionRequest,
    ClientStatusRequest,
    ConsumeDirectlyRequest,
    ConsumerIdsChanged,
    PushReplyRequest,
    ResetClientOffsetRequest,
    RunningInfoRequest,
    decode_fields,
)

log = logging.getLogger(__name__)

CALLBACKS_MAX: Final = 1_000
"""Requests of brokers that are being handled at once."""


class ProducerMember(Protocol):
    """A producer as brokers may address it."""

    @property
    def group(self) -> str: ...

    def on_check(self, connection: Connection, request: CheckTransactionRequest, message: StoredMessage) -> None:
        """How did this transaction end? The answer is a request of its own on the same connection."""

    def on_reply(self, correlation_id: str, request: PushReplyRequest, body: bytes) -> bool:
        """The answer to one of our requests; False when nobody waits for it."""


class ConsumerMember(Protocol):
    """A consumer as brokers may address it."""

    @property
    def group(self) -> str: ...

    def membership(self) -> ConsumerMembership:
        """What heartbeats say of it."""

    def on_members_changed(self) -> None:
        """Somebody joined or left the group."""

    async def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Go on from other offsets."""

    def status(self, topic: str) -> dict[Queue, int]:
        """Offsets consumed so far."""

    def running_info(self) -> dict[str, Any]:
        """Settings and state for an operator."""

    async def consume_directly(self, message: StoredMessage) -> dict[str, Any]:
        """Run the handler on one message without any effect on offsets."""


class Callbacks:
    """Members of one client by group, and the handler of the requests that its connections receive."""

    def __init__(self, tasks: OwnedTasks) -> None:
        self._tasks = tasks
        self._producers: dict[str, ProducerMember] = {}
        self._consumers: dict[str, ConsumerMember] = {}
        self._running = 0

    def add_producer(self, member: ProducerMember) -> None:
        if self._producers.setdefault(member.group, member) is not member:
            raise UsageError(f"producer group {member.group!r} was created before, specify another name")

    def add_consumer(self, member: ConsumerMember) -> None:
        if self._consumers.setdefault(member.group, member) is not member:
            raise UsageError(f"consumer group {member.group!r} was created before, specify another name")

    def remove_producer(self, member: ProducerMember) -> None:
        self._producers.pop(member.group, None)

    def remove_consumer(self, member: ConsumerMember) -> None:
        self._consumers.pop(member.group, None)

    def producer_groups(self) -> Iterable[str]:
        return list(self._producers)

    def consumer_groups(self) -> Iterable[str]:
        return list(self._consumers)

    def consumers(self) -> list[ConsumerMember]:
        return list(self._consumers.values())

    def on_request(self, connection: Connection, request: Command) -> None:
        """Handler of every request that a broker makes on a connection of ours."""
        handle = _HANDLERS.get(request.code)
        if handle is None:
            _reply(
                connection,
                request,
                request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"),
            )
            return
        if self._running >= CALLBACKS_MAX:
            _reply(connection, request, request.reply(ResponseCode.SYSTEM_BUSY, "too many requests of brokers at once"))
            return
        try:
            later = handle(self, connection, request)
        except KappaError as fault:
            log.warning("request of a broker failed code=%d fault=%s", request.code, fault)
            _reply(connection, request, request.reply(code_of(fault), str(fault)))
            return
        if later is not None:
            self._running += 1
            self._tasks.start(self._finish(connection, request, later), name=f"callback {request.code}")

    async def _finish(self, connection: Connection, request: Command, later: Awaitable[Command | None]) -> None:
        try:
            answer = await later
        except KappaError as fault:
            log.warning("request of a broker failed code=%d fault=%s", request.code, fault)
            answer = request.reply(code_of(fault), str(fault))
        finally:
            self._running -= 1
        if answer is not None:
            _reply(connection, request, answer)

    def _consumer(self, group: str) -> ConsumerMember:
        member = self._consumers.get(group)
        if member is None:
            raise UsageError(f"The Consumer Group <{group}> not exist in this consumer")
        return member

    def _members_changed(self, _: Connection, request: Command) -> None:
        member = self._consumers.get(decode_fields(request.fields, ConsumerIdsChanged).consumer_group)
        if member is not None:
            member.on_members_changed()

    def _check_transaction(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, CheckTransactionRequest)
        for message in decode_pull(request.body, broker=header.broker or ""):
            producer = self._producers.get(message.properties.get(Name.PRODUCER_GROUP, ""))
            if producer is not None:
                producer.on_check(connection, header, message)

    def _reset_offsets(self, _: Connection, request: Command) -> Awaitable[None]:
        header = decode_fields(request.fields, ResetClientOffsetRequest)
        return self._consumer(header.group).reset_offsets(header.topic, decode_offset_table(request.body))

    def _status(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, ClientStatusRequest)
        table = self._consumer(header.group).status(header.topic)
        body = encode_object({"consumerTable": {}, "messageQueueTable": table})
        _reply(connection, request, request.reply(body=body))

    def _running_info(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, RunningInfoRequest)
        info = self._consumer(header.consumer_group).running_info()
        if header.jstack_enable:
            info["jstack"] = stacks()
        _reply(connection, request, request.reply(body=encode_object(info)))

    async def _consume_directly(self, _: Connection, request: Command) -> Command:
        header = decode_fields(request.fields, ConsumeDirectlyRequest)
        messages = decode_pull(request.body, broker=header.broker_name or "")
        if not messages:
            raise UsageError("there is no message to consume in the request")
        result = await self._consumer(header.consumer_group).consume_directly(messages[0])
        return request.reply(body=encode_object(result))

    def _push_reply(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, PushReplyRequest)
        correlation_id = decode_properties(header.properties).get(Name.CORRELATION_ID, "")
        for producer in self._producers.values():
            if producer.on_reply(correlation_id, header, request.body):
                break
        else:
            log.info("reply that nobody waits for dropped correlation_id=%s", correlation_id)
        _reply(connection, request, request.reply())


def _reply(connection: Connection, request: Command, answer: Command) -> None:
    if not request.is_one_way:
        connection.reply(answer)


_Handler = Callable[[Callbacks, Connection, Command], Awaitable[Command | None] | None]

_HANDLERS: Final[dict[int, _Handler]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Callbacks._members_changed,
    RequestCode.CHECK_TRANSACTION_STATE: Callbacks._check_transaction,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Callbacks._reset_offsets,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Callbacks._status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: Callbacks._running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Callbacks._consume_directly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Callbacks._push_reply,
}

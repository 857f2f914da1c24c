"""Online clients: who they are, what they are doing, and moving them to other offsets."""

import asyncio
from collections.abc import Mapping
from typing import Final

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.members import ConsumerGroup, Member, Members, connections_of
from kappamq.broker.parked_pulls import ParkedPulls
from kappamq.broker.router import Handler
from kappamq.broker.runtime_settings import RuntimeSettings
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import CallTimeout, KappaError, Refused, StorageError, TransportError
from kappamq.model.config import TopicConfig
from kappamq.model.ids import parse_offset_id
from kappamq.model.message import Queue
from kappamq.model.subscription import GroupConnections
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.admin_bodies import (
    ProducerView,
    decode_client_status,
    encode_consumer_status,
    encode_offset_list,
    encode_producers,
)
from kappamq.wire.bodies import encode_connections, encode_group_connections, encode_offset_table
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    ClientStatusRequest,
    ConsumeDirectlyRequest,
    ConsumerConnectionsRequest,
    ConsumerStatusRequest,
    ProducerConnectionsRequest,
    ResetClientOffsetRequest,
    ResetOffsetRequest,
    RunningInfoRequest,
    decode_fields,
)

FORWARD_MS: Final = 10_000
"""How long a consumer may take to answer what a tool asks of it."""
STATUS_MS: Final = 5_000
_RESET_VERSION: Final = 28
"""Clients below this version cannot be moved nor asked for their offsets."""
_FORWARD_VERSION: Final = 62
"""Clients below this version cannot be asked what they are doing."""


class ConsumerControlHandlers:
    """Requests 203, 204, 222, 223, 307, 309 and 328."""

    def __init__(
        self,
        *,
        broker: str,
        topics: Topics,
        groups: Groups,
        offsets: CommittedOffsets,
        members: Members,
        parked: ParkedPulls,
        store: Store,
        settings: RuntimeSettings,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._parked = parked
        self._store = store
        self._settings = settings
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # ── Who is online ───────────────────────────────────────────────────────────────────────────────────────────────

    def consumers(self, _: Connection, request: Command) -> Command:
        name = decode_fields(request.fields, ConsumerConnectionsRequest).consumer_group
        group = self._members.consumer_group(name)
        if group is None:
            raise Refused(f"the consumer group[{name}] not online", code=ResponseCode.CONSUMER_NOT_ONLINE)
        connections = GroupConnections(
            connections=connections_of(list(group.members.values())),
            consume_from=group.consume_from,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscriptions=dict(group.subscriptions),
        )
        return request.reply(body=encode_group_connections(connections))

    def producers(self, _: Connection, request: Command) -> Command:
        name = decode_fields(request.fields, ProducerConnectionsRequest).producer_group
        members = self._members.producers(name)
        if not members:
            raise Refused(f"the producer group[{name}] not exist", code=ResponseCode.SYSTEM_ERROR)
        return request.reply(body=encode_connections(connections_of(members)))

    def all_producers(self, _: Connection, request: Command) -> Command:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        groups = {
            group: [
                ProducerView(
                    client_id=member.client.client_id,
                    language=member.client.language,
                    last_seen_ms=now_ms - int((now - member.seen) * 1000),
                    address=member.client.address,
                    version=member.client.version,
                )
                for member in members
            ]
            for group, members in self._members.producer_groups().items()
        }
        return request.reply(body=encode_producers(groups))

    # ── Moving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def reset(self, _: Connection, request: Command) -> Command:
        """Move a group to a time (-1: the end), or one queue of it to an offset."""
        wanted = decode_fields(request.fields, ResetOffsetRequest)
        topic = self._topics.get(wanted.topic)
        if not self._settings.current.server_side_reset:
            return self._reset_by_clients(request, wanted, topic)
        self._groups.get(wanted.group)
        targets = self._targets(wanted, topic)
        for queue_id, offset in targets.items():
            self._offsets.reset(wanted.topic, wanted.group, queue_id, offset)
            self._parked.wake_queue(wanted.topic, queue_id)  # A consumer that waits for messages learns at once.
        return request.reply(body=encode_offset_table(self._by_queue(wanted.topic, targets)))

    def _targets(self, wanted: ResetOffsetRequest, topic: TopicConfig) -> dict[int, int]:
        """New offset of each queue that is to be moved."""
        if wanted.queue_id < 0:
            return {queue_id: self._offset_at(wanted, queue_id) for queue_id in range(topic.queue_count)}
        if wanted.queue_id >= topic.queue_count:
            raise Refused(
                f"queue {wanted.queue_id} of topic {wanted.topic} does not exist (it has {topic.queue_count})",
                code=ResponseCode.INVALID_PARAMETER,
            )
        if wanted.offset is None or wanted.offset == -1:
            return {wanted.queue_id: self._offset_at(wanted, wanted.queue_id)}
        start = self._store.min_offset(wanted.topic, wanted.queue_id)
        end = self._store.max_offset(wanted.topic, wanted.queue_id)
        if not start <= wanted.offset <= end:
            raise Refused(
                f"Target offset {wanted.offset} not in consume queue range [{start}-{end}]",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return {wanted.queue_id: wanted.offset}

    def _offset_at(self, wanted: ResetOffsetRequest, queue_id: int) -> int:
        if wanted.timestamp < 0:
            return max(self._store.max_offset(wanted.topic, queue_id), 0)
        return max(self._store.offset_at(wanted.topic, queue_id, wanted.timestamp), 0)

    def _by_queue(self, topic: str, offsets: Mapping[int, int]) -> dict[Queue, int]:
        return {Queue(topic, self._broker, queue_id): offset for queue_id, offset in offsets.items()}

    def _reset_by_clients(self, request: Command, wanted: ResetOffsetRequest, topic: TopicConfig) -> Command:
        """RocketMQ before 5.2: the online consumers are told where to go on, and commit that themselves."""
        targets: dict[int, int] = {}
        for queue_id in range(topic.write_queue_nums):
            committed = self._offsets.find(wanted.topic, wanted.group, queue_id)
            if committed is None:
                raise Refused(f"THe consumer group <{wanted.group}> not exist", code=ResponseCode.SYSTEM_ERROR)
            target = self._offset_at(wanted, queue_id)
            targets[queue_id] = target if wanted.is_force else min(target, committed)
        group = self._online(
            wanted.group,
            f"Consumer not online, so can not reset offset, Group: {wanted.group} Topic: {wanted.topic} "
            f"Timestamp: {wanted.timestamp}",
            ResponseCode.CONSUMER_NOT_ONLINE,
        )
        members = list(group.members.values())
        for member in members:
            _check_version(member, _RESET_VERSION)
        offsets = self._by_queue(wanted.topic, targets)
        order = ResetClientOffsetRequest(
            topic=wanted.topic, group=wanted.group, timestamp=wanted.timestamp, is_force=wanted.is_force
        )
        for member in members:
            is_cpp = member.client.language == "CPP"
            body = encode_offset_list(offsets) if is_cpp else encode_offset_table(offsets)
            try:
                member.connection.send(order.command(body=body))
            except TransportError:
                continue  # It is going away; its queues pass to the others, who were told.
        return request.reply(body=encode_offset_table(offsets))

    # ── Asking clients ──────────────────────────────────────────────────────────────────────────────────────────────

    async def status(self, _: Connection, request: Command) -> Command:
        """Offsets that the clients of a group work at, asked of each of them."""
        wanted = decode_fields(request.fields, ConsumerStatusRequest)
        group = self._online(wanted.group, f"No Any Consumer online in the consumer group: [{wanted.group}]")
        members = [
            member
            for member in group.members.values()
            if not wanted.client_addr or wanted.client_addr == member.client.client_id
        ]
        for member in members:
            _check_version(member, _RESET_VERSION)
        order = ClientStatusRequest(topic=wanted.topic, group=wanted.group)
        answers = await asyncio.gather(*(self._ask(member, order.command(), STATUS_MS) for member in members))
        table = {
            member.client.client_id: decode_client_status(answer.body)
            for member, answer in zip(members, answers, strict=True)
            if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body
        }
        return request.reply(body=encode_consumer_status(table))

    async def _ask(self, member: Member, order: Command, timeout_ms: int) -> Command | None:
        """Answer of a client, `None` from one that does not answer."""
        try:
            return await member.connection.call(order, timeout_ms=timeout_ms)
        except TransportError:
            return None

    async def running_info(self, _: Connection, request: Command) -> Command:
        wanted = decode_fields(request.fields, RunningInfoRequest)
        return await self._forward(request, wanted.consumer_group, wanted.client_id)

    async def consume_directly(self, _: Connection, request: Command) -> Command:
        """Let one client of a group consume one stored message now, whatever its progress is."""
        wanted = decode_fields(request.fields, ConsumeDirectlyRequest)
        if not wanted.msg_id:
            return await self._forward(request, wanted.consumer_group, wanted.client_id or "", self._extras())
        _address, log_offset = parse_offset_id(wanted.msg_id)
        try:
            body = await asyncio.to_thread(self._store.read, log_offset)
        except StorageError as fault:
            raise Refused(
                f"message {wanted.msg_id} is not stored here: {fault}", code=ResponseCode.SYSTEM_ERROR
            ) from None
        return await self._forward(request, wanted.consumer_group, wanted.client_id or "", self._extras(), body=body)

    def _extras(self) -> dict[str, str]:
        return {"brokerName": self._broker, "topicSysFlag": "0", "groupSysFlag": "0"}

    async def _forward(
        self,
        request: Command,
        group: str,
        client_id: str,
        extras: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
    ) -> Command:
        """Ask a client what a tool asked us, and answer as it does."""
        member = self._members.consumer(group, client_id)
        if member is None:
            raise Refused(f"The Consumer <{group}> <{client_id}> not online", code=ResponseCode.SYSTEM_ERROR)
        _check_version(member, _FORWARD_VERSION)
        order = Command(
            code=request.code,
            fields=request.fields | dict(extras or {}),
            body=request.body if body is None else body,
        )
        try:
            answer = await member.connection.call(order, timeout_ms=FORWARD_MS)
        except CallTimeout as fault:
            raise Refused(
                f"consumer <{group}> <{client_id}> Timeout: {fault}", code=ResponseCode.CONSUME_MSG_TIMEOUT
            ) from None
        except KappaError as fault:
            raise Refused(
                f"invoke consumer <{group}> <{client_id}> Exception: {fault}", code=ResponseCode.SYSTEM_ERROR
            ) from None
        return request.reply(answer.code, answer.remark, fields=answer.fields, body=answer.body)

    def _online(self, name: str, remark: str, code: int = ResponseCode.SYSTEM_ERROR) -> ConsumerGroup:
        group = self._members.consumer_group(name)
        if group is None or not group.members:
            raise Refused(remark, code=code)
        return group


def _check_version(member: Member, version: int) -> None:
    if member.client.version < version:
        raise Refused(
            f"the client {member.client.client_id} does not support this feature. version={member.client.version}: "
            "use a newer client",
            code=ResponseCode.SYSTEM_ERROR,
        )

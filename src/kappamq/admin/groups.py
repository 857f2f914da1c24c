"""Consumer groups: list, describe, follow their progress, move them, delete them."""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from kappamq.admin.reach import STATS_TIMEOUT_MS, Reach
from kappamq.admin.values import GroupMembers, GroupSummary, GroupView, Progress, QueueLag, QueueReset
from kappamq.errors import GroupNotFound, NotFound, Refused, TopicNotFound
from kappamq.model.config import GroupConfig
from kappamq.model.message import Queue
from kappamq.model.names import (
    RETRY_PREFIX,
    SYSTEM_GROUPS,
    check_group,
    dead_letter_topic,
    retry_topic,
)
from kappamq.model.subscription import ClientConnection
from kappamq.wire import bodies
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    ConsumerConnectionsRequest,
    ConsumeStatsRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    DeleteTopicRouteRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetReply,
    ResetOffsetRequest,
    SearchOffsetRequest,
    UpdateOffsetRequest,
    decode_fields,
)

Target: TypeAlias = Literal["first", "last"] | datetime
"""Where a group goes: the oldest message, the end, or the first message stored at a time."""

_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_END_TIMESTAMP: Final = -1


class Groups:
    """Operations on consumer groups, over all masters."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def names(self, *, include_system: bool = False) -> list[str]:
        """Groups that any master knows."""
        masters = await self._reach.masters()
        tables = await asyncio.gather(*(self._configs_of(address) for address in masters.values()))
        names = {name for table in tables for name in table}
        return sorted(name for name in names if include_system or not is_system_group(name))

    async def _configs_of(self, address: str) -> dict[str, GroupConfig]:
        command = Command(code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        reply = await self._reach.ask(address, command, timeout_ms=STATS_TIMEOUT_MS)
        return bodies.decode_group_configs(reply.body)[0]

    async def overview(self) -> list[GroupSummary]:
        """One line about every user's group."""
        return list(await asyncio.gather(*(self._summary(name) for name in await self.names())))

    async def _summary(self, group: str) -> GroupSummary:
        members, progress = await asyncio.gather(self.members(group), self.progress(group))
        topics = tuple(topic for topic in progress.topics if not topic.startswith(RETRY_PREFIX))
        return GroupSummary(group, len(members.connections), members.message_model, progress.lag, topics)

    async def show(self, group: str) -> GroupView:
        """Everything about a group. Raises `GroupNotFound` when no broker knows it."""
        masters = await self._reach.masters()
        configs: dict[str, GroupConfig] = {}
        for name, address in masters.items():
            table = await self._configs_of(address)
            if group in table:
                configs[name] = table[group]
        members, progress = await asyncio.gather(self.members(group), self.progress(group))
        if not configs and not members.is_online and not progress.queues:
            raise GroupNotFound(f"group {group!r} is not known to any broker: check its name with `kappamq group list`")
        return GroupView(group, configs, members, progress)

    async def members(self, group: str) -> GroupMembers:
        """Who consumes in a group now; nobody is an empty answer, not an error."""
        found: dict[str, ClientConnection] = {}
        merged = GroupMembers()
        for address in (await self._reach.masters()).values():
            try:
                reply = await self._reach.ask(address, ConsumerConnectionsRequest(consumer_group=group))
            except (NotFound, GroupNotFound):
                continue
            connections = bodies.decode_group_connections(reply.body)
            found |= {connection.client_id: connection for connection in connections.connections}
            merged = GroupMembers(
                consume_type=connections.consume_type,
                message_model=connections.message_model,
                consume_from=connections.consume_from,
                subscriptions={
                    str(topic): str(subscription.get("subString") or "*")
                    for topic, subscription in connections.subscriptions.items()
                },
            )
        return replace(merged, connections=tuple(found[client_id] for client_id in sorted(found)))

    async def progress(self, group: str, topic: str | None = None) -> Progress:
        """How far a group is, on every queue it has a committed offset for."""
        queues: list[QueueLag] = []
        per_second = 0.0
        request = ConsumeStatsRequest(consumer_group=group, topic=topic)
        for address in (await self._reach.masters()).values():
            try:
                reply = await self._reach.ask(address, request, timeout_ms=STATS_TIMEOUT_MS)
            except (NotFound, GroupNotFound, TopicNotFound):
                continue
            per_second += float(bodies.decode_object(reply.body).get("consumeTps") or 0.0)
            for queue, value in bodies.decode_queue_table(reply.body).items():
                committed = int(value.get("consumerOffset") or 0)
                queues.append(
                    QueueLag(
                        queue=queue,
                        end=int(value.get("brokerOffset") or 0),
                        committed_offset=committed,
                        pulled_offset=int(value.get("pullOffset") or committed),
                        consumed_at_ms=int(value.get("lastTimestamp") or 0),
                    )
                )
        return Progress(group, tuple(sorted(queues, key=lambda each: each.queue)), per_second)

    async def create(self, config: GroupConfig, *, cluster: str | None = None) -> None:
        """Create a group, or change it, on every master of a cluster."""
        check_group(config.group_name)
        masters = await self._reach.masters(await self._reach.one_cluster(cluster))
        command_body = bodies.encode_object(config)
        for address in masters.values():
            command = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=command_body)
            await self._reach.ask(address, command)

    async def delete(self, group: str, *, keep_offsets: bool = False) -> None:
        """Delete a group with its retry and dead-letter topics. Raises `GroupNotFound`."""
        if group not in await self.names(include_system=True):
            raise GroupNotFound(f"group {group!r} is not known to any broker: check its name with `kappamq group list`")
        masters = await self._reach.masters()
        request = DeleteGroupRequest(group_name=group, clean_offset=not keep_offsets, remove_offset=not keep_offsets)
        await self._reach.ask_each(masters, request)
        for topic in (retry_topic(group), dead_letter_topic(group)):
            await self._reach.ask_each(masters, DeleteTopicRequest(topic=topic))
            await self._reach.tell_name_servers(DeleteTopicRouteRequest(topic=topic))

    # ── Moving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def reset(self, group: str, topic: str, to: Target) -> list[QueueReset]:
        """Make a group continue elsewhere, on every queue of a topic; consumers that run follow.

        Raises `TopicNotFound` or `GroupNotFound`.
        """
        route = await self._reach.cluster.name_servers.route(topic)
        readable = {queues.broker: queues.read_queues for queues in route.queues if queues.is_readable}
        resets: list[QueueReset] = []
        for broker in route.brokers:
            if broker.master is None or broker.name not in readable:
                continue
            queues = [Queue(topic, broker.name, queue_id) for queue_id in range(readable[broker.name])]
            resets += await self._reset_at(broker.master, group, queues, to)
        return sorted(resets, key=lambda each: each.queue)

    async def _reset_at(self, address: str, group: str, queues: list[Queue], to: Target) -> list[QueueReset]:
        request = ResetOffsetRequest(topic=queues[0].topic, group=group, timestamp=_timestamp(to), is_force=True)
        try:
            reply = await self._reach.ask(address, request, timeout_ms=STATS_TIMEOUT_MS)
        except Refused as fault:
            if fault.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            # RocketMQ: before 5.2 a broker moves only groups that are online; others we move ourselves.
            return [await self._commit(address, group, queue, to) for queue in queues]
        offsets = bodies.decode_offset_table(reply.body)
        return [QueueReset(queue, offset) for queue, offset in offsets.items()]

    async def _commit(self, address: str, group: str, queue: Queue, to: Target) -> QueueReset:
        where: MinOffsetRequest | MaxOffsetRequest | SearchOffsetRequest
        if to == "first":
            where = MinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        elif to == "last":
            where = MaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        else:
            where = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=_timestamp(to))
        offset = decode_fields((await self._reach.ask(address, where)).fields, OffsetReply).offset
        commit = UpdateOffsetRequest(group=group, topic=queue.topic, queue_id=queue.queue_id, committed_offset=offset)
        await self._reach.ask(address, commit)
        return QueueReset(queue, offset)


def is_system_group(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)


def _timestamp(to: Target) -> int:
    """Time in the words of the request: 0 is before everything, -1 the end."""
    if isinstance(to, datetime):
        return round(to.timestamp() * 1000)
    return 0 if to == "first" else _END_TIMESTAMP

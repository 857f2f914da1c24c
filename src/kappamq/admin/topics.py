"""Topics: create, change, delete, list, describe."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from kappamq.admin.reach import STATS_TIMEOUT_MS, Reach
from kappamq.admin.values import QueueRange, TopicView
from kappamq.errors import CallTimeout, Refused, TopicNotFound, UsageError
from kappamq.model.config import QUEUES_MAX, READ_WRITE, TopicConfig
from kappamq.model.names import (
    DEAD_LETTER_PREFIX,
    FIXED_SYSTEM_TOPICS,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    check_topic,
)
from kappamq.model.route import TopicRoute
from kappamq.wire import bodies
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    CreateTopicRequest,
    DeleteTopicRequest,
    DeleteTopicRouteRequest,
    TopicConfigRequest,
    TopicConsumersRequest,
    TopicListRequest,
    TopicsOfClusterRequest,
    TopicStatsRequest,
)

ROUTE_SECONDS_MAX: Final = 10.0
"""How long a new topic may take to appear in the routes."""
ROUTE_PAUSE_SECONDS: Final = 0.05
QUEUES_DEFAULT: Final = 8


class Topics:
    """Operations on topics. Every change is made on all masters of one cluster."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def names(self, *, cluster: str | None = None, include_system: bool = False) -> list[str]:
        """Names of users' topics, or of all topics."""
        request = TopicListRequest() if cluster is None else TopicsOfClusterRequest(cluster=cluster)
        names = bodies.decode_topic_list((await self._reach.cluster.name_servers.call(request)).body)
        if include_system:
            return sorted(names)
        hidden = await self._system_names()
        return sorted(name for name in names if name not in hidden and not is_system_topic(name))

    async def _system_names(self) -> set[str]:
        """Names of clusters and brokers: each is a topic too."""
        command = Command(code=RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        reply = await self._reach.ask(self._reach.cluster.name_servers.addresses[0], command)
        return set(bodies.decode_topic_list(reply.body))

    async def create(
        self,
        topic: str,
        *,
        queues: int = QUEUES_DEFAULT,
        read_queues: int | None = None,
        permission: int = READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> TopicRoute:
        """Create a topic, or change it, on every master of a cluster; return when the name servers know.

        Raises `CallTimeout` when the brokers agreed but the route does not show it in time.
        """
        check_topic(topic)
        if not 1 <= queues <= QUEUES_MAX:
            raise UsageError(f"{queues} queues are not possible: use 1 to {QUEUES_MAX}")
        masters = await self._reach.masters(await self._reach.one_cluster(cluster))
        request = CreateTopicRequest(
            topic=topic,
            read_queue_nums=read_queues if read_queues is not None else queues,
            write_queue_nums=queues,
            perm=permission,
            order=order,
            attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items()) or None,
        )
        await self._reach.ask_each(masters, request)
        return await self._await_route(topic, request, set(masters))

    async def _await_route(self, topic: str, request: CreateTopicRequest, brokers: set[str]) -> TopicRoute:
        try:
            async with asyncio.timeout(ROUTE_SECONDS_MAX):
                while True:
                    route = await self._route_or_none(topic)
                    if route is not None and _shows(route, request, brokers):
                        return route
                    await asyncio.sleep(ROUTE_PAUSE_SECONDS)
        except TimeoutError:
            raise CallTimeout(
                f"topic {topic!r} was created, but its route is not complete after {ROUTE_SECONDS_MAX:.0f} s: "
                "check that the brokers reach the name servers"
            ) from None

    async def _route_or_none(self, topic: str) -> TopicRoute | None:
        try:
            return await self.route(topic)
        except TopicNotFound:
            return None

    async def route(self, topic: str) -> TopicRoute:
        """Where a topic lives, as a name server says now. Raises `TopicNotFound`."""
        return await self._reach.cluster.name_servers.route(topic)

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic on every master of a cluster, then at every name server. Raises `TopicNotFound`."""
        await self.route(topic)
        chosen = await self._reach.one_cluster(cluster)
        await self._reach.ask_each(await self._reach.masters(chosen), DeleteTopicRequest(topic=topic))
        await self._reach.tell_name_servers(DeleteTopicRouteRequest(topic=topic, cluster_name=chosen))

    async def show(self, topic: str) -> TopicView:
        """Everything about a topic. Raises `TopicNotFound`."""
        route = await self.route(topic)
        masters = {broker.name: broker.master for broker in route.brokers if broker.master is not None}
        queues, groups, configs = await asyncio.gather(
            self._ranges(topic, masters), self._groups(topic, masters), self._configs(topic, masters)
        )
        return TopicView(name=topic, route=route, configs=configs, queues=queues, groups=groups)

    async def queues(self, topic: str) -> tuple[QueueRange, ...]:
        """What every queue of a topic holds. Raises `TopicNotFound`."""
        route = await self.route(topic)
        return await self._ranges(
            topic, {broker.name: broker.master for broker in route.brokers if broker.master is not None}
        )

    async def _ranges(self, topic: str, masters: Mapping[str, str]) -> tuple[QueueRange, ...]:
        replies = await self._reach.ask_each(masters, TopicStatsRequest(topic=topic), timeout_ms=STATS_TIMEOUT_MS)
        ranges = [
            QueueRange(queue, _number(value, "minOffset"), _number(value, "maxOffset"), _last_update(value))
            for reply in replies.values()
            for queue, value in bodies.decode_queue_table(reply.body).items()
        ]
        return tuple(sorted(ranges, key=lambda each: each.queue))

    async def groups(self, topic: str) -> tuple[str, ...]:
        """Groups that consume a topic, or have consumed it."""
        route = await self.route(topic)
        return await self._groups(
            topic, {broker.name: broker.master for broker in route.brokers if broker.master is not None}
        )

    async def _groups(self, topic: str, masters: Mapping[str, str]) -> tuple[str, ...]:
        replies = await self._reach.ask_each(masters, TopicConsumersRequest(topic=topic), timeout_ms=STATS_TIMEOUT_MS)
        lists = (bodies.decode_object(reply.body).get("groupList") or [] for reply in replies.values())
        return tuple(sorted({str(group) for groups in lists for group in groups}))

    async def _configs(self, topic: str, masters: Mapping[str, str]) -> dict[str, TopicConfig]:
        configs: dict[str, TopicConfig] = {}
        for name, address in masters.items():
            try:
                reply = await self._reach.ask(address, TopicConfigRequest(topic=topic))
            except Refused as fault:
                # RocketMQ: brokers before 5.0 do not know the question.
                if fault.code not in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST):
                    raise
                continue
            present = {key: value for key, value in bodies.decode_object(reply.body).items() if value is not None}
            configs[name] = bodies.convert(present, TopicConfig)
        return configs


def is_system_topic(name: str) -> bool:
    """Whether a topic serves the brokers and not users: retries, dead letters and fixed names."""
    return (
        name in FIXED_SYSTEM_TOPICS
        or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX))
        or name.endswith(REPLY_TOPIC_SUFFIX)
    )


def _shows(route: TopicRoute, request: CreateTopicRequest, brokers: set[str]) -> bool:
    """Whether a route already says what was asked for, on every broker."""
    fitting = {
        queues.broker
        for queues in route.queues
        if (queues.read_queues, queues.write_queues, queues.permission)
        == (request.read_queue_nums, request.write_queue_nums, request.perm)
    }
    return brokers <= fitting


def _number(value: Mapping[str, Any], name: str) -> int:
    return int(value.get(name) or 0)


def _last_update(value: Mapping[str, Any]) -> int:
    return max(_number(value, "lastUpdateTimestamp"), 0)

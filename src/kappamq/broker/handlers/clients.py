"""Clients: heartbeats, membership, queue locks, checks of their subscriptions."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping

from kappamq.broker.config_store import ConfigFile
from kappamq.broker.groups import Groups
from kappamq.broker.locks import QueueLocks
from kappamq.broker.members import Members, client_of
from kappamq.broker.router import Answer, Handler
from kappamq.broker.topics import Topics
from kappamq.errors import GroupNotFound, InvalidName, Refused
from kappamq.model.names import check_group, retry_topic
from kappamq.model.selector import Selector
from kappamq.model.subscription import ConsumerMembership
from kappamq.net.connection import Connection
from kappamq.wire.bodies import (
    decode_heartbeat,
    decode_object,
    decode_queue_set,
    decode_subscription,
    encode_consumer_ids,
    encode_locked_queues,
)
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from kappamq.wire.headers import ConsumerListRequest, UnregisterClientRequest, decode_fields


class ClientHandlers:
    """Requests 34, 35, 38, 41, 42 and 46."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        members: Members,
        locks: QueueLocks,
        locks_file: ConfigFile,
        sql_filter: bool,
        wait_told: Callable[[], Awaitable[object]],
    ) -> None:
        """`wait_told` returns when the name servers know the topics, or cannot be reached for a while."""
        self._topics = topics
        self._groups = groups
        self._members = members
        self._locks = locks
        self._locks_file = locks_file
        self._wait_told = wait_told
        self.sql_filter = sql_filter
        """Whether SQL92 filters are evaluated."""

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heartbeat(self, connection: Connection, request: Command) -> "Answer | Coroutine[None, None, Answer]":
        """Note the groups of a client; the first heartbeat of a group is answered when its retry topic can be found."""
        topics_before = self._topics.version
        heartbeat = decode_heartbeat(request.body)
        client = client_of(connection, heartbeat.client_id, request.language, request.version)
        fields: dict[str, str] = {}
        for membership in heartbeat.consumers:
            if self._admit(membership):
                self._members.join_consumer(membership, client, connection, keep=heartbeat.without_subscriptions)
        for group in heartbeat.producer_groups:
            check_group(group)
            self._members.join_producer(group, client, connection)
        if heartbeat.fingerprint:
            fields = {
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": self._sees_change(heartbeat.consumers, heartbeat.fingerprint),
            }
        reply = request.reply(fields=fields)
        return reply if self._topics.version == topics_before else self._after_telling(reply)

    async def _after_telling(self, reply: Command) -> Answer:
        await self._wait_told()
        return reply

    def _admit(self, membership: ConsumerMembership) -> bool:
        """Make sure that a group and its retry topic exist; whether the group may be here."""
        try:
            group = self._groups.get_or_create(membership.group)
        except (GroupNotFound, InvalidName):
            return False  # RocketMQ: a group that may not be created is passed over in silence.
        self._topics.ensure(retry_topic(membership.group), max(group.retry_queue_nums, 1))
        return True

    def _sees_change(self, consumers: tuple[ConsumerMembership, ...], fingerprint: int) -> str:
        has_changed = False
        for membership in consumers:
            group = self._members.consumer_group(membership.group)
            if group is not None:
                has_changed |= group.fingerprint not in (0, fingerprint)
                group.fingerprint = fingerprint
        return "true" if has_changed else "false"

    def unregister(self, connection: Connection, request: Command) -> Command:
        goodbye = decode_fields(request.fields, UnregisterClientRequest)
        self._members.leave(connection, producer_group=goodbye.producer_group, consumer_group=goodbye.consumer_group)
        return request.reply()

    def consumer_list(self, _: Connection, request: Command) -> Command:
        group = decode_fields(request.fields, ConsumerListRequest).consumer_group
        ids = self._members.consumer_ids(group)
        if not ids:
            raise Refused(f"no consumer for this group, {group}: start one, or check the name", code=1)
        return request.reply(body=encode_consumer_ids(ids))

    def lock(self, _: Connection, request: Command) -> "Answer | Coroutine[None, None, Answer]":
        group, client_id, queues = decode_queue_set(request.body)
        reply = request.reply(body=encode_locked_queues(self._locks.lock(group, client_id, queues)))
        return reply if self._locks.is_saved else self._after_saving(reply)

    async def _after_saving(self, reply: Command) -> Answer:
        """An owner that a crash would forget is none."""
        version = self._locks.version
        await self._locks_file.save()
        self._locks.mark_saved(version)
        return reply

    def unlock(self, _: Connection, request: Command) -> Command:
        group, client_id, queues = decode_queue_set(request.body)
        self._locks.unlock(group, client_id, queues)
        self._locks_file.changed()
        return request.reply()

    def check_config(self, _: Connection, request: Command) -> Command:
        """Tell a starting client whether its filter can be understood."""
        value = decode_object(request.body).get("subscriptionData")
        if isinstance(value, dict):
            subscription = decode_subscription(value)
            if subscription.expression_type not in ("", "TAG"):
                if not self.sql_filter:
                    raise Refused(
                        f"The broker does not support consumer to filter message by {subscription.expression_type}",
                        code=1,
                    )
                Selector.parse(subscription.sub_string, subscription.expression_type)
        return request.reply()

"""Administration of topics: create, change, delete, show what they hold."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from kappamq.broker.attributes import TOPIC_ATTRIBUTES, alter_attributes, parse_attributes
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.members import Members
from kappamq.broker.router import Handler
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.errors import Refused, TopicNotFound
from kappamq.model.config import TopicConfig
from kappamq.model.message import Queue
from kappamq.model.names import check_topic
from kappamq.model.selector import Selector
from kappamq.model.subscription import Subscription
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.admin_bodies import (
    EntryView,
    QueueBounds,
    decode_topic_list_to_create,
    encode_queue_entries,
    encode_topic_stats,
    encode_topic_table,
)
from kappamq.wire.bodies import encode_object, encode_topic_list
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    CreateTopicRequest,
    DeleteTopicRequest,
    QueryQueueRequest,
    TopicConfigRequest,
    TopicStatsRequest,
    decode_fields,
)

ENTRIES_MAX: Final = 1000
"""Most entries of a queue that one request shows."""


class TopicAdminHandlers:
    """Requests 17, 18, 21, 202, 215, 305, 316, 321 and 351."""

    def __init__(
        self,
        *,
        broker: str,
        topics: Topics,
        offsets: CommittedOffsets,
        members: Members,
        statistics: Statistics,
        store: Store,
        settled: Callable[[], Awaitable[object]],
        checkpointing: asyncio.Lock,
    ) -> None:
        """`settled` returns when topics are on disk, and name servers know them or cannot be reached for a while."""
        self._broker = broker
        self._topics = topics
        self._offsets = offsets
        self._members = members
        self._statistics = statistics
        self._store = store
        self._settled = settled
        self._checkpointing = checkpointing

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.put_list,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.list,
            RequestCode.GET_TOPIC_STATS_INFO: self.bounds,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.QUERY_CONSUME_QUEUE: self.entries,
            RequestCode.GET_TOPIC_CONFIG: self.config,
        }

    # ── Changing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, _: Connection, request: Command) -> Command:
        """Create or change a topic; clients find it at the name servers when this is answered."""
        wanted = decode_fields(request.fields, CreateTopicRequest)
        self._put(
            TopicConfig(
                topic_name=wanted.topic,
                read_queue_nums=wanted.read_queue_nums,
                write_queue_nums=wanted.write_queue_nums,
                perm=wanted.perm,
                topic_filter_type=wanted.topic_filter_type,
                topic_sys_flag=wanted.topic_sys_flag,
                order=wanted.order,
                attributes=parse_attributes(wanted.attributes),
            )
        )
        await self._settled()
        return request.reply()

    async def put_list(self, _: Connection, request: Command) -> Command:
        for topic in decode_topic_list_to_create(request.body):
            self._put(topic)
        await self._settled()
        return request.reply()

    def _put(self, wanted: TopicConfig) -> None:
        """Store a topic whose attributes are changes; those without a sign are added."""
        known = self._topics.find(wanted.topic_name)
        changes = {key if key[:1] in ("+", "-") else f"+{key}": value for key, value in wanted.attributes.items()}
        attributes = alter_attributes(known.attributes if known is not None else None, changes, known=TOPIC_ATTRIBUTES)
        self._topics.put(msgspec.structs.replace(wanted, attributes=attributes))

    async def delete(self, _: Connection, request: Command) -> Command:
        """Forget a topic, its queues, the progress of groups in it and its figures. Unknown topics are no error.

        The name servers hear of it before the answer: a tool then removes the route there, and no registration that
        still names the topic may come after that.
        """
        name = decode_fields(request.fields, DeleteTopicRequest).topic
        check_topic(name)  # It becomes a path: unknown topics are deleted, too.
        self._topics.remove(name)
        await self._forget(name)
        await self._settled()
        return request.reply()

    async def clean_unused(self, _: Connection, request: Command) -> Command:
        """Delete the queues of topics that are no longer in the table."""
        for name in {topic for topic, _ in self._store.queues() if self._topics.find(topic) is None}:
            await self._forget(name)
        return request.reply()

    async def _forget(self, name: str) -> None:
        self._offsets.forget_topic(name)
        self._statistics.forget(name)
        async with self._checkpointing:
            if self._topics.find(name) is None:  # A send may have made it again while we waited.
                self._store.delete_topic(name)

    # ── Showing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def list(self, _: Connection, request: Command) -> Command:
        topics = self._topics.table()
        return request.reply(
            fields={"totalTopicNum": str(len(topics))}, body=encode_topic_table(topics, self._topics.version)
        )

    def config(self, _: Connection, request: Command) -> Command:
        name = decode_fields(request.fields, TopicConfigRequest).topic
        topic = self._topics.find(name)
        if topic is None:
            raise TopicNotFound(f"No topic in this broker. topic: {name}")
        return request.reply(body=encode_object(topic))

    def system_topics(self, _: Connection, request: Command) -> Command:
        return request.reply(body=encode_topic_list(self._topics.system_names()))

    def bounds(self, _: Connection, request: Command) -> Command:
        """Offsets of every queue; also of those that never had a message: tools take an empty table as no topic."""
        name = decode_fields(request.fields, TopicStatsRequest).topic
        topic = self._topics.find(name)
        if topic is None:
            raise TopicNotFound(f"topic[{name}] not exist")
        table = {}
        for queue_id in range(topic.queue_count):
            end = self._store.max_offset(name, queue_id)
            start = max(self._store.min_offset(name, queue_id), 0)
            updated = self._store.stored_at(name, queue_id, end - 1) if end > start else 0
            table[Queue(name, self._broker, queue_id)] = QueueBounds(
                last_update_timestamp=max(updated, 0), max_offset=end, min_offset=start
            )
        return request.reply(body=encode_topic_stats(table, put_tps=self._statistics.tps("TOPIC_PUT_NUMS", name)))

    def entries(self, _: Connection, request: Command) -> Command:
        """Entries of one queue, and which of them a group's tags would take."""
        query = decode_fields(request.fields, QueryQueueRequest)
        if not self._store.has_queue(query.topic, query.queue_id):
            raise Refused(f"{query.queue_id}@{query.topic} is not exist!", code=ResponseCode.SYSTEM_ERROR)
        subscription, filter_text = self._subscription(query)
        selector = (
            None if subscription is None else Selector.parse(subscription.sub_string, subscription.expression_type)
        )
        count = min(max(query.count, 1), ENTRIES_MAX)
        # RocketMQ: past the end there is no body, on which its own tool fails; ours has bounds and no entries.
        found = self._store.entries(query.topic, query.queue_id, query.index, count)
        views = [
            EntryView(
                physic_offset=entry.log_offset,
                physic_size=entry.size,
                tags_code=entry.tags_code,
                eval=selector is not None and selector.matches_tag_code(entry.tags_code),
            )
            for entry in found
        ]
        bounds = (
            self._store.min_offset(query.topic, query.queue_id),
            self._store.max_offset(query.topic, query.queue_id),
        )
        return request.reply(
            body=encode_queue_entries(views, bounds=bounds, subscription=subscription, filter_text=filter_text)
        )

    def _subscription(self, query: QueryQueueRequest) -> tuple[Subscription | None, str | None]:
        if not query.consumer_group:
            return None, None
        online = self._members.consumer_group(query.consumer_group)
        subscription = None if online is None else online.subscriptions.get(query.topic)
        if subscription is None:
            return None, f"{query.consumer_group}@{query.topic} is not online!"
        return subscription, "null"

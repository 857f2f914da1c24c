"""How far consumer groups are: lag, time spans, who reads what."""

from collections.abc import Mapping
from typing import Final

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.members import Members
from kappamq.broker.router import Handler
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import TopicNotFound
from kappamq.model.config import TopicConfig
from kappamq.model.message import Queue
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.admin_bodies import (
    ConsumeStats,
    QueueProgress,
    QueueTimes,
    encode_broker_consume_stats,
    encode_consume_stats,
    encode_consume_times,
    encode_correction_offsets,
    encode_group_names,
    encode_subscription,
)
from kappamq.wire.bodies import encode_topic_list
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    ConsumeStatsRequest,
    ConsumeTimeSpanRequest,
    CorrectionOffsetRequest,
    SubscriptionRequest,
    TopicConsumersRequest,
    TopicsOfGroupRequest,
    decode_fields,
)

_NEVER: Final = 2**63 - 1
_TOPIC_SEPARATOR: Final = ";"


class ProgressHandlers:
    """Requests 208, 300, 303, 308, 317, 343 and 345."""

    def __init__(
        self,
        *,
        broker: str,
        address: str,
        topics: Topics,
        groups: Groups,
        offsets: CommittedOffsets,
        members: Members,
        statistics: Statistics,
        store: Store,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._address = address
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._statistics = statistics
        self._store = store
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.group_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.times,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_stats,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    def group_stats(self, _: Connection, request: Command) -> Command:
        """Lag of a group: in one topic, in a list of them, or in all that it has progress in and still consumes."""
        query = decode_fields(request.fields, ConsumeStatsRequest)
        group = query.consumer_group
        if query.topic_list:
            names = [name for name in query.topic_list.split(_TOPIC_SEPARATOR) if name]
        else:
            names = [query.topic] if query.topic else self._offsets.topics_of(group)
        progress: dict[Queue, QueueProgress] = {}
        tps = 0.0
        for name in names:
            topic = self._topics.find(name)
            if topic is not None and self._members.is_subscribed(group, name):
                progress |= self._progress(topic, group, topic.read_queue_nums)
                tps += self._tps(name, group)
        return request.reply(body=encode_consume_stats(ConsumeStats(progress=progress, tps=tps)))

    def broker_stats(self, _: Connection, request: Command) -> Command:
        """Lag of every group in every topic; with `isOrder` in ordered topics only."""
        only_ordered = request.fields.get("isOrder", "").lower() == "true"
        result: dict[str, list[ConsumeStats]] = {}
        topics_of: dict[str, list[str]] = {group: [] for group in self._groups.table()}
        for name, group, _offsets in self._offsets.items():
            if group in topics_of:
                topics_of[group].append(name)
        for group, names in topics_of.items():
            result[group] = []
            for name in names:
                topic = self._topics.find(name)
                if topic is None or (only_ordered and not topic.order) or not self._members.is_subscribed(group, name):
                    continue
                progress = self._progress(topic, group, topic.write_queue_nums)
                result[group].append(ConsumeStats(progress=progress, tps=self._tps(name, group)))
        return request.reply(body=encode_broker_consume_stats(result, broker_address=self._address))

    def _progress(self, topic: TopicConfig, group: str, queues: int) -> dict[Queue, QueueProgress]:
        name = topic.topic_name
        table = {}
        for queue_id in range(queues):
            committed = max(self._offsets.find(name, group, queue_id) or 0, 0)
            consumed_at = self._store.stored_at(name, queue_id, committed - 1) if committed > 0 else 0
            table[Queue(name, self._broker, queue_id)] = QueueProgress(
                broker_offset=max(self._store.max_offset(name, queue_id), 0),
                consumer_offset=committed,
                last_timestamp=max(consumed_at, 0),
                pull_offset=max(self._offsets.pulled_to(name, group, queue_id), committed),
            )
        return table

    def _tps(self, topic: str, group: str) -> float:
        return self._statistics.tps("GROUP_GET_NUMS", f"{topic}@{group}")

    def times(self, _: Connection, request: Command) -> Command:
        """Store times between which a group has consumed, and how old its next message is."""
        query = decode_fields(request.fields, ConsumeTimeSpanRequest)
        topic = self._topics.find(query.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{query.topic}] not exist")
        spans = {
            Queue(query.topic, self._broker, queue_id): self._queue_times(query.topic, query.group, queue_id)
            for queue_id in range(topic.write_queue_nums)
        }
        return request.reply(body=encode_consume_times(spans))

    def _queue_times(self, topic: str, group: str, queue_id: int) -> QueueTimes:
        store = self._store
        end = store.max_offset(topic, queue_id)
        committed = self._offsets.find(topic, group, queue_id) or 0
        oldest = store.stored_at(topic, queue_id, max(store.min_offset(topic, queue_id), 0))
        next_at = store.stored_at(topic, queue_id, committed) if committed < end else -1
        return QueueTimes(
            min_time_stamp=oldest,
            max_time_stamp=store.stored_at(topic, queue_id, end - 1),
            consume_time_stamp=store.stored_at(topic, queue_id, committed - 1) if committed > 0 else oldest,
            delay_time=max(self._clock.now_ms() - next_at, 0) if next_at > 0 else 0,
        )

    def groups_of_topic(self, _: Connection, request: Command) -> Command:
        """Groups that read a topic now, or have progress in it."""
        name = decode_fields(request.fields, TopicConsumersRequest).topic
        online = [group.name for group in self._members.consumer_groups() if name in group.subscriptions]
        return request.reply(body=encode_group_names(dict.fromkeys(online + self._offsets.groups_of(name))))

    def topics_of_group(self, _: Connection, request: Command) -> Command:
        group = decode_fields(request.fields, TopicsOfGroupRequest).group
        return request.reply(body=encode_topic_list(self._offsets.topics_of(group), broker_address=self._address))

    def subscription(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, SubscriptionRequest)
        online = self._members.consumer_group(query.group)
        found = None if online is None else online.subscriptions.get(query.topic)
        return request.reply(body=encode_subscription(query.group, query.topic, found))

    def correction(self, _: Connection, request: Command) -> Command:
        """Smallest offset that any group has in each queue, for groups that must not run ahead of the others.

        A queue in which every group is ahead of `compareGroup` gets the largest number there is.
        """
        query = decode_fields(request.fields, CorrectionOffsetRequest)
        left_out = set((query.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in self._offsets.groups_of(query.topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.of(query.topic, group).items():
                if offset >= self._store.min_offset(query.topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        for queue_id, compared in self._offsets.of(query.topic, query.compare_group).items():
            if smallest.get(queue_id, _NEVER) > compared:
                smallest[queue_id] = _NEVER
        return request.reply(body=encode_correction_offsets(smallest))

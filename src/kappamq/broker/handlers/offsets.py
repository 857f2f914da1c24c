"""Offsets: the progress of groups, the bounds of queues, the place of a time."""

from collections.abc import Mapping

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.router import Handler
from kappamq.broker.topics import Topics
from kappamq.errors import GroupNotFound, NotFound, Refused
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    EarliestTimeRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetReply,
    QueryOffsetRequest,
    SearchOffsetRequest,
    TimestampReply,
    UpdateOffsetRequest,
    decode_fields,
    encode_fields,
)


class OffsetHandlers:
    """Requests 14, 15, 29, 30, 31 and 32."""

    def __init__(
        self, *, topics: Topics, groups: Groups, offsets: CommittedOffsets, store: Store, hot_bytes: int
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._store = store
        self._hot_bytes = hot_bytes

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, _: Connection, request: Command) -> Command:
        """Committed offset. A new group starts at 0 where message 0 is still near, wherever it asked to start."""
        query = decode_fields(request.fields, QueryOffsetRequest)
        offset = self._offsets.find(query.topic, query.group, query.queue_id)
        if offset is None and query.zero_if_missing is not False and self._starts_at_zero(query.topic, query.queue_id):
            # RocketMQ: a young queue is read from its first message. An empty one counts as young (4.9's rule): the
            # newer rule lets a message that arrives before the consumer's next step be missed.
            offset = 0
        if offset is None:
            raise NotFound("Not found, maybe this group consumer boot first", code=ResponseCode.QUERY_NOT_FOUND)
        return _offset_reply(request, offset)

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        entries = self._store.entries(topic, queue_id, 0, 1)
        return not entries or self._store.max_log_offset - entries[0].log_offset <= self._hot_bytes

    def update(self, _: Connection, request: Command) -> Command:
        update = decode_fields(request.fields, UpdateOffsetRequest)
        if self._groups.find(update.group) is None:
            raise GroupNotFound(f"Group {update.group} not exist!")
        topic = self._topics.get(update.topic)
        if update.queue_id < 0 or update.queue_id >= topic.queue_count or update.committed_offset < 0:
            raise Refused(
                f"queue {update.queue_id} and offset {update.committed_offset} of topic {update.topic} are not valid: "
                f"queues go from 0 to {topic.queue_count - 1}, offsets from 0",
                code=ResponseCode.INVALID_PARAMETER,
            )
        self._offsets.commit(update.topic, update.group, update.queue_id, update.committed_offset)
        return request.reply()

    def max_offset(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, MaxOffsetRequest)
        return _offset_reply(request, max(self._store.max_offset(query.topic, query.queue_id), 0))

    def min_offset(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, MinOffsetRequest)
        return _offset_reply(request, max(self._store.min_offset(query.topic, query.queue_id), 0))

    def search(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, SearchOffsetRequest)
        is_upper = (query.boundary_type or "").upper() == "UPPER"
        offset = self._store.offset_at(query.topic, query.queue_id, query.timestamp, "UPPER" if is_upper else "LOWER")
        return _offset_reply(request, offset)

    def earliest(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, EarliestTimeRequest)
        first = max(self._store.min_offset(query.topic, query.queue_id), 0)
        timestamp = self._store.stored_at(query.topic, query.queue_id, first)
        return request.reply(fields=encode_fields(TimestampReply(timestamp=timestamp)))


def _offset_reply(request: Command, offset: int) -> Command:
    return request.reply(fields=encode_fields(OffsetReply(offset=offset)))

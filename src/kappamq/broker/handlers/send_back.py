"""Taking back messages that a group could not consume."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kappamq.broker.appender import Appender
from kappamq.broker.dead_letters import (
    DEAD_LETTER_QUEUES,
    RETRY_MAX_VERSION,
    Failure,
    is_dead,
    retry_record,
    unknown_cause,
)
from kappamq.broker.groups import Groups
from kappamq.broker.placing import PlacingRules, place
from kappamq.broker.router import Handler
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import NotPermitted, Refused, StorageError
from kappamq.model.config import GroupConfig, Permission
from kappamq.model.message import StoredMessage
from kappamq.model.names import dead_letter_topic, retry_topic
from kappamq.model.record import decode_record
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import SendBackRequest, decode_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackRules:
    """The broker's address and permission, and how it places delayed messages."""

    store_host: bytes
    permission: int
    placing: PlacingRules


class SendBackHandlers:
    """Request 36."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        store: Store,
        appender: Appender,
        statistics: Statistics,
        rules: SendBackRules,
        clock: Clock,
        wait_told: Callable[[], Awaitable[object]],
    ) -> None:
        """`wait_told` returns when the name servers know the topics, or cannot be reached for a while."""
        self._topics = topics
        self._groups = groups
        self._store = store
        self._appender = appender
        self._statistics = statistics
        self._rules = rules
        self._clock = clock
        self._wait_told = wait_told

    def use(self, rules: SendBackRules) -> None:
        """Follow these rules from now on."""
        self._rules = rules

    def table(self) -> Mapping[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, connection: Connection, request: Command) -> Command:
        """Store the message again for its group, later, or among the dead letters; durable on reply.

        A topic that is made for it can be found at the name servers by then, too.
        """
        back = decode_fields(request.fields, SendBackRequest)
        group = self._groups.get_or_create(back.group)
        if not self._rules.permission & Permission.WRITE:
            raise NotPermitted("the broker sending message is forbidden: it is not writable")
        if group.retry_queue_nums <= 0:
            return request.reply()
        message = await self._read(back.log_offset)
        failure = Failure(
            group=back.group,
            delay_level=back.delay_level,
            retry_count_max=_retry_count_max(back, request.version, group),
            cause=back.cause or unknown_cause(connection.peer),
        )
        topics_before = self._topics.version
        self._check_target(failure, group, is_dead=is_dead(message.retry_count, failure))
        is_new_topic = self._topics.version != topics_before
        queue_id = random.randrange(group.retry_queue_nums)
        record = retry_record(message, failure, queue_id=queue_id, store_host=self._rules.store_host)
        placed = place(record, record.properties.decode(), rules=self._rules.placing, now_ms=self._clock.now_ms())
        [stored] = await self._appender.store([placed])
        self._statistics.stored(record.topic, 1, stored.size)
        self._statistics.add("SNDBCK_PUT_NUMS", f"{back.origin_topic or message.topic}@{back.group}", 1)
        if is_new_topic:
            await self._wait_told()
        return request.reply()

    async def _read(self, log_offset: int) -> StoredMessage:
        try:
            return decode_record(await asyncio.to_thread(self._store.read, log_offset))
        except StorageError as fault:
            raise Refused(
                f"look message by offset failed, {log_offset}: {fault}", code=ResponseCode.SYSTEM_ERROR
            ) from None

    def _check_target(self, failure: Failure, group: GroupConfig, *, is_dead: bool) -> None:
        """Make sure that the topic exists and may be written."""
        if is_dead:
            topic = self._topics.ensure(dead_letter_topic(failure.group), DEAD_LETTER_QUEUES)
        else:
            topic = self._topics.ensure(retry_topic(failure.group), group.retry_queue_nums)
        if not topic.perm & Permission.WRITE:
            raise NotPermitted(f"the topic[{topic.topic_name}] sending message is forbidden: it is not writable")


def _retry_count_max(back: SendBackRequest, version: int, group: GroupConfig) -> int:
    if back.retry_count_max is not None and version >= RETRY_MAX_VERSION:
        return back.retry_count_max
    return group.retry_max_times

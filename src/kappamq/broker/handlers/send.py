"""Storing messages: single sends and batches, with short or long header names."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kappamq.broker.appender import Appender
from kappamq.broker.dead_letters import (
    DEAD_LETTER_QUEUES,
    RETRY_MAX_VERSION,
    dead_letter_properties,
    unknown_cause,
)
from kappamq.broker.groups import Groups
from kappamq.broker.locks import QueueLocks
from kappamq.broker.placing import PlacingRules, as_half, is_half, place
from kappamq.broker.recalls import recall_handle
from kappamq.broker.router import Handler
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import InvalidMessage, KappaError, NotPermitted, Refused
from kappamq.kernel import take_unique_id
from kappamq.model.config import Permission, TopicConfig
from kappamq.model.ids import offset_id
from kappamq.model.message import TRANSACTION_MASK
from kappamq.model.names import (
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    TOPIC_CHARACTERS_MAX,
    WRITE_PROTECTED_TOPICS,
    dead_letter_topic,
    is_retry_topic,
)
from kappamq.model.properties import (
    PROPERTIES_BYTES_MAX,
    Name,
    decode_properties,
    encode_properties,
    property_of,
)
from kappamq.model.record import NewRecord
from kappamq.net.connection import Connection
from kappamq.store.store import Appended
from kappamq.wire.batch import decode_batch
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import code_of
from kappamq.wire.headers import SendRequest, SendRequestV1, decode_fields

Work = Coroutine[None, None, Command]
_NOT_WAITING: Final = "WAIT\x01false"
_WRITE: Final = int(Permission.WRITE)  # Plain numbers: flag enums are slow on the hot path.


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRules:
    """What a broker stamps on messages and how large they may be."""

    store_host: bytes
    broker: str
    cluster: str
    region: str
    trace_on: bool
    message_bytes_max: int
    permission: int
    placing: PlacingRules
    reject_transactions: bool

    @property
    def trace_text(self) -> str:
        return "true" if self.trace_on else "false"

    @property
    def stamp(self) -> str:
        """Properties that every stored message gets."""
        return encode_properties({Name.REGION: self.region, Name.TRACE_ON: self.trace_text, Name.CLUSTER: self.cluster})

    def reply_fields(
        self, *, offset_ids: str, queue_id: str, queue_offset: str, unique_id: str | None
    ) -> dict[str, str]:
        """What a sender is told."""
        fields = {
            "msgId": offset_ids,
            "queueId": queue_id,
            "queueOffset": queue_offset,
            "MSG_REGION": self.region,
            "TRACE_ON": self.trace_text,
        }
        if unique_id is not None:
            fields["transactionId"] = unique_id
        return fields


class SendHandlers:
    """Requests 10, 310 and 320."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        appender: Appender,
        statistics: Statistics,
        rules: SendRules,
        clock: Clock,
        check_transactions: Callable[[], None],
        wait_told: Callable[[], Awaitable[object]],
        unique_ids: bytearray,
    ) -> None:
        """`check_transactions` raises when no further half message can be taken; `wait_told` returns when the name
        servers know the topics, or cannot be reached for a while. Messages without a unique id get the next of
        `unique_ids` (`kernel.take_unique_id`)."""
        self._unique_ids = unique_ids
        self._check_transactions = check_transactions
        self._wait_told = wait_told
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._clock = clock
        self._appender = appender
        self._statistics = statistics
        self.use(rules)

    def use(self, rules: SendRules) -> None:
        """Follow these rules from now on."""
        self._rules = rules
        self._stamp = rules.stamp

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send_v1,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send_v1(self, connection: Connection, request: Command) -> Work | None:
        return self._take(connection, request, decode_fields(request.fields, SendRequestV1))

    def send_v2(self, connection: Connection, request: Command) -> Work | None:
        return self._take(connection, request, decode_fields(request.fields, SendRequest))

    def _take(self, connection: Connection, request: Command, send: SendRequest | SendRequestV1) -> Work | None:
        is_known = self._topics.find(send.topic) is not None
        if is_known or request.is_one_way:
            self._send(connection, request, send, reply=connection.reply)
            return None
        stored: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._send(connection, request, send, reply=stored.set_result)
        return self._answer_first(stored)

    async def _answer_first(self, stored: asyncio.Future[Command]) -> Command:
        """The first message of a topic: its sender finds the topic at the name servers when this is answered."""
        answer = await stored
        await self._wait_told()
        return answer

    def _send(
        self,
        connection: Connection,
        request: Command,
        send: SendRequest | SendRequestV1,
        *,
        reply: Callable[[Command], None],
    ) -> None:
        topic = self._check_target(send)
        if is_retry_topic(send.topic) and not send.batch and self._is_exhausted(request, send):
            send = msgspec.structs.replace(
                send,
                topic=dead_letter_topic(send.topic.removeprefix(RETRY_PREFIX)),
                queue_id=0,
                properties=dead_letter_properties(send.properties, cause=unknown_cause(connection.peer)),
            )
            topic = self._topics.ensure(send.topic, DEAD_LETTER_QUEUES)
        queue_id = send.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(topic.write_queue_nums, 1))
        records = (
            self._batch(connection, request, send, queue_id)
            if send.batch
            else [self._single(connection, request, send, queue_id)]
        )
        handle = None
        is_half_message = False
        if send.batch:
            # RocketMQ: a batch has a unique id of its own, which is not stored; without one there is none to tell.
            unique_id = property_of(send.properties, Name.UNIQUE_ID)
        else:
            text = records[0].properties.decode()
            unique_id = property_of(text, Name.UNIQUE_ID)
            is_half_message = records[0].topic == HALF_TOPIC
            if records[0].topic == TIMER_TOPIC:
                handle = recall_handle(send.topic, self._rules.broker, text)

        def done(outcome: list[Appended] | KappaError, is_late: bool) -> None:
            if isinstance(outcome, KappaError):
                self._statistics.put_failed += 1
                if not request.is_one_way:
                    reply(request.reply(code_of(outcome), str(outcome)))
                return
            self._statistics.stored(send.topic, len(outcome), sum(place.size for place in outcome))
            if not request.is_one_way:
                code = ResponseCode.FLUSH_DISK_TIMEOUT if is_late else ResponseCode.SUCCESS
                fields = self._reply_fields(queue_id, unique_id, outcome)
                if handle is not None:
                    fields["recallHandle"] = handle
                reply(request.reply(code, fields=fields))

        # A half message must be visible to the broker before its producer can decide: it always waits.
        wait = is_half_message or not _asks_not_to_wait(send.properties)
        self._appender.submit(records, done, atomic=send.batch, wait=wait)

    def _is_exhausted(self, request: Command, send: SendRequest | SendRequestV1) -> bool:
        """Whether a message that a client sends back by itself has no retry left."""
        group = send.topic.removeprefix(RETRY_PREFIX)
        most = self._groups.get(group).retry_max_times
        if send.retry_count_max is not None and request.version >= RETRY_MAX_VERSION:
            most = send.retry_count_max
        # RocketMQ: an ordered consumer retries by itself and sends back only what it gives up.
        return send.retry_count > most or self._locks.is_held(group)

    def _reply_fields(self, queue_id: int, unique_id: str | None, places: list[Appended]) -> dict[str, str]:
        host = self._rules.store_host
        return self._rules.reply_fields(
            offset_ids=",".join([offset_id(host, place.log_offset) for place in places]),
            queue_id=str(queue_id),
            queue_offset=str(places[0].queue_offset),
            unique_id=unique_id,
        )

    def _check_target(self, send: SendRequest | SendRequestV1) -> TopicConfig:
        """The topic of a send, which must exist (or be made) and be writable."""
        if send.topic in WRITE_PROTECTED_TOPICS:
            raise NotPermitted(f"the topic[{send.topic}] is reserved for the broker: send to a topic of your own")
        is_retry = is_retry_topic(send.topic)
        if is_retry:
            self._groups.get_or_create(send.topic.removeprefix(RETRY_PREFIX))
        topic = self._topics.for_send(
            send.topic, template=send.default_topic, queues=1 if is_retry else send.default_topic_queues
        )
        if not (self._rules.permission & _WRITE and topic.perm & _WRITE):
            raise NotPermitted(
                f"the broker or its topic[{send.topic}] sending message is forbidden: it is not writable"
            )
        if send.queue_id >= topic.queue_count:
            raise Refused(
                f"request queueId[{send.queue_id}] is illegal, topic[{send.topic}] has {topic.queue_count} queues: "
                "refresh the route",
                code=ResponseCode.INVALID_PARAMETER,
            )
        return topic

    def _single(
        self, connection: Connection, request: Command, send: SendRequest | SendRequestV1, queue_id: int
    ) -> NewRecord:
        if not request.body:
            raise InvalidMessage("the message body is empty: send at least one byte")
        if len(request.body) > self._rules.message_bytes_max:
            raise InvalidMessage(
                f"the message body has {len(request.body)} bytes, the maximum is {self._rules.message_bytes_max}"
            )
        text = self._stamped(send.properties)
        properties = text.encode()
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise InvalidMessage(
                f"the properties take {len(properties)} bytes, the maximum is {PROPERTIES_BYTES_MAX}: send fewer"
            )
        record = NewRecord(
            send.topic,
            queue_id,
            request.body,
            properties,
            send.born_at_ms,
            connection.peer_host,
            self._rules.store_host,
            send.flag,
            send.flags & ~TRANSACTION_MASK,
            send.retry_count,
        )
        if Name.TRANSACTION in text and is_half(text, send.retry_count):
            if self._rules.reject_transactions:
                raise NotPermitted("this broker takes no transactional messages: send to another one")
            self._check_transactions()
            # A delay that nobody could honour is refused while the producer listens: a commit goes one way.
            place(record, text, rules=self._rules.placing, now_ms=self._clock.now_ms())
            return as_half(record, text)
        return place(record, text, rules=self._rules.placing, now_ms=self._clock.now_ms())

    def _stamped(self, text: str) -> str:
        """Properties with the broker's own: region, trace switch, cluster, and a unique id where there is none."""
        if Name.REGION in text or Name.CLUSTER in text or Name.RECORD_CRC in text or Name.POP_CHECKPOINT in text:
            properties = decode_properties(text)
            for name in (Name.RECORD_CRC, Name.POP_CHECKPOINT):
                properties.pop(name, None)
            properties |= {
                Name.REGION: self._rules.region,
                Name.TRACE_ON: self._rules.trace_text,
                Name.CLUSTER: self._rules.cluster,
            }
            text = encode_properties(properties)
        elif text and not text.endswith("\x02"):
            text = f"{text}\x02{self._stamp}"
        else:
            text = text + self._stamp
        if Name.UNIQUE_ID not in text:
            text = f"{text}{Name.UNIQUE_ID}\x01{take_unique_id(self._unique_ids)}\x02"
        return text

    def _batch(
        self, connection: Connection, request: Command, send: SendRequest | SendRequestV1, queue_id: int
    ) -> list[NewRecord]:
        if len(send.topic) > TOPIC_CHARACTERS_MAX or is_retry_topic(send.topic):
            raise InvalidMessage(f"batch request does not support topic {send.topic[:40]!r}: send one by one")
        if len(request.body) > self._rules.message_bytes_max:
            raise InvalidMessage(
                f"the batch has {len(request.body)} bytes, the maximum is {self._rules.message_bytes_max}: split it"
            )
        if send.flags & TRANSACTION_MASK:
            raise InvalidMessage("a batch cannot be transactional: send one by one")
        records = []
        for item in decode_batch(request.body):
            if not item.body:
                raise InvalidMessage("a message of the batch has an empty body: send at least one byte")
            try:
                text = item.properties.decode()
            except UnicodeDecodeError:
                raise InvalidMessage("the properties of a batch item are not UTF-8: encode them as UTF-8") from None
            if property_of(text, Name.DELAY) is not None:
                raise InvalidMessage("a batch cannot be delayed: send delayed messages one by one")
            records.append(
                NewRecord(
                    send.topic,
                    queue_id,
                    item.body,
                    item.properties,
                    send.born_at_ms,
                    connection.peer_host,
                    self._rules.store_host,
                    item.flag,
                    send.flags,
                    send.retry_count,
                )
            )
        return records


def _asks_not_to_wait(text: str) -> bool:
    """Whether a producer wants its answer before the disk has the message; a user's NOWAIT=false does not say so."""
    return _NOT_WAITING in text and property_of(text, Name.WAIT) == "false"

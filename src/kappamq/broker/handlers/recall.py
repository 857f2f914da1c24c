"""Taking back messages whose instant has not come."""

from collections.abc import Mapping
from dataclasses import dataclass

from kappamq.broker.appender import Appender
from kappamq.broker.placing import PlacingRules, place
from kappamq.broker.router import Handler
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import NotPermitted, Refused, UsageError
from kappamq.model.properties import Name, encode_properties
from kappamq.model.recalls import RecallHandle
from kappamq.model.record import NewRecord
from kappamq.net.connection import Connection
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import RecallRequest, decode_fields

_BODY = b"0"
_TAG = "_RECALL_TAG_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRules:
    """Whether recalls are served, and as which broker."""

    enabled: bool
    broker: str
    store_host: bytes
    placing: PlacingRules


class RecallHandlers:
    """Request 370."""

    def __init__(self, *, topics: Topics, appender: Appender, rules: RecallRules, clock: Clock) -> None:
        self._topics = topics
        self._appender = appender
        self._rules = rules
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, connection: Connection, request: Command) -> Command:
        """Store a mark that cancels the message with its tick; the reply says that the mark is durable."""
        recall = decode_fields(request.fields, RecallRequest)
        if not self._rules.enabled:
            raise NotPermitted("recall is switched off on this broker: set recall_enabled=true")
        self._topics.get(recall.topic)
        handle = self._handle_of(recall)
        now_ms = self._clock.now_ms()
        left_ms = handle.deliver_at_ms - now_ms
        if left_ms <= 0 or left_ms > self._rules.placing.timer_max_delay_seconds * 1000:
            raise _illegal("recall failed, timestamp invalid: the time of the message is over, or too far away")
        text = encode_properties(
            {
                Name.TAGS: _TAG,
                Name.UNIQUE_ID: handle.unique_id,
                Name.PRODUCER_GROUP: recall.producer_group,
                Name.TIMER_DELIVER_MS: str(handle.deliver_at_ms),
                # RocketMQ: the unique id alone, as 5.5 and versions before 5.3.2 read it.
                Name.TIMER_DELETE_ID: handle.unique_id,
            }
        )
        host = self._rules.store_host
        record = NewRecord(handle.topic, 0, _BODY, text.encode(), now_ms, connection.peer_host, host)
        await self._appender.store([place(record, text, rules=self._rules.placing, now_ms=now_ms)])
        return request.reply(fields={"msgId": handle.unique_id})

    def _handle_of(self, recall: RecallRequest) -> RecallHandle:
        try:
            handle = RecallHandle.decode(recall.recall_handle)
        except UsageError as fault:
            raise _illegal(f"recall failed: {fault}") from None
        if handle.topic != recall.topic:
            raise _illegal(f"recall failed, topic not match: the handle is for {handle.topic!r}")
        if handle.broker != self._rules.broker:
            raise _illegal(f"recall failed, broker service not available: ask {handle.broker!r}")
        return handle


def _illegal(remark: str) -> Refused:
    return Refused(remark, code=ResponseCode.ILLEGAL_OPERATION)

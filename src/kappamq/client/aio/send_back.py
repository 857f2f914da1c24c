"""Returning messages that a handler could not consume, so that the group gets them again later."""

import logging
from typing import Final

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.producer import Producer
from kappamq.client.core.preparing import Prepared
from kappamq.errors import KappaError
from kappamq.model.message import Message, Queue, StoredMessage
from kappamq.model.names import retry_topic
from kappamq.model.properties import Name, encode_properties
from kappamq.wire.headers import SendBackRequest

log = logging.getLogger(__name__)

RETRIES_MAX: Final = 16
"""Of concurrent consumption, unless the user says otherwise."""
SEND_BACK_TIMEOUT_MS: Final = 5_000
FIRST_DELAY_LEVEL: Final = 3
_DELAY_LEVEL_MAX: Final = 18
_INNER_GROUP: Final = "CLIENT_INNER_PRODUCER-"
_SEPARATORS_TO_BLANKS: Final = {0: " ", 1: " ", 2: " "}


class SendBack:
    """Gives messages of one group back to the brokers."""

    def __init__(self, cluster: Cluster, group: str, *, retries_max: int | None) -> None:
        self._cluster = cluster
        self._group = group
        self._retries_max = RETRIES_MAX if retries_max is None else retries_max
        self._producer: Producer | None = None

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()

    async def send_back(
        self, message: StoredMessage, queue: Queue, *, delay_level: int, cause: str | None = None
    ) -> bool:
        """Ask the broker to deliver the message again; if it cannot, send a copy. False when both failed."""
        request = SendBackRequest(
            log_offset=message.log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            retry_count_max=self._retries_max,
            broker=queue.broker,
            cause=cause,
        )
        try:
            address = await self._cluster.master_of(queue)
            await self._cluster.call(address, request, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except KappaError as fault:
            log.warning("not sent back: sending a copy message_id=%s fault=%s", message.message_id, fault)
            return await self.send_copy(message, delay_level=delay_level, retries_max=self._retries_max, cause=cause)
        return True

    async def send_copy(
        self, message: StoredMessage, *, delay_level: int, retries_max: int, cause: str | None = None
    ) -> bool:
        """Send a copy to the group's retry topic. With no retries left the broker makes it a dead letter."""
        retry_count = message.retry_count + 1
        properties = dict(message.properties)
        for name in (Name.TRANSACTION, Name.RETRY_COUNT, Name.RETRY_COUNT_MAX, Name.MIN_OFFSET, Name.MAX_OFFSET):
            properties.pop(name, None)
        properties[Name.RETRY_TOPIC] = message.topic
        properties.setdefault(Name.ORIGIN_MESSAGE_ID, message.offset_id)
        level = delay_level if delay_level > 0 else min(FIRST_DELAY_LEVEL + message.retry_count, _DELAY_LEVEL_MAX)
        properties[Name.DELAY] = str(level)
        if cause:
            properties[Name.CAUSE] = cause.translate(_SEPARATORS_TO_BLANKS)
        prepared = Prepared(
            topic=retry_topic(self._group),
            message_id=message.message_id,
            body=message.body,
            properties=encode_properties(properties),
            flags=0,
            flag=message.flag,
            retry_count=retry_count,
            retry_count_max=0 if delay_level < 0 else retries_max,
        )
        try:
            producer = await self._open_producer()
            await producer.send_prepared(prepared, Message(prepared.topic, prepared.body))
        except KappaError as fault:
            log.warning("copy not sent message_id=%s fault=%s", message.message_id, fault)
            return False
        return True

    async def _open_producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(cluster=self._cluster, group=_INNER_GROUP + self._group[:90])
            await self._producer.open()
        return self._producer

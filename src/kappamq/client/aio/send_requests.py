"""From a message to the request that sends it: checked, prepared, and encoded for a queue."""

import asyncio
from typing import Final

import msgspec

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.runs import SendTemplate
from kappamq.client.core.preparing import (
    Prepared,
    check_destination,
    check_message,
    delay_properties,
    plain_properties,
    prepare,
)
from kappamq.client.settings import Duration, Moment, ProducerSettings, duration_ms, moment_ms
from kappamq.model.message import Message, Queue
from kappamq.model.properties import Name
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from kappamq.wire.headers import SendRequest, encode_fields

COMPRESS_IN_THREAD_BYTES: Final = 64 * 1024
"""Bodies from this size on are compressed in a thread, since the event loop would stand still for a millisecond."""

_WIRE: Final = {member.name: member.encode_name for member in msgspec.structs.fields(SendRequest)}
"""Names of the send request's fields on the wire."""

NO_PROPERTIES: Final[dict[str, str]] = {}


class SendRequests:
    """Makes the requests of one producer."""

    def __init__(self, cluster: Cluster, group: str, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._plain_bytes_max = min(settings.compress_from_bytes - 1, settings.body_bytes_max)
        self._templates: dict[str, dict[str, str]] = {}

    # ── Preparing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, message: Message) -> None:
        """Raise `InvalidMessage` or `InvalidName` for what no broker would take."""
        check_message(message, body_bytes_max=self._settings.body_bytes_max)

    def compresses_in_thread(self, message: Message) -> bool:
        return len(message.body) >= max(COMPRESS_IN_THREAD_BYTES, self._settings.compress_from_bytes)

    async def prepare(self, message: Message, extra: dict[str, str]) -> Prepared:
        """Check, stamp with a new id, compress. Raises what `check` raises."""
        if self.compresses_in_thread(message):
            # The id is made here: its counter belongs to the event loop.
            return await asyncio.to_thread(self.prepare_with, message, extra, self._cluster.unique_ids.next())
        return self.prepare_now(message, extra)

    def prepare_now(self, message: Message, extra: dict[str, str]) -> Prepared:
        """The same at once, for a body that is not compressed in a thread."""
        message_id = self._cluster.unique_ids.next()
        if not extra and 0 < len(message.body) <= self._plain_bytes_max:
            check_destination(message.topic)
            properties = plain_properties(message, message_id)
            if properties is not None:
                return Prepared(message.topic, message_id, message.body, properties, 0)
        return self.prepare_with(message, extra, message_id)

    def prepare_with(self, message: Message, extra: dict[str, str], message_id: str) -> Prepared:
        self.check(message)
        return prepare(
            message,
            message_id,
            extra=extra,
            compression=self._settings.compression,
            level=self._settings.compression_level,
            compress_from_bytes=self._settings.compress_from_bytes,
        )

    # ── Encoding ────────────────────────────────────────────────────────────────────────────────────────────────────

    def command(self, prepared: Prepared, queue: Queue) -> Command:
        """The request. What is the same for all messages of a topic is encoded once: it is most of the header."""
        template = self._templates.get(prepared.topic)
        if template is None:
            template = self._templates[prepared.topic] = encode_fields(
                SendRequest(
                    producer_group=self._group,
                    topic=prepared.topic,
                    default_topic_queues=self._settings.new_topic_queues,
                    queue_id=0,
                    born_at_ms=0,
                )
            )
        fields = template.copy()
        fields[_WIRE["queue_id"]] = str(queue.queue_id)
        fields[_WIRE["broker"]] = queue.broker
        fields[_WIRE["flags"]] = str(prepared.flags)
        fields[_WIRE["born_at_ms"]] = str(self._cluster.clock.now_ms())
        fields[_WIRE["flag"]] = str(prepared.flag)
        fields[_WIRE["properties"]] = prepared.properties
        code = SendRequest.code
        if prepared.is_batch:
            fields[_WIRE["batch"]] = "true"
            code = RequestCode.SEND_BATCH_MESSAGE
        elif prepared.is_reply:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        elif prepared.retry_count_max is not None:
            fields[_WIRE["retry_count"]] = str(prepared.retry_count)
            fields[_WIRE["retry_count_max"]] = str(prepared.retry_count_max)
        return Command(code=code, fields=fields, body=prepared.body)

    def template(self, queue: Queue) -> SendTemplate:
        """The header of plain sends to a queue."""
        model = self.command(Prepared(queue.topic, "", b"", "", 0), queue)
        return SendTemplate(model, born_at_name=_WIRE["born_at_ms"], properties_name=_WIRE["properties"])


def extra_properties(
    sharding_key: str | None, delay_level: int | None, deliver_at: Moment | None, delay: Duration | None
) -> dict[str, str]:
    """Properties that the options of a send stand for."""
    if delay_level is None and deliver_at is None and delay is None:
        return NO_PROPERTIES if sharding_key is None else {Name.SHARDING_KEY: sharding_key}
    extra = delay_properties(
        delay_level=delay_level,
        deliver_at_ms=None if deliver_at is None else moment_ms(deliver_at),
        delay_ms=None if delay is None else duration_ms(delay),
    )
    if sharding_key is not None:
        extra[Name.SHARDING_KEY] = sharding_key
    return extra

"""Where new records go: queue offsets, log offsets, segments; and their bytes there. Decides; the store writes."""

from collections.abc import Sequence
from typing import NamedTuple

from kappamq.errors import InvalidMessage
from kappamq.kernel import encode_record
from kappamq.kernel.reference import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME
from kappamq.model.message import TRANSACTION_MASK, Flags
from kappamq.model.properties import PROPERTIES_BYTES_MAX
from kappamq.model.record import BLANK_BYTES, RECORD_BYTES_MIN, NewRecord, encode_blank
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import ConsumeQueue
from kappamq.store.dispatch import Arrival, derive_from
from kappamq.store.queue_table import QueueTable
from kappamq.store.segment import Segment
from kappamq.store.settings import StoreSettings

_BORN_V6 = int(Flags.BORN_HOST_V6)
_STORE_V6 = int(Flags.STORE_HOST_V6)
_V6_FLAGS = _BORN_V6 | _STORE_V6
_COMMITTED = int(Flags.COMMITTED)


class Appended(NamedTuple):
    """Where a record went."""

    log_offset: int
    size: int
    queue_offset: int
    stored_at_ms: int

    @property
    def end(self) -> int:
        """Log offset that must be flushed for the record to be durable."""
        return self.log_offset + self.size


class Placement:
    """Gives places to the records of one append and encodes them; changes nothing but the list of segments."""

    def __init__(self, log: CommitLog, queues: QueueTable, settings: StoreSettings, *, now_ms: int) -> None:
        self._log = log
        self._queues = queues
        self._settings = settings
        self._now_ms = now_ms
        self.parts: list[tuple[Segment, int, bytes]] = []
        self.arrivals: list[Arrival] = []
        self.appended: list[Appended] = []
        self.following: dict[ConsumeQueue, int] = {}
        self.end = log.written

    def encode(self, records: Sequence[NewRecord], *, atomic: bool) -> "Placement":
        """Encode all; the results are in the attributes."""
        segment = self._log.tail()
        if atomic and len(records) > 1:
            segment = self._place_together(records, segment)
        settings = self._settings
        append_crc = settings.append_crc
        delay_levels_ms = settings.delay_levels_ms
        body_bytes_max = settings.message_bytes_max
        properties_bytes_max = self._properties_bytes_max
        now_ms = self._now_ms
        queues = self._queues
        following = self.following
        arrivals = self.arrivals
        appended = self.appended
        chunks: list[bytes] = []
        start = end = self.end
        for record in records:
            properties = record.properties
            if CRC_PROPERTY_NAME in properties:
                properties = _without_crc(properties)
            if len(record.body) > body_bytes_max or len(properties) > properties_bytes_max:
                raise self._too_large(record, len(properties))
            topic = record.topic
            queue_id = record.queue_id
            queue = queues.get((topic, queue_id)) or queues.add(topic, queue_id)
            flags = record.flags
            queue_offset = following.get(queue, queue.next)
            if flags & TRANSACTION_MASK and flags & TRANSACTION_MASK != _COMMITTED:
                queue_offset = 0
            else:
                following[queue] = queue_offset + 1
            born_host = record.born_host
            store_host = record.store_host
            if flags & _V6_FLAGS or len(born_host) != 8 or len(store_host) != 8:
                flags &= ~_V6_FLAGS
                flags |= (_BORN_V6 if len(born_host) == 20 else 0) | (_STORE_V6 if len(store_host) == 20 else 0)
            topic_bytes = topic.encode()
            while True:
                data = encode_record(
                    body=record.body,
                    topic=topic_bytes,
                    properties=properties,
                    queue_id=queue_id,
                    flag=record.flag,
                    queue_offset=queue_offset,
                    log_offset=end,
                    flags=flags,
                    born_at_ms=record.born_at_ms,
                    born_host=born_host,
                    stored_at_ms=now_ms,
                    store_host=store_host,
                    retry_count=record.retry_count,
                    prepared_offset=record.prepared_offset,
                    append_crc=append_crc,
                )
                size = len(data)
                if end + size + BLANK_BYTES <= segment.end:
                    break
                segment, start, end = self._roll(segment, chunks, start, end)
                chunks = []
            chunks.append(data)
            appended.append(Appended(end, size, queue_offset, now_ms))
            text = str(properties, "utf-8", "replace")
            arrivals.append(derive_from(topic, queue_id, queue_offset, flags, now_ms, text, end, size, delay_levels_ms))
            end += size
        if chunks:
            self.parts.append((segment, start, b"".join(chunks)))
        self.end = end
        return self

    def _roll(self, segment: Segment, chunks: list[bytes], start: int, end: int) -> tuple[Segment, int, int]:
        """Declare the rest of a segment unused and go to the next one."""
        if end == segment.start:
            raise InvalidMessage(
                f"a record does not fit a segment of {segment.end - segment.start} bytes: make segment_bytes larger"
            )
        self.parts.append((segment, start, b"".join((*chunks, encode_blank(segment.end - end)))))
        following = self._log.add_segment(segment.end)
        return following, following.start, following.start

    def _place_together(self, records: Sequence[NewRecord], segment: Segment) -> Segment:
        """Move on to the next segment when the records do not all fit the rest of this one."""
        total = BLANK_BYTES + sum(
            RECORD_BYTES_MIN
            + 26
            + len(record.body)
            + 3 * len(record.topic)
            + len(record.properties)
            + CRC_PROPERTY_BYTES
            for record in records
        )
        if self.end + total <= segment.end or self.end == segment.start:
            if total > segment.end - segment.start:
                raise InvalidMessage(f"a batch of about {total} bytes does not fit a segment: make it smaller")
            return segment
        segment, _start, self.end = self._roll(segment, [], self.end, self.end)
        return self._place_together(records, segment)

    @property
    def _properties_bytes_max(self) -> int:
        # One less for a separator that may be missing at the end.
        return PROPERTIES_BYTES_MAX - 1 - (CRC_PROPERTY_BYTES if self._settings.append_crc else 0)

    def _too_large(self, record: NewRecord, properties_bytes: int) -> InvalidMessage:
        if properties_bytes > self._properties_bytes_max:
            return InvalidMessage(
                f"properties of {properties_bytes} bytes are too large: the limit is {self._properties_bytes_max}"
            )
        limit = self._settings.message_bytes_max
        return InvalidMessage(f"a body of {len(record.body)} bytes is too large: the limit is {limit}")


def _without_crc(properties: bytes) -> bytes:
    """Properties of a message that is stored again, without the checksum of the record it came from."""
    pieces = properties.split(b"\x02")
    return b"\x02".join(piece for piece in pieces if not piece.startswith(CRC_PROPERTY_NAME))

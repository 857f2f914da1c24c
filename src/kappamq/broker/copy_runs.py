"""Copies that the broker stores on behalf of waiting messages, packed like plain sends: many of them cost little.

    delays, timers ─▶ store(records) ─▶ packed in a thread ─▶ Appender.submit_run, as one append ─▶ group commit

What is not plain in any way (a copy that waits again, flags of transactions, hosts that differ, facts that occur twice)
goes the ordinary way, record by record. Both leave the same bytes.
"""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Final

from kappamq.broker.appender import Appender
from kappamq.errors import KappaError
from kappamq.kernel.reference import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME, SEND_ROW
from kappamq.model.message import TRANSACTION_MASK
from kappamq.model.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.model.properties import PROPERTIES_BYTES_MAX, tags_code
from kappamq.model.record import NewRecord
from kappamq.store.plain_runs import PlainRun, RunBatch

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OPERATION_TOPIC})
"""Whoever waits here must be noticed by the broker's own services, which look at each."""
TEXT_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 1 - CRC_PROPERTY_BYTES
RECORDS_MIN: Final = 8
"""Fewer are not worth packing."""
_V4_BYTES: Final = 8
_FACTS: Final = (b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01")


class CopyRuns:
    """Stores copies. Owned by the event loop."""

    def __init__(self, appender: Appender, *, body_bytes_max: int) -> None:
        self._appender = appender
        self._body_bytes_max = body_bytes_max

    async def store(self, records: Sequence[NewRecord]) -> object:
        """Store all or none, and wait until they are as durable as a send; raises `KappaError`."""
        run = None
        if len(records) >= RECORDS_MIN:
            run = await asyncio.to_thread(pack_copies, records, body_bytes_max=self._body_bytes_max)
        if run is None or run.count > self._appender.room:
            return await self._appender.store(records)
        future: asyncio.Future[RunBatch] = asyncio.get_running_loop().create_future()

        def done(outcome: RunBatch | KappaError, _: bool) -> None:
            if future.done():
                return
            if isinstance(outcome, KappaError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._appender.submit_run(run, done)
        # Whatever is sent next must not become part of it.
        self._appender.open_run = None
        return await future


def pack_copies(records: Sequence[NewRecord], *, body_bytes_max: int) -> PlainRun | None:
    """The records as a run; `None` when one of them is not plain."""
    run = PlainRun(records[0].store_host)
    targets, texts, rows = run.targets, run.texts, run.rows
    numbers: dict[bytes, int] = {}
    bodies: list[bytearray] = []
    prepared = array("q")
    for record in records:
        text = _without_crc(record.properties)
        body, host = record.body, record.born_host
        if (
            text is None
            or len(text) > TEXT_BYTES_MAX
            or len(body) > body_bytes_max
            or record.topic in WAITING_TOPICS
            or record.flags & TRANSACTION_MASK
            or record.store_host != run.store_host
            or len(host) != _V4_BYTES
            or len(run.store_host) != _V4_BYTES
        ):
            return None
        facts = _facts(text, len(texts))
        if facts is None:
            return None
        target = targets.number_of(record.topic.encode(), record.queue_id)
        source = numbers.setdefault(host, len(numbers))
        if source == len(bodies):
            bodies.append(bytearray())
        (id_at, id_bytes), (keys_at, keys_bytes), code = facts
        rows += SEND_ROW.pack(
            target,
            source,
            0,
            0,
            len(bodies[source]),
            len(body),
            len(texts),
            len(text),
            id_at,
            id_bytes,
            keys_at,
            keys_bytes,
            code,
            record.flags,
            record.flag,
            record.retry_count,
            record.born_at_ms,
        )
        bodies[source] += body
        texts += text
        prepared.append(record.prepared_offset)
    run.sources += [(bytes(buffer), host) for host, buffer in zip(numbers, bodies)]
    run.prepared = prepared.tobytes()
    run.count = len(records)
    return run


def _without_crc(text: bytes) -> bytes | None:
    """Properties without the checksum of the record they come from; `None` when it is unusual or not alone.

    A timed message got others behind it, which say when it was in the wheel.
    """
    at = text.find(CRC_PROPERTY_NAME)
    if at < 0:
        return text
    end = at + CRC_PROPERTY_BYTES
    if (at and text[at - 1] != 2) or text.find(b"\x02", at) != end - 1 or text.find(CRC_PROPERTY_NAME, end) >= 0:
        return None
    return text[:at] + text[end:]


def _facts(text: bytes, base: int) -> tuple[tuple[int, int], tuple[int, int], int] | None:
    """Where unique id and keys lie, behind `base`, and the code of the tags; `None` when one is empty or not alone."""
    places: list[tuple[int, int]] = []
    for mark in _FACTS:
        at = text.find(mark)
        while at > 0 and text[at - 1] != 2:
            at = text.find(mark, at + 1)  # The end of a longer name, or within a value.
        if at < 0:
            places.append((0, 0))
            continue
        start = at + len(mark)
        end = text.find(b"\x02", start)
        end = len(text) if end < 0 else end
        if end == start or text.find(b"\x02" + mark, start) >= 0 or b"\x01" in text[start:end]:
            return None
        places.append((start, end - start))
    (id_at, id_bytes), (keys_at, keys_bytes), (tags_at, tags_bytes) = places
    code = tags_code(text[tags_at : tags_at + tags_bytes].decode("utf-8", "replace")) if tags_bytes else 0
    return (base + id_at, id_bytes), (base + keys_at, keys_bytes), code

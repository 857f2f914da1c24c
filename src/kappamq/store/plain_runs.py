"""Plain sends of one read on their way into the log: packed, never an object for each.

The kernel's fast lane (`kernel/reference.py`) makes the bytes; this module decides where they go, as `placing` does
for records one by one. Both leave the same log, queues and index behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct

from kappamq.errors import InvalidMessage
from kappamq.kernel import java_hash, place_sends
from kappamq.kernel.reference import PLACE_ROW, SEND_ROW
from kappamq.model.record import BLANK_BYTES, encode_blank
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import ConsumeQueue
from kappamq.store.dispatch import Arrival, derive_from
from kappamq.store.segment import Segment
from kappamq.store.settings import UNIT_BYTES, StoreSettings

_SIZES = Struct(">8xi8x")


@dataclass(slots=True)
class PlainRun:
    """Sends that `kernel.scan_sends` has found in a buffer; appending gives them their places."""

    buffer: bytes
    rows: bytes
    texts: bytes
    targets: list[tuple[str, int]]
    """Topic and number of each queue, as rows count them."""
    count: int
    born_host: bytes
    store_host: bytes
    places: bytes = b""


@dataclass(slots=True)
class QueueRun:
    """Entries that one run brings to one queue."""

    topic: str
    queue_id: int
    start: int
    units: bytes

    @property
    def count(self) -> int:
        return len(self.units) // UNIT_BYTES

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def record_bytes(self) -> int:
        return sum([size for (size,) in _SIZES.iter_unpack(self.units)])


@dataclass(slots=True)
class RunBatch:
    """An appended run: what queues and index get of it, and whom it may wake."""

    run: PlainRun
    end: int
    stored_at_ms: int
    parts: list[tuple[Segment, int, bytes]]
    queues: list[QueueRun]
    keys: bytes
    following: dict[ConsumeQueue, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.run.count

    def release(self) -> None:
        """Let go of the bytes that are in the log now."""
        self.run.buffer = b""
        self.parts.clear()

    def forget(self, topic: str) -> None:
        """Its queues are gone: its records get no entries. Their keys stay, as do those of published records."""
        self.queues = [queue for queue in self.queues if queue.topic != topic]

    def arrivals(self) -> list[Arrival]:
        """The records one by one, for whoever needs to look closely."""
        return list(self._arrivals(None))

    def arrivals_of(self, queue: QueueRun) -> Iterator[Arrival]:
        """The records of one of `queues`."""
        return self._arrivals((queue.topic, queue.queue_id))

    def _arrivals(self, wanted: tuple[str, int] | None) -> Iterator[Arrival]:
        run = self.run
        present = {(queue.topic, queue.queue_id) for queue in self.queues}
        for row, place in zip(SEND_ROW.iter_unpack(run.rows), PLACE_ROW.iter_unpack(run.places)):
            topic, queue_id = target = run.targets[row[0]]
            if (wanted is None or target == wanted) and target in present:
                text = str(run.texts[row[5] : row[5] + row[6]], "utf-8", "replace")
                log_offset, queue_offset, size = place
                yield derive_from(topic, queue_id, queue_offset, row[12], self.stored_at_ms, text, log_offset, size, ())


def place_run(
    run: PlainRun, log: CommitLog, queues: Sequence[ConsumeQueue], settings: StoreSettings, *, now_ms: int
) -> RunBatch:
    """Give the sends their places in the queues of their targets, and encode them there.

    Changes nothing but the list of segments and `run.places`. Raises `OSError` when no segment can be made.
    """
    starts = [queue.next for queue in queues]
    topics = [(topic.encode(), queue_id, java_hash(topic + "#")) for topic, queue_id in run.targets]
    nexts = starts[:]
    units = [b""] * len(queues)
    parts: list[tuple[Segment, int, bytes]] = []
    places = keys = b""
    segment = log.tail()
    end = log.written
    done = 0
    while True:
        targets = [(topic, queue_id, following, hashed) for (topic, queue_id, hashed), following in zip(topics, nexts)]
        data, more_places, more_units, more_keys = place_sends(
            run.buffer,
            run.rows,
            run.texts,
            targets,
            first=done,
            log_offset=end,
            room=segment.end - BLANK_BYTES - end,
            stored_at_ms=now_ms,
            born_host=run.born_host,
            store_host=run.store_host,
            append_crc=settings.append_crc,
        )
        done += len(more_places) // PLACE_ROW.size
        places += more_places
        keys += more_keys
        units = [before + more for before, more in zip(units, more_units)]
        nexts = [start + len(entries) // UNIT_BYTES for start, entries in zip(starts, units)]
        if done >= run.count:
            break
        if end == segment.start and not data:
            raise InvalidMessage(
                f"a record does not fit a segment of {segment.end - segment.start} bytes: make segment_bytes larger"
            )
        # Declare the rest of the segment unused and go to the next one.
        parts.append((segment, end, data + encode_blank(segment.end - end - len(data))))
        segment = log.add_segment(segment.end)
        end = segment.start
    parts.append((segment, end, data))
    run.places = places
    return RunBatch(
        run,
        end + len(data),
        now_ms,
        parts,
        [QueueRun(*target, start, entries) for target, start, entries in zip(run.targets, starts, units)],
        keys,
        dict(zip(queues, nexts)),
    )

"""Plain sends of some reads on their way into the log: packed, never an object for each.

The kernel's fast lane (`kernel/reference.py`) makes the bytes; this module decides where they go, as `placing` does
for records one by one. Both leave the same log, queues and index behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kappamq.errors import InvalidMessage
from kappamq.kernel import place_sends
from kappamq.kernel.reference import PLACE_ROW, SEND_ROW
from kappamq.model.record import BLANK_BYTES, encode_blank
from kappamq.store.commit_log import CommitLog
from kappamq.store.consume_queue import ConsumeQueue
from kappamq.store.dispatch import Arrival, derive_from
from kappamq.store.segment import Segment
from kappamq.store.settings import UNIT_BYTES, StoreSettings


@dataclass(slots=True)
class PlainRun:
    """Sends that `kernel.scan_sends` has found in some buffers; appending gives them their places."""

    store_host: bytes
    rows: bytearray = field(default_factory=bytearray)
    texts: bytearray = field(default_factory=bytearray)
    targets: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Topic and number of each queue, in the order in which rows count them."""
    sources: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Buffers with the hosts they came from."""
    count: int = 0
    """Of sends: a batch counts as one."""
    places: bytes = b""
    prepared: bytes = b""
    """Log offsets of the records that these stand for, as native i64; empty for sends."""

    @property
    def records(self) -> int:
        """Number of messages."""
        return len(self.rows) // SEND_ROW.size


@dataclass(slots=True)
class QueueRun:
    """Entries that one run brings to one queue."""

    queue: ConsumeQueue
    start: int
    units: bytes
    count: int
    record_bytes: int
    sends: int
    """Requests that brought them."""

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def queue_id(self) -> int:
        return self.queue.queue_id

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(slots=True)
class RunBatch:
    """An appended run: what queues and index get of it, and whom it may wake."""

    run: PlainRun
    end: int
    stored_at_ms: int
    parts: list[tuple[Segment, int, bytes]]
    queues: list[QueueRun]
    keys: bytes

    @property
    def count(self) -> int:
        return self.run.records

    def release(self) -> None:
        """Let go of the bytes that are in the log now."""
        self.run.sources.clear()
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
        targets = [(topic.decode(), queue_id) for topic, queue_id in run.targets]
        for row, place in zip(SEND_ROW.iter_unpack(run.rows), PLACE_ROW.iter_unpack(run.places)):
            topic, queue_id = target = targets[row[0]]
            if (wanted is None or target == wanted) and target in present:
                text = str(run.texts[row[6] : row[6] + row[7]], "utf-8", "replace")
                log_offset, queue_offset, size = place
                yield derive_from(topic, queue_id, queue_offset, row[13], self.stored_at_ms, text, log_offset, size, ())


def place_run(
    run: PlainRun, log: CommitLog, queues: Sequence[ConsumeQueue], settings: StoreSettings, *, now_ms: int
) -> RunBatch:
    """Give the sends their places in the queues of their targets, and encode them there.

    Changes nothing but the list of segments and `run.places`. Raises `OSError` when no segment can be made.
    """
    starts = [queue.next for queue in queues]
    nexts = starts
    units: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    parts: list[tuple[Segment, int, bytes]] = []
    places = keys = b""
    segment = log.tail()
    end = log.written
    done = 0
    while True:
        targets = [
            (topic, queue_id, following, queue.topic_hash)
            for (topic, queue_id), following, queue in zip(run.targets, nexts, queues)
        ]
        data, more_places, more_units, more_sizes, more_keys = place_sends(
            run.rows,
            run.texts,
            run.sources,
            targets,
            first=done,
            log_offset=end,
            room=segment.end - BLANK_BYTES - end,
            stored_at_ms=now_ms,
            store_host=run.store_host,
            append_crc=settings.append_crc,
            prepared=run.prepared,
        )
        done += len(more_places) // PLACE_ROW.size
        places += more_places
        keys += more_keys
        units = [before + more for before, more in zip(units, more_units)] if units else more_units
        sizes = [(a + c, b + d) for (a, b), (c, d) in zip(sizes, more_sizes)] if sizes else more_sizes
        nexts = [start + len(entries) // UNIT_BYTES for start, entries in zip(starts, units)]
        if done >= run.records:
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
        [
            QueueRun(queue, start, entries, following - start, record_bytes, sends)
            for queue, start, entries, following, (record_bytes, sends) in zip(queues, starts, units, nexts, sizes)
        ],
        keys,
    )

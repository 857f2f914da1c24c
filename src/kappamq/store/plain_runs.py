"""Plain sends of some reads on their way into the log: packed, never an object for each.

The kernel's fast lane (`kernel/reference.py`) makes the bytes; this module decides where they go, as `placing` does
for records one by one. Both leave the same log, queues and index behind.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from kappamq.errors import InvalidMessage
from kappamq.kernel import Targets, place_sends
from kappamq.kernel.reference import PLACE_ROW, QUEUE_ROW, SEND_ROW
from kappamq.model.record import BLANK_BYTES, encode_blank
from kappamq.store.commit_log import CommitLog
from kappamq.store.dispatch import Arrival, derive_from
from kappamq.store.segment import Segment
from kappamq.store.settings import UNIT_BYTES, StoreSettings


@dataclass(slots=True)
class PlainRun:
    """Sends that `kernel.scan_sends` has found in some buffers; appending gives them their places."""

    store_host: bytes
    rows: bytearray = field(default_factory=bytearray)
    texts: bytearray = field(default_factory=bytearray)
    targets: Targets = field(default_factory=Targets)
    """Queues that rows may name: many more than this run has messages for, perhaps."""
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


@dataclass(frozen=True, slots=True)
class QueueRun:
    """Entries that one run brings to one queue, one after the other. A run may bring some more of them in another."""

    topic: str
    queue_id: int
    start: int
    units: bytes
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(slots=True)
class RunBatch:
    """A placed run: what queues and index get of it, and whom it may wake."""

    run: PlainRun
    end: int
    stored_at_ms: int
    parts: list[tuple[Segment, int, bytes]]
    queue_rows: bytes
    """What each queue gets, packed: there may be hundreds in each turn."""
    units: bytes
    """The entries of these rows, one after the other."""
    keys: bytes

    @property
    def count(self) -> int:
        return self.run.records

    def release(self) -> None:
        """Let go of the bytes that are in the log now."""
        self.run.sources.clear()
        self.parts.clear()

    def take_back(self) -> None:
        """It was not written: its queues go on from where they were."""
        self.run.targets.take_back(self.queue_rows)

    def forget(self, topic: str) -> None:
        """Its queues are gone: its records get no entries. Their keys stay, as do those of published records."""
        kept = [
            (row, queue.units)
            for row, queue in zip(QUEUE_ROW.iter_unpack(self.queue_rows), self.queues)
            if queue.topic != topic
        ]
        self.queue_rows = b"".join([QUEUE_ROW.pack(*row) for row, _units in kept])
        self.units = b"".join([units for _row, units in kept])

    @property
    def queues(self) -> list[QueueRun]:
        """What each queue gets, for whoever needs to look closely."""
        return list(self._queues(None))

    def queues_among(self, wanted: Container[tuple[str, int]]) -> list[QueueRun]:
        """What some queues get, by topic and number."""
        return list(self._queues(wanted))

    def _queues(self, wanted: Container[tuple[str, int]] | None) -> Iterator[QueueRun]:
        name_of = self.run.targets.name_of
        at = 0
        for target, count, _sends, start, _size in QUEUE_ROW.iter_unpack(self.queue_rows):
            name, queue_id = name_of(target)
            topic = name.decode()
            end = at + count * UNIT_BYTES
            if wanted is None or (topic, queue_id) in wanted:
                yield QueueRun(topic, queue_id, start, self.units[at:end], count)
            at = end

    def arrivals(self) -> list[Arrival]:
        """The records one by one, for whoever needs to look closely."""
        return list(self._arrivals({row[0] for row in QUEUE_ROW.iter_unpack(self.queue_rows)}))

    def arrivals_of(self, queue: QueueRun) -> Iterator[Arrival]:
        """The records of one of `queues`."""
        wanted = self.run.targets.number_of(queue.topic.encode(), queue.queue_id)
        for arrival in self._arrivals({wanted}):
            if queue.start <= arrival.queue_offset < queue.end:
                yield arrival

    def _arrivals(self, wanted: Container[int]) -> Iterator[Arrival]:
        run = self.run
        for row, place in zip(SEND_ROW.iter_unpack(run.rows), PLACE_ROW.iter_unpack(run.places)):
            if row[0] in wanted:
                topic, queue_id = run.targets.name_of(row[0])
                text = str(run.texts[row[6] : row[6] + row[7]], "utf-8", "replace")
                log_offset, queue_offset, size = place
                name = topic.decode()
                yield derive_from(name, queue_id, queue_offset, row[13], self.stored_at_ms, text, log_offset, size, ())


def place_run(run: PlainRun, log: CommitLog, settings: StoreSettings, *, now_ms: int) -> RunBatch:
    """Give the sends their places in the queues of their targets, and encode them there.

    The queues count on; what is placed and then not written is to be taken back. Changes nothing else but the list of
    segments and `run.places`. Raises `OSError` when no segment can be made.
    """
    segment = log.tail()
    end = log.written
    batch = RunBatch(run, end, now_ms, [], b"", b"", b"")
    places = b""
    done = 0
    try:
        while True:
            data, more_places, queue_rows, units, keys = place_sends(
                run.rows,
                run.texts,
                run.sources,
                run.targets,
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
            batch.queue_rows += queue_rows
            batch.units += units
            batch.keys += keys
            if done >= run.records:
                break
            if end == segment.start and not data:
                raise InvalidMessage(
                    f"a record does not fit a segment of {segment.end - segment.start} bytes: make segment_bytes larger"
                )
            # Declare the rest of the segment unused and go to the next one.
            batch.parts.append((segment, end, data + encode_blank(segment.end - end - len(data))))
            segment = log.add_segment(segment.end)
            end = segment.start
    except BaseException:
        batch.take_back()
        raise
    batch.parts.append((segment, end, data))
    batch.end = end + len(data)
    run.places = places
    return batch

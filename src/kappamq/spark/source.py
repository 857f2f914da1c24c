"""The data source `rocketmq`: what Spark calls to read topics as tables and as streams, and to write them.

Spark runs these objects in several processes: planning, one long-lived process for each stream, and a worker for each
task. They hold options only and are pickled; connections are made where they are used.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kappamq.model.message import Queue
from kappamq.spark.columns import DDL, NOT_NULL, check_projection
from kappamq.spark.offsets import End, QueueOffsets, from_checkpoint, to_checkpoint
from kappamq.spark.options import ReadOptions, parse_read_options, parse_write_options
from kappamq.spark.partitions import RangePartition, plan_partitions
from kappamq.spark.planning import DataLost, admit, check_subject, loss_message, rows_for_bytes
from kappamq.spark.workers import keep_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructField, StructType

    from kappamq.spark.brokers import Brokers

LATEST_CACHE_SECONDS: Final = 0.1
"""An idle stream asks for the latest offsets almost a hundred times a second; brokers are asked less often."""
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class RocketMQSource(DataSource):
    """`spark.read.format("rocketmq").option("namesrvAddr", "127.0.0.1:9876").option("subscribe", "orders").load()`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: "StructType") -> DataSourceReader:
        options = parse_read_options(self.options, is_stream=False)
        # A session without filter push-down refuses every reader that has the method, filter or not. One with it keeps
        # one plan for a frame, that of the query planned last: whoever asks for it promises to use a frame only once.
        kind = PushingTopicReader if options.pushes_filters and _PUSHDOWN_WORKER in sys.modules else TopicReader
        return kind(options, _columns(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        return TopicStreamReader(parse_read_options(self.options, is_stream=True), _columns(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceArrowWriter":
        from kappamq.spark.encoding import check_types
        from kappamq.spark.sink import TopicWriter

        writer = TopicWriter(parse_write_options(self.options), schema.names, is_overwrite=overwrite)
        check_types(_fields(schema))
        return writer

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamArrowWriter":  # noqa: N802
        from kappamq.spark.encoding import check_types
        from kappamq.spark.sink import TopicStreamWriter

        writer = TopicStreamWriter(parse_write_options(self.options), schema.names, is_overwrite=overwrite)
        check_types(_fields(schema))
        return writer


def _fields(schema: "StructType") -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _columns(schema: "StructType") -> tuple[str, ...]:
    return check_projection([(field.name, _kind(field)) for field in schema.fields])


def _kind(field: "StructField") -> str:
    """Type of a field; neither it nor the values of a map can be promised not to be null."""
    may_be_null = field.nullable and getattr(field.dataType, "valueContainsNull", True)
    return str(field.dataType.simpleString()) + ("" if may_be_null else NOT_NULL)


class TopicReader(DataSourceReader):
    """Topics as a table: offsets are fixed when the query is planned."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        from kappamq.spark.tables import plan_table

        return plan_table(self.options, None)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition, self.columns, self.options)


class PushingTopicReader(TopicReader):
    """The same with `pushFilters`, for sessions with `spark.sql.python.filterPushdown.enabled`."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self.filters: list[Any] = []

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name.
        from kappamq.spark.tables import filter_at_broker

        self.filters = list(filters)
        self.options = filter_at_broker(self.options, self.filters)
        return filters  # Spark applies all of them again: we only read less.

    def partitions(self) -> list[InputPartition]:
        from kappamq.spark.pushdown import narrow
        from kappamq.spark.tables import plan_table

        narrowing, self.filters = narrow(self.filters), []
        return plan_table(self.options, narrowing)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Topics as a stream. Spark keeps one of these in a process of its own as long as the query runs."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self._brokers: Brokers | None = None
        self._queues: list[Queue] = []
        self._discovered_at = 0.0
        self._latest: QueueOffsets = {}
        self._latest_at = 0.0
        self._target: QueueOffsets | None = None
        # Nothing is known of what an earlier run has published, so a restart publishes all of it again.
        self._mirrored: QueueOffsets = {}
        self._mirrors_at = 0.0
        self._last_batch_at = time.monotonic()

    # ── What Spark asks ─────────────────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        brokers = self._open()
        held = brokers.bounds(self._discover())
        place = self.options.start or End.LATEST
        start = brokers.resolve(place, held, late_fails=self.options.late_start_fails)
        self._mirrored = start
        return to_checkpoint(start)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = from_checkpoint(start)
        check_subject(begin, self.options)
        self._mirror(begin)
        latest = self._target if self._target is not None else self._ask_latest()
        # Queues whose broker is away now keep their place.
        latest = begin | latest
        self._check_not_shorter(begin, latest)
        backlog = {queue: latest[queue] - begin.get(queue, 0) for queue in latest}
        if self._waits_for_more(sum(backlog.values()), limit):
            return to_checkpoint(begin)
        rows_max = self._rows_max(begin, backlog, limit)
        end = latest if rows_max is None else admit(begin, latest, rows_max)
        if end != begin:
            self._last_batch_at = time.monotonic()
        return to_checkpoint(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self.options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.rows_min is not None:
            return ReadMinRows(options.rows_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_checkpoint(self._ask_latest())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ask_latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, finish = from_checkpoint(start), from_checkpoint(end)
        check_subject(finish, self.options)
        moved = {queue: offset for queue, offset in finish.items() if offset != begin.get(queue, 0)}
        held = self._open().bounds(moved)
        return plan_partitions(begin, moved, held, self.options)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition, self.columns, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls this a batch late and never for the last one. `latestOffset` knows what is done."""

    def stop(self) -> None:
        if self._brokers is not None:
            self._brokers.__exit__(None, None, None)
            self._brokers = None

    # ── How it is found out ─────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> "Brokers":
        if self._brokers is None:
            from kappamq.spark.brokers import Brokers

            self._brokers = Brokers(self.options).__enter__()
        return self._brokers

    def _discover(self) -> list[Queue]:
        """Queues as last heard of; new queues, brokers and topics appear within the discovery interval."""
        now = time.monotonic()
        if not self._queues or now - self._discovered_at >= self.options.discovery_ms / 1000:
            self._queues = self._open().queues()
            self._discovered_at = now
        return self._queues

    def _ask_latest(self) -> QueueOffsets:
        now = time.monotonic()
        if not self._latest_at or now - self._latest_at >= LATEST_CACHE_SECONDS:
            self._latest = self._open().ends(self._discover())
            self._latest_at = time.monotonic()
        return self._latest

    def _mirror(self, done: QueueOffsets) -> None:
        """Publish progress. Spark asks for the next offsets only when the batch that ended at `done` is committed."""
        group = self.options.mirrored_group
        moved = {q: at for q, at in done.items() if at != self._mirrored.get(q)}
        if group is None or not moved or time.monotonic() < self._mirrors_at:
            return
        if self._open().commit(group, moved):
            self._mirrored = done
        else:
            # Spark asks many times a second: what failed is tried again after a while.
            self._mirrors_at = time.monotonic() + self.options.discovery_ms / 1000

    def _check_not_shorter(self, begin: QueueOffsets, latest: QueueOffsets) -> None:
        losses = [
            f"queue {queue.topic}/{queue.broker}/{queue.queue_id} ends at {latest[queue]}, but {at} was read before"
            for queue, at in begin.items()
            if latest[queue] < at
        ]
        if losses and self.options.fails_on_loss:
            raise DataLost(loss_message(losses))

    def _waits_for_more(self, waiting: int, limit: ReadLimit) -> bool:
        options = self.options
        if options.rows_min is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        return waiting < options.rows_min and waited_ms < options.trigger_delay_ms

    def _rows_max(self, begin: QueueOffsets, backlog: Mapping[Queue, int], limit: ReadLimit) -> int | None:
        if isinstance(limit, ReadAllAvailable):
            return None
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.rows_max
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.bytes_max
        waiting = {queue: count for queue, count in backlog.items() if count > 0}
        if bytes_max is not None and waiting:
            row_bytes = self._open().row_bytes({queue: begin.get(queue, 0) for queue in waiting})
            fitting = rows_for_bytes(waiting, row_bytes, bytes_max)
            rows_max = fitting if rows_max is None else min(rows_max, fitting)
        return rows_max


def _read(partition: InputPartition, columns: tuple[str, ...], options: ReadOptions) -> "Iterator[pa.RecordBatch]":
    if options.mode == "files":
        from kappamq.spark.log_files import LogPartition, read_slice

        keep_loaded()
        return read_slice(partition, columns, options) if isinstance(partition, LogPartition) else iter(())
    if not isinstance(partition, RangePartition):
        return iter(())  # Spark makes up one empty partition when there is none.
    from kappamq.spark.pulling import read_range

    keep_loaded()
    return read_range(partition.range, columns, options)

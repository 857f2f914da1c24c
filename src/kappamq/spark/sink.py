"""Writing data frames and streams to topics. A task ends when every message of it is acknowledged.

A task that is run again sends again, with the same message ids: readers that must not see a row twice drop duplicates
by `messageId`. Nothing is undone when a write is aborted, since consumers may have seen it; a transactional write shows
them nothing before all of it is there.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kappamq.client.aio.producer import Producer
from kappamq.client.aio.runs import PLAIN_BODY_BYTES_MAX
from kappamq.client.compression import Compression
from kappamq.client.core.batching import item_bytes_max
from kappamq.client.core.receipts import SendReceipt
from kappamq.client.core.selecting import select_by_hash
from kappamq.client.loop_thread import LoopThread
from kappamq.client.settings import ProducerSettings
from kappamq.errors import KappaError, Refused, UsageError
from kappamq.model.message import Message, Queue
from kappamq.model.names import is_retry_topic
from kappamq.spark.brokers import patiently
from kappamq.spark.encoding import Outgoing, RowIdentity, check_columns, plain_rows, rows_to_messages
from kappamq.spark.halves import deliver, discard, send_halves
from kappamq.spark.options import WriteOptions
from kappamq.spark.workers import keep_loaded
from kappamq.wire.codes import ResponseCode

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

REQUEST_ROWS_MAX: Final = 256
REQUEST_BYTES_MAX: Final = 1024 * 1024
REQUESTS_AT_ONCE_MAX: Final = 16
SEND_RETRIES: Final = 5
PACES_PER_SECOND: Final = 5
SEND_RETRY_MS: Final = 200

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    partition: int
    rows: int
    write: str | None = None
    """Which query, or which named write."""
    halves: list[SendReceipt] = field(default_factory=list)
    """Of a transactional write: what waits for the decision."""


class TopicWriter(DataSourceArrowWriter):
    """Writes a data frame."""

    def __init__(self, options: WriteOptions, columns: Sequence[str], *, is_overwrite: bool) -> None:
        _check(options, columns, is_overwrite=is_overwrite)
        self.options = options
        # Made once for all tasks and their attempts; a second write of the same frame is another write.
        self.write_id = options.id_prefix or uuid4().hex

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return send_rows(iterator, RowIdentity(self.write_id, 0, partition), self.options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is acknowledged already; a transactional write is delivered now."""
        # Without a name of its own nobody can repeat this write.
        deliver(_halves(messages), self.options, write=self.options.id_prefix, batch=0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_abort(messages, "write", self.write_id)
        discard(_halves(messages), self.options)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: WriteOptions, columns: Sequence[str], *, is_overwrite: bool) -> None:
        _check(options, columns, is_overwrite=is_overwrite)
        self.options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        context = TaskContext.get()
        if context is None:
            raise KappaError("no task context: this writer runs in a Spark task only")
        query = self.options.id_prefix or context.getLocalProperty(QUERY_ID_PROPERTY)
        batch = context.getLocalProperty(BATCH_ID_PROPERTY)
        if query is None or batch is None:
            raise KappaError("Spark does not tell the query and batch of this task: use pyspark 4.2 or later")
        return send_rows(iterator, RowIdentity(query, int(batch), context.partitionId()), self.options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as Spark calls it.
        """Everything is acknowledged already; a transactional batch is delivered now."""
        write = next((message.write for message in messages if isinstance(message, Sent)), None)
        deliver(_halves(messages), self.options, write=write, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as Spark calls it.
        """Also called after a commit that failed: what it delivered stays, and the repetition has the same ids."""
        _log_abort(messages, "batch", str(batchId))
        discard(_halves(messages), self.options)


def _check(options: WriteOptions, columns: Sequence[str], *, is_overwrite: bool) -> None:
    if is_overwrite:
        raise UsageError(
            "a topic cannot be overwritten: use mode('append') or outputMode('append'); rows that change, such as "
            "aggregates, are sent from foreachBatch"
        )
    check_columns(columns, topic=options.topic)
    placed = [name for name in ("queueId", "shardingKey", "delayLevel", "deliverTime") if name in columns]
    if options.is_transactional and placed:
        raise UsageError(f"a transactional write cannot use the column {placed[0]}: drop it, or write without")


def _halves(messages: Sequence[WriterCommitMessage | None]) -> list[SendReceipt]:
    return [half for message in messages if isinstance(message, Sent) for half in message.halves]


def _log_abort(messages: Sequence[WriterCommitMessage | None], what: str, name: str) -> None:
    sent = [message for message in messages if isinstance(message, Sent)]
    log.warning(
        "%s aborted: what was sent stays sent, a repetition has the same ids id=%s tasks=%d rows=%d",
        what,
        name,
        len(sent),
        sum(message.rows for message in sent),
    )


def send_rows(batches: "Iterator[pa.RecordBatch]", identity: RowIdentity, options: WriteOptions) -> Sent:
    """Send all rows of a partition and wait for every receipt."""
    keep_loaded()
    settings = ProducerSettings(
        send_timeout_ms=options.send_timeout_ms,
        inflight_max=options.inflight_max,
        compression=Compression[options.compression.upper()],
        compress_from_bytes=options.compress_from_bytes,
    )
    thread = LoopThread(
        lambda: Producer(options.name_servers, group=options.group, settings=settings),
        name="kappamq spark writer",
    )
    sent = Sent(identity.partition, 0, identity.write)
    opened = False
    under_way: _UnderWay | None = None
    try:
        for batch in batches if options.is_transactional else _paced(batches, options.rows_per_second):
            if not opened:
                thread.open()
                opened = True
            # The next batch is read and encoded while this one is stored.
            previous, under_way = under_way, _begin(thread, batch, identity, sent.rows, options)
            if previous is not None:
                _finish(thread, previous, identity, options)
            if under_way.lost is None:
                messages = list(rows_to_messages(batch, identity, sent.rows, topic=options.topic))
                sent.halves += thread.call(partial(_send_rows, rows=messages, options=options))
                under_way = None
            sent.rows += batch.num_rows
        if under_way is not None:
            _finish(thread, under_way, identity, options)
    finally:
        if opened:
            thread.close()
    return sent


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A batch of rows; the numbers of those that are lost are known later. Without: it is not sent as columns."""

    batch: "pa.RecordBatch"
    first_row: int
    lost: "Future[list[int]] | None"


def _begin(
    thread: LoopThread[Producer], batch: "pa.RecordBatch", identity: RowIdentity, first_row: int, options: WriteOptions
) -> _UnderWay:
    """Begin to send a batch as columns, if that can be done."""
    if options.is_transactional:
        return _UnderWay(batch, first_row, None)
    body_bytes_max = PLAIN_BODY_BYTES_MAX if options.compression == "none" else options.compress_from_bytes - 1
    rows = plain_rows(batch, identity, first_row, topic=options.topic, body_bytes_max=body_bytes_max)
    if rows is None:
        return _UnderWay(batch, first_row, None)
    sending = partial(Producer.send_rows, topic=rows.topic, texts=rows.texts, bodies=rows.bodies, count=rows.count)
    return _UnderWay(batch, first_row, thread.start(sending))


def _finish(thread: LoopThread[Producer], sent: _UnderWay, identity: RowIdentity, options: WriteOptions) -> None:
    """Wait until a batch is stored; what was lost of it is sent again, as messages with the same ids."""
    assert sent.lost is not None
    try:
        lost = set(sent.lost.result())
    except KappaError as fault:
        log.info("columns not sent: their messages are tried one by one fault=%s", fault)
        lost = set(range(sent.batch.num_rows))
    if lost:
        messages = rows_to_messages(sent.batch, identity, sent.first_row, topic=options.topic)
        again = [message for row, message in enumerate(messages) if row in lost]
        thread.call(partial(_send_rows, rows=again, options=options))


def _paced(batches: "Iterator[pa.RecordBatch]", rows_per_second: int | None) -> "Iterator[pa.RecordBatch]":
    """The same rows, no faster than this."""
    if rows_per_second is None:
        yield from batches
        return
    begun, rows = time.monotonic(), 0
    step = max(rows_per_second // PACES_PER_SECOND, 1)
    for batch in batches:
        for at in range(0, batch.num_rows, step):
            time.sleep(max(begun + rows / rows_per_second - time.monotonic(), 0))
            piece = batch.slice(at, step)
            rows += piece.num_rows
            yield piece


async def _send_rows(producer: Producer, rows: list[Outgoing], options: WriteOptions) -> list[SendReceipt]:
    """Send rows; returns those that wait for a decision."""
    if options.is_transactional:
        return await send_halves(producer, [row.message for row in rows])
    await _send_all(producer, rows, options)
    return []


async def _send_all(producer: Producer, rows: list[Outgoing], options: WriteOptions) -> None:
    """Send concurrently; rows with a fixed queue keep their order within it."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)
    grouped = await _by_queue(producer, rows)
    try:
        async with asyncio.TaskGroup() as tasks:
            for (topic, queue), chosen in grouped.items():
                requests = list(_requests(chosen, options))
                if queue is None:
                    for request in requests:
                        tasks.create_task(_send_in_turn(producer, [request], None, slots), name=f"send {topic}")
                else:
                    tasks.create_task(_send_in_turn(producer, requests, queue, slots), name=f"send {topic}")
    except ExceptionGroup as faults:
        # One reason is enough, and is easier to read than a group.
        raise faults.exceptions[0] from None


async def _by_queue(producer: Producer, rows: list[Outgoing]) -> dict[tuple[str, Queue | None], list[Outgoing]]:
    grouped: dict[tuple[str, Queue | None], list[Outgoing]] = {}
    for row in rows:
        queue = None
        if row.queue_id is not None or row.sharding_key:
            queue = _queue_of(row, await producer.queues_of(row.message.topic))
        grouped.setdefault((row.message.topic, queue), []).append(row)
    return grouped


def _queue_of(row: Outgoing, queues: Sequence[Queue]) -> Queue:
    if row.queue_id is None:
        assert row.sharding_key
        return select_by_hash(queues, row.sharding_key)
    fitting = [
        queue
        for queue in queues
        if queue.queue_id == row.queue_id and (row.broker is None or queue.broker == row.broker)
    ]
    if not fitting:
        where = f" of broker {row.broker!r}" if row.broker else ""
        raise UsageError(
            f"topic {row.message.topic!r} has no queue {row.queue_id}{where} that accepts messages: "
            "drop the columns queueId and broker, or write others"
        )
    return fitting[0]


def _requests(rows: list[Outgoing], options: WriteOptions) -> Iterator[list[Message]]:
    """Messages that travel together, in order."""

    def is_single(row: Outgoing) -> bool:
        if row.is_single or is_retry_topic(row.message.topic):
            return True
        return options.compression != "none" and len(row.message.body) >= options.compress_from_bytes

    for single, run in groupby(rows, is_single):
        if single:
            yield from ([row.message] for row in run)
            continue
        request: list[Message] = []
        size = 0
        for row in run:
            row_bytes = item_bytes_max(row.message)
            if request and (len(request) >= REQUEST_ROWS_MAX or size + row_bytes > REQUEST_BYTES_MAX):
                yield request
                request, size = [], 0
            request.append(row.message)
            size += row_bytes
        yield request


async def _send_in_turn(
    producer: Producer, requests: list[list[Message]], queue: Queue | None, slots: asyncio.Semaphore
) -> None:
    for request in requests:
        async with slots:
            receipts = await patiently(
                lambda request=request: _send(producer, request, queue),  # type: ignore[misc]
                retries=SEND_RETRIES,
                interval_ms=SEND_RETRY_MS,
            )
        for receipt in receipts:
            if not receipt.is_ok:
                raise KappaError(
                    f"message {receipt.message_id} was stored less safely than asked ({receipt.status.name}): "
                    "check the broker's disk and followers; Spark will send it again"
                )


async def _send(producer: Producer, request: list[Message], queue: Queue | None) -> list[SendReceipt]:
    if len(request) == 1:
        return [await producer.send(request[0], queue=queue)]
    try:
        return await producer.send_batch(request, queue=queue)
    except Refused as fault:
        if fault.code != ResponseCode.MESSAGE_ILLEGAL:
            raise
        # Too much together for the limits of this broker: perhaps not each alone.
        return [await producer.send(message, queue=queue) for message in request]

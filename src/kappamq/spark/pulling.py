"""Reading one range of a queue from its broker: several pulls under way, batches in the order of the queue."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kappamq.client.aio.cluster import Cluster, PullStatus
from kappamq.client.loop_thread import LoopThread
from kappamq.errors import KappaError
from kappamq.model.message import Queue
from kappamq.spark.brokers import patiently
from kappamq.spark.decoding import Wanted, decode_batch
from kappamq.spark.offsets import describe
from kappamq.spark.options import ReadOptions
from kappamq.spark.planning import DataLost, OffsetRange, loss_message

log = logging.getLogger(__name__)

LANES: Final = 4
"""Parts of a range that are fetched at the same time."""
LANE_ROWS: Final = 8192
LANE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A part that grows over this is handed on and continued later, so that memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Records fetched of `start` to `end`; `reached` is where fetching stopped, perhaps early."""

    start: int
    end: int
    reached: int
    records: bytes
    loss: str | None = None


def read_range(range_: OffsetRange, columns: tuple[str, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Batches of a range, in order.

    Raises `DataLost` when messages of it are gone, unless the options say to go on without them.
    """
    selector = options.selector
    is_filtered = selector is not None and not selector.is_everything
    thread = LoopThread(lambda: Cluster(options.name_servers), name="kappamq spark reader")
    thread.open()
    try:
        with ThreadPoolExecutor(LANES, thread_name_prefix="kappamq-pull") as pool:

            def fetch(start: int, end: int) -> Lane:
                return thread.call(lambda cluster: fetch_lane(cluster, range_.queue, start, end, options))

            for lane in read_lanes(range_.start, range_.end, fetch, pool):
                wanted = Wanted(columns, range_.queue.broker, lane.start, min(lane.reached, lane.end), selector)
                batch = decode_batch(lane.records, wanted)
                loss = lane.loss
                if loss is None and not is_filtered and batch.num_rows < min(lane.reached, lane.end) - lane.start:
                    count = min(lane.reached, lane.end) - lane.start - batch.num_rows
                    loss = f"queue {describe([range_.queue])} has lost {count} of {lane.start} to {lane.reached}"
                if loss is not None:
                    if options.fails_on_loss:
                        raise DataLost(loss_message([loss]))
                    log.warning("messages are gone and were left out: %s", loss)
                if batch.num_rows:
                    yield batch
    finally:
        thread.close()


def read_lanes(
    start: int, end: int, fetch: Callable[[int, int], Lane], pool: ThreadPoolExecutor, *, lane_rows: int = LANE_ROWS
) -> Iterator[Lane]:
    """Lanes from `start` to `end` in order, a few of them fetched ahead."""
    under_way: deque[Future[Lane]] = deque()
    position = start
    try:
        while under_way or position < end:
            while len(under_way) < LANES and position < end:
                lane_end = min(position + lane_rows, end)
                under_way.append(pool.submit(fetch, position, lane_end))
                position = lane_end
            lane = under_way.popleft().result()
            if lane.reached < lane.end:
                under_way.appendleft(pool.submit(fetch, lane.reached, lane.end))
            yield lane
    finally:
        for future in under_way:
            future.cancel()


async def fetch_lane(cluster: Cluster, queue: Queue, start: int, end: int, options: ReadOptions) -> Lane:
    """Pull from `start` until `end` is reached or the lane is full; at least one pull's worth."""
    bodies: list[bytes] = []
    position, size, stalls = start, 0, 0
    loss: str | None = None
    while position < end and size < LANE_BYTES_MAX:
        raw = await patiently(
            lambda position=position: cluster.pull_raw(  # type: ignore[misc]
                queue,
                position,
                group=options.group,
                count_max=min(options.pull_count, end - position),
                timeout_ms=options.pull_timeout_ms,
                expression=options.expression or "*",
                expression_type=options.expression_type,
            ),
            retries=options.retries,
            interval_ms=options.retry_interval_ms,
        )
        if raw.status is PullStatus.FOUND:
            bodies.append(raw.body)
            size += len(raw.body)
        elif not raw.min_offset <= position < raw.max_offset:
            # Planning saw messages here, so they have gone since.
            lost_to = min(raw.min_offset, end) if position < raw.min_offset else end
            loss = f"queue {describe([queue])} has lost offsets {position} to {lost_to}"
            position = lost_to
            continue
        # A reset of our group moves nothing: Spark decides what is read.
        next_offset = position if raw.status is PullStatus.OFFSET_MOVED else raw.next_offset
        stalls = 0 if next_offset > position else stalls + 1
        if stalls > options.retries:
            raise KappaError(
                f"broker {queue.broker!r} answers a pull at {position} of {describe([queue])} with no progress "
                f"({raw.status.name}, next {raw.next_offset}): check the broker's log"
            )
        position = max(next_offset, position)
    return Lane(start, end, position, b"".join(bodies), loss)

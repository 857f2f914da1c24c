"""How far consumer groups are behind, in messages and in seconds, as a table over time."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kappamq.admin.admin import Admin
from kappamq.admin.values import QueueLag
from kappamq.client.aio.cluster import Cluster, PullStatus
from kappamq.errors import KappaError, UsageError
from kappamq.model.message import Queue
from kappamq.model.record import decode_records
from kappamq.spark.jobs.frames import stop_signals, wait_for_signal
from kappamq.spark.options import GROUP_DEFAULT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "at timestamp, `group` string, topic string, broker string, queueId int, "
    "end bigint, committed bigint, lag bigint, lagSeconds double"
)
FORMATS: Final = ("parquet", "json")
ROWS_HELD_MAX: Final = 500_000
"""Rows that a run without an output keeps in memory."""
PULLS_MAX: Final = 16
"""Messages that are looked at at once."""

Row = tuple[datetime, str, str, str, int, int, int, int, float | None]


def build(samples: "DataFrame") -> "DataFrame":
    """A line for each group and topic: its backlog in the last sample, and the highest and the change over all."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    by_time = samples.groupBy("group", "topic", "at").agg(
        F.sum("lag").alias("lag"),
        F.max("lag").alias("worst"),
        F.max("lagSeconds").alias("lagSeconds"),
        F.count("*").alias("queues"),
    )
    last = F.max_by(F.struct("lag", "worst", "lagSeconds", "queues"), "at")
    grown = (F.max_by("lag", "at") - F.min_by("lag", "at")).alias("grown")
    return (
        by_time.groupBy("group", "topic")
        .agg(
            F.count("*").alias("samples"),
            F.max("at").alias("at"),
            last.alias("last"),
            F.max("lag").alias("lagMax"),
            F.max("lagSeconds").alias("lagSecondsMax"),
            grown,
        )
        .select("group", "topic", "at", "last.*", "samples", "lagMax", "lagSecondsMax", "grown")
        .orderBy(F.desc("lag"), "group", "topic")
    )


def run(
    spark: "SparkSession",
    nameserver: str,
    *,
    groups: tuple[str, ...] = (),
    every_seconds: float = 10,
    times: int = 1,
    output: str | None = None,
    table_format: str = "parquet",
) -> "DataFrame":
    """Sample some groups, or all; the table of the samples, one row for each group, queue and time.

    With `output` each sample is added to that directory at once. Ctrl-C and SIGTERM end the sampling early.
    """
    if table_format not in FORMATS:
        raise UsageError(f"format {table_format!r} is not known: use one of {', '.join(FORMATS)}")
    rows: list[Row] = []
    first_at: datetime | None = None
    for sample in samples_of(nameserver, groups, every_seconds=every_seconds, times=times):
        if output is None:
            rows += sample
            if len(rows) > ROWS_HELD_MAX:
                raise UsageError(f"more than {ROWS_HELD_MAX} rows were sampled: give --output, or sample less often")
        elif sample:
            first_at = first_at or sample[0][0]
            frame = spark.createDataFrame(sample, SCHEMA).coalesce(1)
            frame.write.format(table_format).mode("append").save(output)
    if output is None or first_at is None:
        return spark.createDataFrame(rows, SCHEMA)
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    return spark.read.schema(SCHEMA).format(table_format).load(output).where(F.col("at") >= F.lit(first_at))


def samples_of(nameserver: str, groups: tuple[str, ...], *, every_seconds: float, times: int) -> Iterator[list[Row]]:
    """Samples at equal distances. One that fails ends the run, unless it is a later one: that moment is left out."""
    begin = time.monotonic()
    with stop_signals() as is_asked:
        for number in range(times):
            if number and wait_for_signal(is_asked, begin + number * every_seconds - time.monotonic()):
                return
            try:
                yield asyncio.run(_sample(nameserver, groups))
            except KappaError:
                if not number:
                    raise


async def _sample(nameserver: str, groups: tuple[str, ...]) -> list[Row]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(nameserver))
        cluster = await stack.enter_async_context(Cluster(nameserver))
        slots = asyncio.Semaphore(PULLS_MAX)
        names = groups or tuple(await admin.groups.names())
        # JSON keeps milliseconds: the same time must come back.
        at = datetime.fromtimestamp(int(time.time() * 1000) / 1000, UTC)
        found = [(name, each) for name in names for each in (await admin.groups.progress(name)).queues]
        seconds = await asyncio.gather(*(_seconds_behind(cluster, slots, each) for _name, each in found))
    return [
        (at, name, *_place(each.queue), each.end, each.committed_offset, each.lag, behind)
        for (name, each), behind in zip(found, seconds, strict=True)
    ]


def _place(queue: Queue) -> tuple[str, str, int]:
    return queue.topic, queue.broker, queue.queue_id


async def _seconds_behind(cluster: Cluster, slots: asyncio.Semaphore, each: QueueLag) -> float | None:
    """Age of the oldest message that is not consumed yet; `None` when it could not be looked at."""
    if each.lag <= 0:
        return 0.0
    offset = max(each.committed_offset, 0)
    try:
        async with slots:
            pulled = await cluster.pull_raw(each.queue, offset, group=GROUP_DEFAULT, count_max=1)
            if pulled.status is PullStatus.OFFSET_MOVED:
                # What the group would read next has expired: it will go on with the oldest message there is.
                pulled = await cluster.pull_raw(each.queue, pulled.next_offset, group=GROUP_DEFAULT, count_max=1)
    except KappaError:
        return None
    oldest = next(decode_records(pulled.body), None)
    return max(time.time() - oldest.stored_at_ms / 1000, 0.0) if oldest is not None else None

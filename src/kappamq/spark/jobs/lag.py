"""How far consumer groups are behind, as a table."""

import asyncio
from typing import TYPE_CHECKING

from kappamq.admin.admin import Admin
from kappamq.admin.values import QueueLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "`group` string, topic string, broker string, queueId int, end bigint, committed bigint, lag bigint"


def build(queues: "DataFrame") -> "DataFrame":
    """Backlog of each group and topic: in all, and of its worst queue."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    return (
        queues.groupBy("group", "topic")
        .agg(F.sum("lag").alias("lag"), F.max("lag").alias("worst"), F.count("*").alias("queues"))
        .orderBy(F.desc("lag"), "group", "topic")
    )


def run(spark: "SparkSession", nameserver: str, *, groups: tuple[str, ...] = ()) -> "DataFrame":
    """Backlog of some groups, or of all."""
    rows = [
        (group, each.queue.topic, each.queue.broker, each.queue.queue_id, each.end, each.committed_offset, each.lag)
        for group, queues in asyncio.run(_ask(nameserver, groups)).items()
        for each in queues
    ]
    return build(spark.createDataFrame(rows, SCHEMA))


async def _ask(nameserver: str, groups: tuple[str, ...]) -> dict[str, tuple[QueueLag, ...]]:
    async with Admin(nameserver) as admin:
        names = groups or tuple(await admin.groups.names())
        return {group: (await admin.groups.progress(group)).queues for group in names}

"""Send archived messages again, to their topics or to another one. They keep their keys, tags, properties and ids."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from kappamq.spark.jobs.frames import write_to_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT: Final = ("topic", "body", "keys", "tags", "properties", "messageId")


def build(
    archive: "DataFrame",
    *,
    topics: tuple[str, ...] = (),
    start: datetime | None = None,
    end: datetime | None = None,
) -> "DataFrame":
    """The archived messages of some topics, stored from `start` (inclusive) to `end` (exclusive), as they are sent."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    chosen = archive
    if topics:
        chosen = chosen.where(F.col("topic").isin(*topics))
    # The day is a directory, so comparing it leaves whole directories unread.
    if start is not None:
        chosen = chosen.where((F.col("day") >= F.to_date(F.lit(start))) & (F.col("storeTimestamp") >= F.lit(start)))
    if end is not None:
        chosen = chosen.where((F.col("day") <= F.to_date(F.lit(end))) & (F.col("storeTimestamp") < F.lit(end)))
    return chosen.select(*SENT)


def run(
    spark: "SparkSession",
    nameserver: str,
    *,
    archive: str,
    topics: tuple[str, ...] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    to_topic: str | None = None,
) -> int:
    """Send the chosen messages and return their number."""
    chosen = build(spark.read.parquet(archive), topics=topics, start=start, end=end).cache()
    try:
        count = chosen.count()
        write_to_topics(chosen, nameserver, **({"topic": to_topic} if to_topic else {}))
    finally:
        chosen.unpersist()
    return count

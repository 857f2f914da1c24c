"""Send archived messages again, to their topics or to another one. They keep their keys, tags, properties and ids.

A second run of the same replay sends only what the first one did not.
"""

from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING

from kappamq.spark.jobs.frames import archived_messages, has_key
from kappamq.spark.jobs.resending import mark, send_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build(
    archive: "DataFrame",
    *,
    topics: tuple[str, ...] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    keys: tuple[str, ...] = (),
    tags: tuple[str, ...] = (),
) -> "DataFrame":
    """The archived messages of some topics, keys and tags, stored from `start` (inclusive) to `end` (exclusive)."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    chosen = archive
    if topics:
        chosen = chosen.where(F.col("topic").isin(*topics))
    # The day is a directory, so comparing it leaves whole directories unread.
    if start is not None:
        chosen = chosen.where((F.col("day") >= F.to_date(F.lit(start))) & (F.col("storeTimestamp") >= F.lit(start)))
    if end is not None:
        chosen = chosen.where((F.col("day") <= F.to_date(F.lit(end))) & (F.col("storeTimestamp") < F.lit(end)))
    if keys:
        chosen = chosen.where(has_key(keys))
    if tags:
        chosen = chosen.where(F.col("tags").isin(*tags))
    return chosen


def run(
    spark: "SparkSession",
    nameserver: str,
    *,
    archive: str,
    topics: tuple[str, ...] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    keys: tuple[str, ...] = (),
    tags: tuple[str, ...] = (),
    to_topic: str | None = None,
    name: str | None = None,
    rate: int | None = None,
    is_exact: bool = True,
    table_format: str = "parquet",
) -> int:
    """Send the chosen messages that the replay of this name has not sent yet, and return their number.

    Without a `name`, replays of the same archive to the same topic count as one.
    """
    from pyspark.sql import functions as F  # noqa: N812

    messages = archived_messages(spark, archive, table_format)
    chosen = build(messages, topics=topics, start=start, end=end, keys=keys, tags=tags)
    named = name or blake2b(f"{archive}>{to_topic or ''}".encode(), digest_size=6).hexdigest()
    marked = mark(chosen, f"replay-{named}", to=F.lit(to_topic) if to_topic else None)
    return send_once(spark, nameserver, marked, is_exact=is_exact, rate=rate)

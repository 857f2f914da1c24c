"""Sending stored messages again, each at most once under one name, however often a job is run.

A message that is sent again carries the name and the place it comes from in a property. The next run reads which
places are in the target topics already and leaves those out.
"""

import re
from typing import TYPE_CHECKING, Final

from kappamq.spark.jobs.frames import topic_table, write_to_topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SENT_AGAIN: Final = "KAPPAMQ_SENT_AGAIN"
SENT_COLUMNS: Final = ("topic", "body", "keys", "tags", "properties", "messageId")
CLOCK_SLACK_MS: Final = 3_600_000
"""Brokers' clocks may differ by this much."""
GROUP: Final = "kappamq-resend"


def mark(
    messages: "DataFrame", name: str, *, origin: "Column | None" = None, to: "Column | None" = None
) -> "DataFrame":
    """Rows to send, each with the property that says where it comes from; to the topic `to`, or to its own."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    source = origin if origin is not None else F.col("topic")
    place = F.concat_ws("/", F.lit(name), source, "broker", "queueId", "queueOffset")
    others = F.map_filter(F.col("properties"), lambda key, _value: key != SENT_AGAIN)
    properties = F.map_concat(F.coalesce(others, F.create_map()), F.create_map(F.lit(SENT_AGAIN), place))
    topic = to if to is not None else F.col("topic")
    return messages.select(
        topic.alias("topic"), "body", "keys", "tags", properties.alias("properties"), "messageId", "storeTimestamp"
    )


def unsent(marked: "DataFrame", targets: "DataFrame") -> "DataFrame":
    """Marked rows that the target topics do not hold."""
    from pyspark.sql import functions as F  # noqa: N812

    place = F.col("properties").getItem(SENT_AGAIN)
    there = targets.select(place.alias("place")).where("place is not null").distinct()
    return marked.withColumn("place", place).join(there, "place", "left_anti").select(*SENT_COLUMNS)


def send_once(
    spark: "SparkSession", nameserver: str, marked: "DataFrame", *, is_exact: bool = True, rate: int | None = None
) -> int:
    """Send the marked rows that are not there yet and return their number.

    `is_exact` sends them in a transaction: a task that Spark repeats shows nothing twice. Without, such rows are there
    twice, with equal ids. `rate` limits rows per second.
    """
    kept = marked.cache()
    try:
        fresh = _fresh(spark, nameserver, kept).cache()
        count = fresh.count()
        options = {"group": GROUP, "transactional": str(is_exact).lower()}
        if rate is not None:
            options["maxRowsPerSecond"] = str(rate)
        if count:
            # The limit holds for one task when there is no transaction, so there must be one task.
            write_to_topics(fresh if is_exact or rate is None else fresh.coalesce(1), nameserver, **options)
        fresh.unpersist()
    finally:
        kept.unpersist()
    return count


def _fresh(spark: "SparkSession", nameserver: str, marked: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    found = marked.agg(F.collect_set("topic").alias("topics"), F.min("storeTimestamp").alias("first"))
    (row,) = found.select("topics", F.unix_millis("first").alias("first_ms")).collect()
    if not row.topics:
        return marked.select(*SENT_COLUMNS)
    targets = topic_table(
        spark,
        nameserver,
        # A pattern, since a topic that does not exist yet holds nothing.
        subscribePattern="|".join(re.escape(topic) for topic in row.topics),
        includeSystemTopics="true",
        startingTimestamp=str(max(row.first_ms - CLOCK_SLACK_MS, 0)),
        startingOffsetsByTimestampStrategy="latest",
    )
    return unsent(marked, targets)

"""Keep topics as Parquet, Delta or Iceberg, by topic and day. Every message is there exactly once, for every reader.

Progress is in the checkpoint. A batch that was interrupted is repeated with the same messages, and becomes visible
once, whatever died in between.
"""

from typing import TYPE_CHECKING

from kappamq.spark.jobs.frames import topic_stream, wait_for_end
from kappamq.spark.lake.options import TARGET_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 1_000_000


def build(messages: "DataFrame") -> "DataFrame":
    """Messages with the day they were stored on (UTC sessions: the UTC day)."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    return messages.withColumn("day", F.to_date("storeTimestamp"))


def run(
    spark: "SparkSession",
    nameserver: str,
    *,
    output: str,
    checkpoint: str,
    topics: str | None = None,
    pattern: str | None = None,
    follow_seconds: int | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
    table_format: str = "parquet",
    file_bytes: int = TARGET_FILE_BYTES,
    say: "Callable[[str], None] | None" = None,
) -> int:
    """Archive what is there now and return the number of rows; with `follow_seconds` go on, one batch in that time.

    `say` is told of each batch.
    """
    subject = {"subscribePattern": pattern} if pattern is not None else {"subscribe": topics or ""}
    messages = topic_stream(spark, nameserver, maxOffsetsPerTrigger=str(rows_per_batch), **subject)
    writer = (
        build(messages)
        .writeStream.format("rocketmq_lake")
        .option("tableFormat", table_format)
        .option("targetFileBytes", str(file_bytes))
        .option("checkpointLocation", checkpoint)
    )
    if follow_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{follow_seconds} seconds")
    return wait_for_end(writer.start(output), say)

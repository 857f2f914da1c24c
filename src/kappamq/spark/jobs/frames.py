"""Topics as frames, for the jobs."""

from typing import TYPE_CHECKING, Final

from kappamq.errors import KappaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "rocketmq"


def topic_table(spark: "SparkSession", nameserver: str, **options: str) -> "DataFrame":
    """Topics as a table, from the first message to the last one there is now."""
    return spark.read.format(FORMAT).option("namesrvAddr", nameserver).options(**options).load()


def topic_stream(spark: "SparkSession", nameserver: str, **options: str) -> "DataFrame":
    """Topics as a stream, from the first message on."""
    given = {"startingOffsets": "earliest"} | options
    return spark.readStream.format(FORMAT).option("namesrvAddr", nameserver).options(**given).load()


def write_to_topics(frame: "DataFrame", nameserver: str, **options: str) -> None:
    """Send every row; each is acknowledged on return."""
    frame.write.format(FORMAT).option("namesrvAddr", nameserver).options(**options).mode("append").save()


def wait_for_end(query: "StreamingQuery") -> int:
    """Number of rows that a query read until it ended by itself. Raises what stopped it."""
    query.awaitTermination()
    fault = query.exception()
    if fault is not None:
        raise KappaError(f"the query {query.id} failed: {fault}")
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)

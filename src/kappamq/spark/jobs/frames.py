"""Topics and archives as frames, for the jobs."""

from typing import TYPE_CHECKING, Final

from kappamq.errors import KappaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "rocketmq"
WAIT_SECONDS: Final = 1
"""How long a signal may wait for Python to look at it."""


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


def archived_messages(spark: "SparkSession", path: str, table_format: str = "parquet") -> "DataFrame":
    """What `archive` has kept in a directory. Files of a table are those that its log names now."""
    reader = spark.read.option("basePath", path)
    if table_format == "delta":
        from kappamq.spark.lake.delta import file_paths

        return reader.parquet(*file_paths(path))
    if table_format == "iceberg":
        from kappamq.spark.lake.iceberg import file_paths as iceberg_paths

        return reader.parquet(*iceberg_paths(path))
    return spark.read.parquet(path)


def wait_for_end(query: "StreamingQuery") -> int:
    """Number of rows that a query read until it ended by itself, or until Ctrl-C. Raises what stopped it.

    Ending in the middle of a batch is harmless: the next run repeats it.
    """
    try:
        while not query.awaitTermination(WAIT_SECONDS):
            pass
    except KeyboardInterrupt:
        query.stop()
    fault = query.exception()
    if fault is not None:
        raise KappaError(f"the query {query.id} failed: {fault}")
    # A Connect client does not know the sum of a batch, only its parts.
    return sum(int(source["numInputRows"]) for progress in query.recentProgress for source in progress["sources"])

"""Topics and archives as frames, for the jobs."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kappamq.errors import KappaError
from kappamq.spark.lake.options import is_url

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "rocketmq"
FULL_DISK: Final = "No space left on device"
OUR_ERROR: Final = re.compile(r"^\s*kappamq\.[\w.]+: (.+)$", re.MULTILINE)
"""The last line of a Python traceback, as Spark quotes it."""
BATCH_END_SECONDS: Final = 10
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
    from kappamq.spark.lake.staging import open_files
    from kappamq.spark.lake.tables import check_format

    if not is_url(path):
        check_format(*open_files(path), "parquet")
    return spark.read.parquet(path)


def has_key(keys: tuple[str, ...]) -> "Column":
    """Whether a message has one of some keys."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    return F.arrays_overlap(F.split("keys", " "), F.array(*(F.lit(key) for key in keys)))


def reason_of(text: str) -> str:
    """One sentence of a failed query: ours if there is one in it, otherwise Spark's first."""
    if FULL_DISK in text:
        return "the disk under the checkpoint or the output is full: free space and run again, nothing is lost"
    ours = OUR_ERROR.findall(text)
    return str(ours[-1]) if ours else f"the query failed: {text.strip().splitlines()[0]}"


def wait_for_end(query: "StreamingQuery", say: Callable[[str], None] | None = None) -> int:
    """Number of rows that a query read until it ended by itself, or until Ctrl-C or SIGTERM. Raises what stopped it.

    `say` is told of each batch that had rows.
    A batch that runs is given some time to end. Cutting it short is harmless: the next run repeats it.
    """
    from pyspark.errors import StreamingQueryException

    deadline: float | None = None
    with stop_signals() as is_asked:
        try:
            told = 0
            while not query.awaitTermination(WAIT_SECONDS):
                told = _tell_batches(query, told, say) if say is not None else 0
                if is_asked.is_set():
                    deadline = deadline or time.monotonic() + BATCH_END_SECONDS
                    if not query.status["isTriggerActive"] or time.monotonic() > deadline:
                        query.stop()
        except StreamingQueryException as fault:
            raise KappaError(reason_of(str(fault))) from None
    return sum(map(_rows_of, query.recentProgress))


def _tell_batches(query: "StreamingQuery", told: int, say: Callable[[str], None]) -> int:
    """Tell of the batches behind the first `told` ones; returns how many there are now."""
    batches = query.recentProgress
    for batch in batches[told:]:
        if rows := _rows_of(batch):
            say(f"batch {batch['batchId']}: {rows} messages")
    return len(batches)


def _rows_of(batch: Any) -> int:
    """A Connect client does not know the sum of a batch, only its parts."""
    return sum(int(source["numInputRows"]) for source in batch["sources"])


def wait_for_signal(is_asked: threading.Event, seconds: float) -> bool:
    """Wait some seconds; true as soon as a signal came. Python looks at signals only between waits."""
    deadline = time.monotonic() + seconds
    while not is_asked.is_set() and (left := deadline - time.monotonic()) > 0:
        is_asked.wait(min(left, WAIT_SECONDS))
    return is_asked.is_set()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event for the signals that end a program.

    Spark's own handler would cancel the tasks that run and leave the connection to its JVM unusable.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

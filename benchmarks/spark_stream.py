"""How many messages per second does a Spark stream catch up on, archive as Parquet, and copy from topic to topic?

Our broker runs in its own process. Each round is one `availableNow` run from the first message on; the rate is that of
the whole run, and of the batches alone. Prints the median of some rounds for each way.

There are two million messages: a run costs most of a second before and after its batches, which a few hundred thousand
messages would measure instead. A batch has a fixed cost, too, so there are runs with and without a limit.

All columns of ours are twelve, one of them a map. `seven columns` tell what Spark's Kafka source tells (queue, place,
time, key and body), for comparisons with it. `from memory` is a source in Python that knows no broker and hands out one
Arrow batch of our rows again and again: what Spark itself takes for these columns and this sink.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from benchmarks.brokers import OURS, available, running
from benchmarks.results import save, spread, table
from benchmarks.spark_memory import MemorySource, save_sample
from benchmarks.spark_sink import write_rows
from kappamq.kernel import KERNEL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "benchmark-stream"
COPIES: Final = "benchmark-copies"
ROWS: Final = 2_000_000
FILLED_AT_ONCE: Final = 500_000
ROUNDS: Final = 3
BATCH_ROWS: Final = 500_000
SEVEN: Final = (
    "topic string, broker string, queueId int, queueOffset bigint, storeTimestamp timestamp, keys string, body binary"
)


@dataclass(frozen=True, slots=True)
class Way:
    """From where to where, with which columns, in batches or all at once."""

    sink: str
    schema: str | None = None
    is_limited: bool = False
    is_from_memory: bool = False


WAYS: Final = {
    "to nowhere": Way("noop"),
    "to nowhere, in batches": Way("noop", is_limited=True),
    "to nowhere, from memory": Way("noop", is_from_memory=True),
    "to nowhere, seven columns": Way("noop", SEVEN),
    "to nowhere, seven columns, in batches": Way("noop", SEVEN, is_limited=True),
    "to nowhere, seven columns, from memory": Way("noop", SEVEN, is_from_memory=True),
    "to Parquet": Way("parquet"),
    "to Parquet, from memory": Way("parquet", is_from_memory=True),
    "to Parquet, seven columns": Way("parquet", SEVEN),
    "to Parquet, seven columns, in batches": Way("parquet", SEVEN, is_limited=True),
    "to Parquet, seven columns, from memory": Way("parquet", SEVEN, is_from_memory=True),
    "to another topic, in batches": Way("rocketmq", is_limited=True),
}


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks spark_stream", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help="maxOffsetsPerTrigger where in batches")
    parser.add_argument("--way", choices=tuple(WAYS), action="append", help="only this one; may be given several times")
    parser.add_argument("--directory", type=Path, help="where the store and the checkpoints go")
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows, chosen.rounds = 20_000, 1
    ways = tuple(chosen.way or WAYS)
    available([OURS])
    from kappamq.spark.sessions import local_session

    spark = local_session("benchmark")
    spark.dataSource.register(MemorySource)
    directory = Path(mkdtemp(prefix="benchmark-stream-", dir=chosen.directory))
    figures: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    try:
        (directory / "store").mkdir()
        with running(OURS, "async", directory / "store") as broker:
            for first in range(0, chosen.rows, FILLED_AT_ONCE):
                rows = min(FILLED_AT_ONCE, chosen.rows - first)
                write_rows(spark, broker.nameserver, TOPIC, rows, chosen.body)
            save_sample(spark, broker.nameserver, TOPIC, directory / "sample")
            for number in range(-1, chosen.rounds):
                for way in ways if number % 2 == 0 else reversed(ways):
                    checkpoint = directory / f"{way} {number}"
                    rates = _run(spark, broker.nameserver, WAYS[way], checkpoint, chosen)
                    shutil.rmtree(checkpoint)
                    if number >= 0:  # The first round only warms up.
                        figures[way].append(rates)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    _print(figures)
    rates_of = {way: [{"per_second": whole, "batches_per_second": own} for whole, own in figures[way]] for way in ways}
    workload = {"rows": chosen.rows, "body_bytes": chosen.body, "batch_rows": chosen.batch_rows}
    report = {"quick": chosen.quick, "kernel": KERNEL, **workload, "ways": rates_of}
    print(save("spark_stream", report))
    return 0


def _print(figures: dict[str, list[tuple[float, float]]]) -> None:
    rows = []
    for way, rates in figures.items():
        whole, own = spread(rate for rate, _ in rates), spread(rate for _, rate in rates)
        rows.append((way, f"{whole.median:,.0f}", f"{own.median:,.0f}", f"{whole.percent:.0f} %"))
    print(table(("way", "messages per second", "batches alone", "+-"), rows))


def _run(
    spark: SparkSession, nameserver: str, way: Way, checkpoint: Path, chosen: argparse.Namespace
) -> tuple[float, float]:
    rows: int = chosen.rows
    if way.is_from_memory:
        stream = spark.readStream.format(MemorySource.name())
        stream = stream.option("path", str(checkpoint.parent / "sample")).option("rows", str(rows))
    else:
        stream = spark.readStream.format("rocketmq").option("namesrvAddr", nameserver)
        stream = stream.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    if way.is_limited:
        stream = stream.option("maxOffsetsPerTrigger", str(chosen.batch_rows))
    if way.schema is not None:
        stream = stream.schema(way.schema)
    writer = stream.load().writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer = writer.format(way.sink)
    if way.sink == "parquet":
        writer = writer.option("path", str(checkpoint / "files"))
    elif way.sink == "rocketmq":
        writer = writer.option("namesrvAddr", nameserver).option("topic", COPIES)
    started = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    seconds = time.perf_counter() - started
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    read = sum(each["numInputRows"] for each in progress)
    if read != rows:
        raise AssertionError(f"{read} of {rows} messages were read")
    return rows / seconds, rows / (sum(each["durationMs"]["addBatch"] for each in progress) / 1000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

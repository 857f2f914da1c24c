"""How many messages per second does a Spark stream catch up on, archive as Parquet, and copy from topic to topic?

Our broker runs in its own process. Each round is one `availableNow` run from the first message on; the rate is that of
the whole run, and of the batches alone. Prints the median of some rounds for each way.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from benchmarks.brokers import OURS, available, running
from benchmarks.results import save, spread, table
from benchmarks.spark_sink import write_rows
from kappamq.kernel import KERNEL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "benchmark-stream"
COPIES: Final = "benchmark-copies"
ROWS: Final = 500_000
ROUNDS: Final = 5
BATCH_ROWS: Final = 250_000
WAYS: Final = ("to nowhere", "to Parquet", "to another topic")


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks spark_stream", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help="maxOffsetsPerTrigger; 0 for no limit")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; may be given several times")
    parser.add_argument("--directory", type=Path, help="where the store and the checkpoints go")
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows, chosen.rounds = 20_000, 1
    ways = tuple(chosen.way or WAYS)
    available([OURS])
    from kappamq.spark.sessions import local_session

    spark = local_session("benchmark")
    directory = Path(mkdtemp(prefix="benchmark-stream-", dir=chosen.directory))
    figures: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    try:
        (directory / "store").mkdir()
        with running(OURS, "async", directory / "store") as broker:
            write_rows(spark, broker.nameserver, TOPIC, chosen.rows, chosen.body)
            for number in range(-1, chosen.rounds):
                for way in ways if number % 2 == 0 else reversed(ways):
                    checkpoint = directory / f"{way[3:]} {number}"
                    rates = _run(spark, broker.nameserver, way, checkpoint, chosen)
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
    spark: SparkSession, nameserver: str, way: str, checkpoint: Path, chosen: argparse.Namespace
) -> tuple[float, float]:
    rows: int = chosen.rows
    stream = (
        spark.readStream.format("rocketmq")
        .option("namesrvAddr", nameserver)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
    )
    if chosen.batch_rows:
        stream = stream.option("maxOffsetsPerTrigger", str(chosen.batch_rows))
    writer = stream.load().writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if way == "to nowhere":
        writer = writer.format("noop")
    elif way == "to Parquet":
        writer = writer.format("parquet").option("path", str(checkpoint / "files"))
    else:
        writer = writer.format("rocketmq").option("namesrvAddr", nameserver).option("topic", COPIES)
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

"""How many rows per second does Spark write to a topic, each of them acknowledged?

Our broker runs in its own process; rows come from `spark.range`. Prints the median of some rounds for each way.
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
from kappamq.kernel import KERNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "benchmark-sink"
ROWS: Final = 500_000
ROUNDS: Final = 5


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks spark_sink", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="where the stores go")
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows, chosen.rounds = 20_000, 1
    available([OURS])
    from kappamq.spark.sessions import local_session

    spark = local_session("benchmark")
    figures: dict[str, list[float]] = {}
    try:
        for flush in ("async", "durable"):
            directory = Path(mkdtemp(prefix="benchmark-sink-", dir=chosen.directory))
            try:
                with running(OURS, flush, directory) as broker:
                    for way, rates in _measure(spark, broker.nameserver, chosen).items():
                        figures[f"{flush}, {way}"] = rates
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    finally:
        spark.stop()
    rows = [(way, f"{spread(rates).median:,.0f}", f"{spread(rates).percent:.0f} %") for way, rates in figures.items()]
    print(table(("way", "rows per second", "+-"), rows))
    report = {"quick": chosen.quick, "kernel": KERNEL, "rows": chosen.rows, "body_bytes": chosen.body, "ways": figures}
    print(save("spark_sink", report))
    return 0


def _measure(spark: SparkSession, nameserver: str, chosen: argparse.Namespace) -> dict[str, list[float]]:
    frames = _frames(spark, chosen.rows, chosen.body)
    rates: dict[str, list[float]] = {way: [] for way in frames}
    for frame in frames.values():
        _write(frame.limit(1000), nameserver)
    for number in range(chosen.rounds):
        for way, frame in frames.items() if number % 2 == 0 else reversed(frames.items()):
            started = time.perf_counter()
            _write(frame, nameserver)
            rates[way].append(chosen.rows / (time.perf_counter() - started))
    return rates


def _frames(spark: SparkSession, rows: int, body: int) -> dict[str, DataFrame]:
    base = spark.range(rows, numPartitions=2).selectExpr(
        f"repeat('x', {body}) AS body", "concat('key-', id) AS keys", "'t' AS tags", "id"
    )
    return {
        "keys and tags": base.drop("id"),
        "with a map": base.selectExpr("body", "keys", "tags", "map('shop', 'a', 'number', string(id)) AS properties"),
    }


def write_rows(spark: SparkSession, nameserver: str, topic: str, rows: int, body: int) -> None:
    """Fill a topic."""
    _write(_frames(spark, rows, body)["keys and tags"], nameserver, topic)


def _write(frame: DataFrame, nameserver: str, topic: str = TOPIC) -> None:
    writer = frame.write.format("rocketmq").option("namesrvAddr", nameserver).option("topic", topic)
    writer.mode("append").save()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

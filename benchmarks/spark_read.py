"""How many messages per second does Spark read from a topic: by pulling, from files, and decoding alone?

One broker in this process, bodies of a fixed size, a `noop` sink. Prints one line of JSON for each way.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kappamq.testing import ClusterAddresses

TOPIC: Final = "benchmark"
PROJECTION: Final = "queueOffset bigint, body binary"
SEND_BATCH: Final = 500


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks spark_read", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", "--rows", type=int, default=500_000)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few messages, one round")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages, chosen.rounds = 20_000, 1
    from kappamq.spark.sessions import local_session
    from kappamq.testing import start_cluster

    with start_cluster() as cluster:
        _send(cluster, chosen.messages, chosen.body)
        _measure_decoder(cluster, chosen.messages, chosen.body, chosen.rounds)
        spark = local_session("benchmark")
        try:
            for way, schema, options in _ways(cluster):
                _measure(way, lambda s=schema, o=options: _read(spark, s, o), chosen)  # type: ignore[misc]
        finally:
            spark.stop()
    return 0


def _ways(cluster: ClusterAddresses) -> list[tuple[str, str | None, dict[str, str]]]:
    pull = {"namesrvAddr": cluster.nameserver, "subscribe": TOPIC}
    files = {"mode": "files", "storePath": str(cluster.data / "broker-a"), "subscribe": TOPIC, "minPartitions": "4"}
    return [
        ("pull, all columns", None, pull),
        ("pull, two columns", PROJECTION, pull),
        ("files, all columns", None, files),
        ("files, two columns", PROJECTION, files),
    ]


def _read(spark: SparkSession, schema: str | None, options: dict[str, str]) -> DataFrame:
    reader = spark.read.format("rocketmq").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def _measure(way: str, frame: Callable[[], DataFrame], chosen: argparse.Namespace) -> None:
    best = float("inf")
    for _ in range(chosen.rounds):
        started = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        best = min(best, time.perf_counter() - started)
    _report(way, chosen.messages, chosen.body, best)


def _measure_decoder(cluster: ClusterAddresses, messages: int, body: int, rounds: int) -> None:
    """The decoder alone, on one segment, without Spark."""
    from kappamq.spark.columns import COLUMNS
    from kappamq.spark.log_files import plan_store, read_slice
    from kappamq.spark.options import parse_read_options
    from kappamq.spark.pushdown import Narrowing

    given = {"mode": "files", "storePath": str(cluster.data / "broker-a"), "subscribe": TOPIC}
    options = parse_read_options(given, is_stream=False)
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for partition in plan_store(options, Narrowing()):
            for _batch in read_slice(partition, COLUMNS, options):
                pass
        best = min(best, time.perf_counter() - started)
    _report("decode files, no Spark", messages, body, best)


def _send(cluster: ClusterAddresses, messages: int, body: int) -> None:
    import kappamq

    payload = bytes(65 + number % 26 for number in range(body))
    with kappamq.Producer(cluster.nameserver, group="benchmark") as producer:
        for first in range(0, messages, SEND_BATCH):
            numbers = range(first, min(first + SEND_BATCH, messages))
            producer.send_batch([kappamq.Message(TOPIC, payload, tags="t", keys=f"key-{n}") for n in numbers])


def _report(way: str, messages: int, body: int, seconds: float) -> None:
    figures = {"way": way, "messages": messages, "body_bytes": body, "per_second": round(messages / seconds)}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))

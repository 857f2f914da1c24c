"""`mode=files` against `mode=pull` on many messages: the same rows, in every column.

    python -m benchmarks.spark_files_equal 1000000

Each row is reduced to a hash of all its columns; both sides must have the same number of rows, the same sum of hashes
and no row that the other lacks.
"""

import sys
import time
from typing import TYPE_CHECKING

import kappamq
from kappamq.spark.columns import COLUMNS
from kappamq.testing import ClusterAddresses, start_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 200
TOPIC = "equal"
WAVE = 400


def send(cluster: ClusterAddresses, count: int) -> None:
    """Messages of differing sizes, with keys, tags and properties."""
    with kappamq.Producer(cluster.nameserver, group="equal") as producer:
        for first in range(0, count, BATCH):
            producer.send_batch(
                [
                    kappamq.Message(
                        TOPIC,
                        b"%d" % number + b"." * (number % WAVE),
                        tags=f"t{number % 5}",
                        keys=f"k{number}",
                        properties={"number": str(number)},
                    )
                    for number in range(first, min(first + BATCH, count))
                ]
            )


def hashed(frame: "DataFrame") -> "DataFrame":
    """One number for each row, of all its columns."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    columns = [F.to_json("properties") if name == "properties" else F.col(name) for name in COLUMNS]
    return frame.select(F.xxhash64(*columns).alias("row"))


def compare(spark: "SparkSession", cluster: ClusterAddresses) -> tuple[int, int]:
    """Number of rows, and number of rows that only one side has."""
    paths = ",".join(str(cluster.data / broker) for broker in sorted(cluster.brokers))
    reader = spark.read.format("rocketmq").option("subscribe", TOPIC)
    pulled = hashed(reader.option("namesrvAddr", cluster.nameserver).load())
    stored = spark.read.format("rocketmq").options(subscribe=TOPIC, mode="files", storePath=paths, minPartitions="8")
    files = hashed(stored.load())
    different = pulled.exceptAll(files).unionAll(files.exceptAll(pulled)).count()
    return pulled.count(), different


def main(count: int) -> int:
    """Exit code 0 when both sides are equal."""
    from kappamq.spark.sessions import local_session

    with start_cluster(brokers=2) as cluster:
        started = time.perf_counter()
        send(cluster, count)
        print(f"{count} messages sent in {time.perf_counter() - started:.1f} s", flush=True)
        spark = local_session("files equal pulls")
        started = time.perf_counter()
        rows, different = compare(spark, cluster)
        print(f"{rows} rows, {different} that only one side has, in {time.perf_counter() - started:.1f} s")
        spark.stop()
    return 0 if rows == count and different == 0 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))

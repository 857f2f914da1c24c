"""Reading the files of brokers gives what pulling from them gives."""

from pyspark.sql import SparkSession

from benchmarks import spark_files_equal
from kappamq.testing import ClusterAddresses
from tests.spark.reading import Read, Send, numbers

MANY = 50_000


def test_files_equal_pulls(read: Read, send: Send, cluster: ClusterAddresses) -> None:
    send(400)
    paths = ",".join(str(cluster.data / broker) for broker in sorted(cluster.brokers))
    order = ("broker", "queueId", "queueOffset")
    pulled = [row.asDict() for row in read().orderBy(*order).collect()]
    files = [row.asDict() for row in read(namesrvAddr=None, mode="files", storePath=paths).orderBy(*order).collect()]
    assert len(files) == 400
    assert files == pulled


def test_files_equal_pulls_in_every_column_of_many(spark: SparkSession, cluster: ClusterAddresses) -> None:
    """`python -m benchmarks.spark_files_equal` does the same with a million."""
    spark_files_equal.send(cluster, MANY)
    assert spark_files_equal.compare(spark, cluster) == (MANY, 0)


def test_files_in_many_tasks_with_filter_and_projection(read: Read, send: Send, cluster: ClusterAddresses) -> None:
    send(90)
    paths = ",".join(str(cluster.data / broker) for broker in sorted(cluster.brokers))
    frame = read("body binary", mode="files", storePath=paths, minPartitions="3", tagExpression="t2")
    assert numbers(frame) == list(range(2, 90, 3))

"""Reading the files of brokers gives what pulling from them gives."""

from pyspark.sql import SparkSession

from benchmarks import spark_files_equal
from kappamq.testing import ClusterAddresses
from tests.spark.processes import wait_until
from tests.spark.reading import Read, Send, numbers

MANY = 50_000


def stores(read: Read, cluster: ClusterAddresses, count: int) -> str:
    """Where the brokers keep their files, when so many messages of the topic are in them: entries of queues follow
    what a pull sees within a moment."""
    paths = ",".join(str(cluster.data / broker) for broker in sorted(cluster.brokers))
    wait_until(lambda: read("queueId int", namesrvAddr=None, mode="files", storePath=paths).count() == count)
    return paths


def test_files_equal_pulls(read: Read, send: Send, cluster: ClusterAddresses) -> None:
    send(400)
    paths = stores(read, cluster, 400)
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
    paths = stores(read, cluster, 90)
    frame = read("body binary", namesrvAddr=None, mode="files", storePath=paths, minPartitions="3", tagExpression="t2")
    assert numbers(frame) == list(range(2, 90, 3))

"""Topics as tables: Spark reads and writes them as `format("rocketmq")`, and jobs are built on that.

Importing this package loads nothing of Spark: executors and the discovery of data sources import it often.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make `format("rocketmq")` known to a session whose Python does not discover `pyspark_rocketmq` by itself."""
    from kappamq.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)

"""Topics as tables: Spark reads and writes them as `format("rocketmq")`, and jobs are built on that.

Importing this package loads nothing of Spark: executors and the discovery of data sources import it often.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the formats `rocketmq` and `rocketmq_lake` known to a session that does not discover them by itself."""
    from kappamq.spark.lake.source import LakeSource
    from kappamq.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(LakeSource)

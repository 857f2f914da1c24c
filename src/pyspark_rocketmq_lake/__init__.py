"""Spark finds its data source `rocketmq_lake` here by the name of the package. It is in `kappamq.spark.lake`."""

from kappamq.spark.lake.source import LakeSource as DefaultSource

__all__ = ["DefaultSource"]

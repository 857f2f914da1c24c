"""Spark finds its data source `rocketmq` here by the name of the package. The source is in `kappamq.spark`."""

from kappamq.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]

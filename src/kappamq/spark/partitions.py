"""Tasks as Spark plans them."""

import logging
from collections.abc import Mapping

from pyspark.sql.datasource import InputPartition

from kappamq.model.message import Queue
from kappamq.spark.offsets import QueueOffsets
from kappamq.spark.options import ReadOptions
from kappamq.spark.planning import Bounds, OffsetRange, plan_ranges, split_ranges

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task: a range of one queue."""

    def __init__(self, range_: OffsetRange) -> None:
        super().__init__(range_)
        self.range = range_


def plan_partitions(
    begin: QueueOffsets, end: QueueOffsets, held: Mapping[Queue, Bounds], options: ReadOptions
) -> list[InputPartition]:
    """Tasks that read from `begin` to `end`. Raises `DataLost` as the options say."""
    plan = plan_ranges(begin, end, held, fails_on_loss=options.fails_on_loss)
    for loss in plan.losses:
        log.warning("messages are gone and are left out: %s", loss)
    pieces = split_ranges(
        plan.ranges, partitions_min=options.partitions_min, partition_rows_max=options.partition_rows_max
    )
    return [RangePartition(range_) for range_ in pieces]

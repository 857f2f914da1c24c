"""Planning a table: which ranges of which queues, after what Spark's filters leave."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from kappamq.spark.brokers import Brokers
from kappamq.spark.offsets import AtTime, End
from kappamq.spark.options import ReadOptions
from kappamq.spark.partitions import plan_partitions
from kappamq.spark.pushdown import Narrowing, narrow, narrow_offsets


def plan_table(options: ReadOptions, narrowing: Narrowing | None) -> list[InputPartition]:
    """Tasks that read the table."""
    if options.mode == "files":
        from kappamq.spark.log_files import plan_store

        return list(plan_store(options, narrowing or Narrowing()))
    with Brokers(options) as brokers:
        held = brokers.bounds(brokers.queues())
        begin = brokers.resolve(options.start or End.EARLIEST, held, late_fails=options.late_start_fails)
        end = brokers.resolve(options.end, held)
        if narrowing is not None:
            held = {queue: bounds for queue, bounds in held.items() if narrowing.allows(queue)}
            begin, end = narrow_offsets(
                {queue: begin[queue] for queue in held},
                {queue: end[queue] for queue in held},
                narrowing,
                lambda at_ms: brokers.resolve(AtTime(at_ms), held),
            )
    return plan_partitions(begin, end, held, options)


def filter_at_broker(options: ReadOptions, filters: Iterable[Any]) -> ReadOptions:
    """Options that let brokers select by tag, if Spark's filters name tags and the user has no filter of his own."""
    expression = narrow(filters).tag_expression
    if expression is None or options.expression is not None:
        return options
    return replace(options, expression=expression)

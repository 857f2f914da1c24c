"""Planning a table: which ranges of which queues, after what Spark's filters leave."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from kappamq.model.message import Queue
from kappamq.spark.brokers import Brokers
from kappamq.spark.offsets import AtTime, End, QueueOffsets
from kappamq.spark.options import ReadOptions
from kappamq.spark.partitions import plan_partitions
from kappamq.spark.planning import Bounds
from kappamq.spark.pushdown import Narrowing, narrow


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
            begin, end = _narrowed(begin, end, held, narrowing, brokers)
    return plan_partitions(begin, end, {queue: held[queue] for queue in end}, options)


def filter_at_broker(options: ReadOptions, filters: Iterable[Any]) -> ReadOptions:
    """Options that let brokers select by tag, if Spark's filters name tags and the user has no filter of his own."""
    expression = narrow(filters).tag_expression
    if expression is None or options.expression is not None:
        return options
    return replace(options, expression=expression)


def _narrowed(
    begin: QueueOffsets, end: QueueOffsets, held: dict[Queue, Bounds], narrowing: Narrowing, brokers: Brokers
) -> tuple[QueueOffsets, QueueOffsets]:
    chosen = {queue: held[queue] for queue in end if narrowing.allows(queue)}
    first = {queue: max(begin[queue], narrowing.offset_from) for queue in chosen}
    last = {queue: end[queue] for queue in chosen}
    if narrowing.offset_to is not None:
        last = {queue: min(at, narrowing.offset_to) for queue, at in last.items()}
    if narrowing.stored_from_ms is not None:
        found = brokers.resolve(AtTime(narrowing.stored_from_ms), chosen)
        first = {queue: max(at, found[queue]) for queue, at in first.items()}
    if narrowing.stored_to_ms is not None:
        found = brokers.resolve(AtTime(narrowing.stored_to_ms + 1), chosen)
        last = {queue: min(at, found[queue]) for queue, at in last.items()}
    # What the filters exclude cannot be lost.
    last = {queue: max(last[queue], first[queue]) for queue in chosen}
    first = {queue: min(first[queue], last[queue]) for queue in chosen}
    return first, last

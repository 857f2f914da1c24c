"""The sink `rocketmq_lake`: what Spark calls to keep a stream in a lake.

Tasks write Parquet files out of sight. The driver makes them visible when Spark commits the batch, and can do so again
after a crash: a batch that is there already changes nothing. Spark imports this module in every session, so what writes
files is imported where it is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from kappamq.errors import KappaError, UsageError
from kappamq.spark.lake.options import LakeOptions, parse_lake_options, placed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kappamq.spark.lake.staging import StagedFile


@dataclass
class Staged(WriterCommitMessage):
    """What one task has written."""

    query: str
    partition: int
    files: "list[StagedFile]" = field(default_factory=list)


class LakeSource(DataSource):
    """`stream.writeStream.format("rocketmq_lake").option("tableFormat", "delta").start("/data/lake")`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_lake"

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name.
        if overwrite:
            raise UsageError("a lake is only added to: use outputMode('append')")
        options = parse_lake_options(self.options)
        missing = [name for name in options.partition_columns if name not in schema.names]
        if missing:
            raise UsageError(
                f"rows have no column {missing[0]!r}, by which files are to be kept: "
                "add it, or set the option partitionColumns"
            )
        return LakeWriter(placed(options))


class LakeWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: LakeOptions) -> None:
        self.options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        from kappamq.spark.lake.staging import Staging, write_staged
        from kappamq.spark.sink import BATCH_ID_PROPERTY, QUERY_ID_PROPERTY

        context = TaskContext.get()
        if context is None:
            raise KappaError("no task context: this writer runs in a Spark task only")
        query, batch = context.getLocalProperty(QUERY_ID_PROPERTY), context.getLocalProperty(BATCH_ID_PROPERTY)
        if query is None or batch is None:
            raise KappaError("Spark does not tell the query and batch of this task: use pyspark 4.2 or later")
        staging = Staging(self.options.path, query, int(batch))
        # Tasks of a driver that died may still write: their files must not be ours.
        name = f"{context.partitionId():05d}-{context.taskAttemptId()}-{uuid4().hex[:8]}"
        # Iceberg looks for the values of partition columns inside of files, Delta and Hive's directories outside.
        keeps = self.options.format == "iceberg"
        files = write_staged(iterator, staging, name, self.options.partition_columns, keeps_columns=keeps)
        return Staged(query, context.partitionId(), files)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as Spark calls it.
        from kappamq.spark.lake.staging import Staging
        from kappamq.spark.lake.tables import open_table

        tasks = sorted(
            (message for message in messages if isinstance(message, Staged)), key=lambda staged: staged.partition
        )
        if not tasks:
            return
        files = [file for task in tasks for file in task.files]
        open_table(self.options).commit(Staging(self.options.path, tasks[0].query, batchId), files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as Spark calls it.
        """Nothing: also called after a commit that failed half way. The repetition of the batch cleans up."""

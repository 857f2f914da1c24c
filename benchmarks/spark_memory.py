"""A stream source that knows no broker: what Spark and its Python workers cost by themselves.

Two tasks hand out one Arrow batch, taken from a topic before, as often as there are rows to give.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from kappamq.spark.columns import COLUMNS, DDL, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SAMPLE_ROWS: Final = 8192
TASKS: Final = 2


def save_sample(spark: SparkSession, nameserver: str, topic: str, path: Path) -> None:
    """Keep one batch of a topic, as its readers make it."""
    reader = spark.read.format("rocketmq").option("namesrvAddr", nameserver).option("subscribe", topic)
    schema = arrow_schema(COLUMNS)
    # Not `limit`, which breaks off workers that then complain.
    rows = reader.load().where(f"queueId = 0 AND queueOffset < {SAMPLE_ROWS}")
    batch = rows.toArrow().cast(schema).combine_chunks().to_batches()[0]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)


class MemorySource(DataSource):
    """Options: `path` of the sample, and how many `rows` to give."""

    @classmethod
    def name(cls) -> str:
        return "benchmark_memory"

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        return MemoryStreamReader(self.options["path"], int(self.options["rows"]), tuple(schema.names))


class MemoryStreamReader(DataSourceStreamReader):
    """One batch of all rows."""

    def __init__(self, path: str, rows: int, columns: tuple[str, ...]) -> None:
        self.path = path
        self.rows = rows
        self.columns = columns

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        return {"row": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark allows both.
        return {"row": self.rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        rows = end["row"] - start["row"]
        return [InputPartition(rows * (task + 1) // TASKS - rows * task // TASKS) for task in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(pa.memory_map(self.path)) as file:
            batch = file.get_batch(0).select(self.columns)
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema(self.columns))
        left: int = partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to keep."""

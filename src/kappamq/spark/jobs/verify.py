"""Check every record of commit logs: sizes, positions and checksums, one task for each segment."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kappamq.errors import CorruptRecord
from kappamq.model.record import BLANK_BYTES, BLANK_MAGIC, RECORD_BYTES_MIN, decode_mark, verify_record
from kappamq.spark.store_files import StoreFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "path string, records bigint, bytes bigint, damagedAt bigint, damage string"


def verify_segment(path: Path) -> dict[str, object]:
    """Number and bytes of the records of one segment, and the first damage if there is any.

    The log ends at the first bytes that are all zero: what a file has behind them was never written.
    """
    start = int(path.name)
    records = at = 0
    damage: CorruptRecord | None = None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        # One copy of a segment at a time: slices of a mapping are copies anyway.
        view = memoryview(mapped)
        try:
            while at + BLANK_BYTES <= len(view):
                size, magic = decode_mark(view, at)
                if magic == BLANK_MAGIC or (size == 0 and magic == 0):
                    break
                try:
                    at += verify_record(view[at : at + max(size, RECORD_BYTES_MIN)], 0, log_offset=start + at)
                except CorruptRecord as fault:
                    damage = fault
                    break
                records += 1
        finally:
            view.release()
    return {
        "path": str(path),
        "records": records,
        "bytes": at,
        "damagedAt": start + at if damage is not None else None,
        "damage": str(damage) if damage is not None else None,
    }


def build(segments: "DataFrame") -> "DataFrame":
    """What verifying each `path` says; runs where the files are."""
    return segments.select("path").mapInArrow(_verify_batches, SCHEMA)


def run(spark: "SparkSession", store: Path) -> "DataFrame":
    """One row for each segment of a store directory."""
    paths = [(str(segment.path),) for segment in StoreFiles(store).segments]
    segments = spark.createDataFrame(paths, "path string").repartition(max(len(paths), 1), "path")
    return build(segments).orderBy("path")


def _verify_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    kind = pa.schema(
        [
            ("path", pa.string()),
            ("records", pa.int64()),
            ("bytes", pa.int64()),
            ("damagedAt", pa.int64()),
            ("damage", pa.string()),
        ]
    )
    for batch in batches:
        rows = [verify_segment(Path(path)) for path in batch.column("path").to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=kind)

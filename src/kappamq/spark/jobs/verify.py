"""Check every record of commit logs: sizes, positions and checksums, one task for each segment."""

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from kappamq.errors import CorruptRecord
from kappamq.model.record import BLANK_BYTES, BLANK_MAGIC, RECORD_BYTES_MIN, decode_mark, verify_record
from kappamq.spark.store_files import StoreFiles

if TYPE_CHECKING:
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
        while at + BLANK_BYTES <= len(mapped):
            size, magic = decode_mark(mapped[at : at + BLANK_BYTES], 0)
            if magic == BLANK_MAGIC or (size == 0 and magic == 0):
                break
            try:
                at += verify_record(mapped[at : at + max(size, RECORD_BYTES_MIN)], 0, log_offset=start + at)
            except CorruptRecord as fault:
                damage = fault
                break
            records += 1
    return {
        "path": str(path),
        "records": records,
        "bytes": at,
        "damagedAt": start + at if damage is not None else None,
        "damage": str(damage) if damage is not None else None,
    }


def build(segments: "DataFrame") -> "DataFrame":
    """What verifying each `path` says; runs where the files are."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    verify = F.udf(lambda path: verify_segment(Path(path)), SCHEMA, useArrow=False)
    return segments.select(verify("path").alias("found")).select("found.*")


def run(spark: "SparkSession", store: Path) -> "DataFrame":
    """One row for each segment of a store directory."""
    paths = [(str(segment.path),) for segment in StoreFiles(store).segments]
    segments = spark.createDataFrame(paths, "path string").repartition(max(len(paths), 1), "path")
    return build(segments).orderBy("path")

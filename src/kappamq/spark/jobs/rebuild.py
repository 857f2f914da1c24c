"""Make consume queues and key index of a commit log anew, byte for byte as a broker writes them.

Records are decoded and keys hashed in one task for each segment; then one task writes a queue, and one an index file. A
broker needs this job for nothing: it derives by itself what is missing, in one process.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from struct import Struct
from typing import IO, TYPE_CHECKING, Any, Final

from kappamq.errors import CorruptRecord, UsageError
from kappamq.model.names import check_topic
from kappamq.spark.index_files import (
    INDEX_ENTRIES,
    INDEX_SLOTS,
    choose_names,
    names_by_start,
    write_index_file,
)
from kappamq.spark.log_records import DELAY_LEVELS_MS, Break, judge_breaks, live_entries, scan_log, segment_paths
from kappamq.spark.store_files import BLANK_SIZE
from kappamq.spark.store_marks import read_marks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE_FILE_BYTES: Final = 6_000_000
"""Length of a consume-queue file, RocketMQ's default."""

_ENTRY = Struct(">qiq")
_BLANK = _ENTRY.pack(0, BLANK_SIZE, 0)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was written."""

    queue_entries: int
    index_entries: int
    index_files: int


def build(records: "DataFrame") -> "DataFrame":
    """Queue entries of records (`log_records.SCHEMA`): each queue is whole, and in order, in one partition.

    Of records with the same place the newest comes first.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    entries = records.where("damage is null and queueId is not null").select(
        "topic", "queueId", "queueOffset", "logOffset", "size", "tagsCode"
    )
    order = ("topic", "queueId", "queueOffset", F.desc("logOffset"))
    return entries.repartition("topic", "queueId").sortWithinPartitions(*order)


def build_keys(records: "DataFrame", keys_before: "DataFrame", *, per_file: int) -> "DataFrame":
    """Keys of records by index file: each file is whole, and in order, in one partition.

    `keys_before` says how many keys the segments before a `segment` have.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    keys = (
        records.where("damage is null")
        .join(F.broadcast(keys_before), "segment")
        .select("logOffset", "storedAt", "before", "keysBefore", F.posexplode("hashes").alias("number", "hash"))
        .withColumn("ordinal", F.col("before") + F.col("keysBefore") + F.col("number"))
        .withColumn("file", F.expr(f"cast(ordinal div {per_file} as int)"))
    )
    return keys.select("file", "ordinal", "hash", "logOffset", "storedAt")


def write_queues(entries: Iterable[Any], output: Path, *, file_bytes: int = QUEUE_FILE_BYTES) -> None:
    """Write the files of whole, ordered queues below `output/consumequeue`; a repeated task writes them again."""
    for (topic, queue_id), rows in groupby(entries, lambda row: (row[0], row[1])):
        check_topic(topic)
        directory = output / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True, exist_ok=True)
        _write_queue(live_entries(rows), directory, file_bytes)


def _write_queue(rows: Iterable[Any], directory: Path, file_bytes: int) -> None:
    per_file = file_bytes // _ENTRY.size
    expected: int | None = None
    file: IO[bytes] | None = None
    try:
        for _, _, offset, log_offset, size, code in rows:
            if expected is not None and offset != expected:
                raise CorruptRecord(
                    f"queue {directory} lacks offset {expected}: the log is not whole", log_offset=log_offset
                )
            if file is None or offset % per_file == 0:
                if file is not None:
                    file.close()
                first = offset - offset % per_file
                file = (directory / f"{first * _ENTRY.size:020d}").open("wb")
                file.truncate(per_file * _ENTRY.size)
                file.write(_BLANK * (offset - first))
            file.write(_ENTRY.pack(log_offset, size, code))
            expected = offset + 1
    finally:
        if file is not None:
            file.close()


def run(
    spark: "SparkSession",
    store: Path,
    *,
    output: Path,
    file_bytes: int | None = None,
    index_slots: int = INDEX_SLOTS,
    index_entries: int = INDEX_ENTRIES,
    has_index: bool = True,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
) -> Rebuilt:
    """Write queues and index of `store/commitlog` to `output/consumequeue` and `output/index`, which must not exist.

    `file_bytes` is the length of a queue file; the store's own, if it has any, and RocketMQ's otherwise. Raises
    `CorruptRecord` for a log that is damaged.
    """
    store, output = store.absolute(), output.absolute()  # Executors have working directories of their own.
    for name in ("consumequeue", *(("index",) if has_index else ())):
        if (output / name).exists():
            raise UsageError(f"{output / name} exists already: choose another directory, or remove it")
    marks = read_marks(store)
    file_bytes = file_bytes or queue_file_bytes(store)
    scanned = scan_log(spark, segment_paths(store), delay_levels_ms=delay_levels_ms, crc_from=marks.crc_from).cache()
    try:
        end = _end_of(scanned, flushed=marks.flushed, is_clean=marks.is_clean)
        records = scanned.where(f"logOffset < {end}")
        entries = build(records)
        count = entries.count()
        (output / "consumequeue").mkdir(parents=True)
        entries.foreachPartition(lambda rows: write_queues(rows, output, file_bytes=file_bytes))
        if not has_index:
            return Rebuilt(count, 0, 0)
        names = names_by_start(store)
        return Rebuilt(count, *_write_index(spark, records, output, names, slots=index_slots, entries=index_entries))
    finally:
        scanned.unpersist()


def queue_file_bytes(store: Path) -> int:
    """Length of the consume-queue files of a store."""
    found = (path.stat().st_size for path in sorted((store / "consumequeue").glob("*/*/*")) if path.name.isdecimal())
    return next((size for size in found if size), QUEUE_FILE_BYTES)


def find_breaks(scanned: "DataFrame") -> tuple[list[Break], int]:
    """Places without a valid record, and the log offset of the last one there is (-1: none)."""
    rows = scanned.where("damage is not null").select("logOffset", "damage", "following").collect()
    last = scanned.where("damage is null").selectExpr("max(logOffset) as last").collect()[0]["last"]
    breaks = [Break(row["logOffset"], row["damage"], row["following"]) for row in rows]
    return breaks, -1 if last is None else last


def _end_of(scanned: "DataFrame", *, flushed: int, is_clean: bool) -> int:
    breaks, last_record = find_breaks(scanned)
    end, damage = judge_breaks(breaks, last_record=last_record, flushed=flushed, is_clean=is_clean)
    if damage:
        raise CorruptRecord(
            f"the log is damaged in {len(damage)} places, first at log offset {damage[0].log_offset} "
            f"({damage[0].text}): see all with `kappamq pipeline verify`, and restore the files from a copy",
            log_offset=damage[0].log_offset,
        )
    return end


def _write_index(
    spark: "SparkSession", records: "DataFrame", output: Path, known: dict[int, str], *, slots: int, entries: int
) -> tuple[int, int]:
    """Write all index files; the number of entries and of files."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    per_file = entries - 1
    sums = records.groupBy("segment").agg(F.sum(F.size("hashes")).alias("keys")).orderBy("segment").collect()
    before = list(accumulate((row["keys"] for row in sums), initial=0))
    total = before.pop()
    if not total:
        return 0, 0
    rows = [(row["segment"], count) for row, count in zip(sums, before, strict=True)]
    keys = build_keys(records, spark.createDataFrame(rows, "segment bigint, before bigint"), per_file=per_file)
    firsts = keys.where(f"ordinal % {per_file} = 0").orderBy("ordinal").select("logOffset", "storedAt").collect()
    names = choose_names([(row["logOffset"], row["storedAt"]) for row in firsts], known)
    (output / "index").mkdir()

    def write(rows: Iterable[Any]) -> None:
        for number, some in groupby(rows, lambda row: row[0]):
            ordered = ((hashed, log_offset, stored_at) for _file, _ordinal, hashed, log_offset, stored_at in some)
            write_index_file(output / "index" / names[number], ordered, slots=slots, entries=entries)

    placed = keys.repartition(len(names), "file").sortWithinPartitions("file", "ordinal")
    placed.foreachPartition(write)
    return total, len(names)

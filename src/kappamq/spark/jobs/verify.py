"""Check a whole store: records of the log, entries of consume queues, keys of the index. Changes nothing.

One task reads a segment and says what its records imply; then one task compares a queue with that, and index entries
meet the keys they stand for. In a store that is in use, or was not stopped in order, only what its checkpoint vouches
for must be there: the rest is derived again at the next start. `kappamq store check` does the same in one process.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kappamq.spark.index_files import INDEX_ENTRIES, INDEX_SLOTS, IndexFileView, file_bytes, index_paths
from kappamq.spark.jobs import rebuild
from kappamq.spark.log_records import (
    DELAY_LEVELS_MS,
    ROWS_AT_ONCE,
    Break,
    Row,
    judge_breaks,
    scan_log,
    scan_segment,
    segment_paths,
)
from kappamq.spark.queue_check import Extent, Finding, QueueReader, check_queues, check_surplus
from kappamq.spark.store_files import StoreFiles
from kappamq.spark.store_marks import EVER, StoreMarks, read_marks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "kind string, file string, offset bigint, words string"
FINDINGS_MAX: Final = 1000
"""Findings of one kind that are collected."""
STRETCHES_MAX: Final = 100
"""Damaged stretches whose keys are not reported as well."""
INDEX_SCHEMA: Final = "file string, hash int, logOffset bigint, words string"


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what is wrong."""

    segments: int
    records: int
    queues: int
    keys: int
    complete_to: int
    """Log offset below which queues and index had to be complete; `EVER`: all of them."""
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        return not self.findings


def build(records: "DataFrame", store: Path, extent: Extent) -> "DataFrame":
    """Findings about the queues of records (`log_records.SCHEMA`); runs where the files are."""

    def check(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        yield _arrow_findings(check_queues(rows, store, extent))

    return rebuild.build(records).mapInArrow(check, SCHEMA)


def _arrow_findings(findings: Iterable[Finding]) -> "pa.RecordBatch":
    import pyarrow as pa

    names = [piece.split()[0] for piece in SCHEMA.split(", ")]
    columns = list(zip(*findings, strict=True)) or [()] * len(names)
    kinds = (pa.string(), pa.string(), pa.int64(), pa.string())
    return pa.RecordBatch.from_arrays([pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)], names)


def build_index(records: "DataFrame", found: "DataFrame", extent: Extent) -> "DataFrame":
    """Findings about keys: those of `records` that no entry in `found` (`INDEX_SCHEMA`) has, and the reverse."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    def side(frame: "DataFrame", hashed: Any, *, wanted: bool, allowed: bool, file: Any) -> "DataFrame":
        marks = [F.lit(wanted).alias("wanted"), F.lit(allowed).alias("allowed"), file.cast("string").alias("file")]
        return frame.select("logOffset", hashed.alias("hash"), *marks)

    none = F.lit(None)
    real = records.where("damage is null")
    keys = side(real, F.explode("hashes"), wanted=True, allowed=True, file=none)
    tags = side(real.where("tagHash is not null"), F.col("tagHash"), wanted=False, allowed=True, file=none)
    entries = side(found.where("words is null"), F.col("hash"), wanted=False, allowed=False, file=F.col("file"))
    both = keys.unionByName(tags).unionByName(entries)
    for start, end in extent.damage[:STRETCHES_MAX]:
        both = both.where(f"not (logOffset >= {start} and logOffset < {end})")
    met = (
        both.where(f"logOffset >= {extent.log_start} and logOffset < {extent.complete_to}")
        .groupBy("logOffset", "hash")
        .agg(F.max("wanted").alias("wanted"), F.max("allowed").alias("allowed"), F.max("file").alias("file"))
        .where("(wanted and file is null) or (not allowed)")
    )
    missing = F.format_string("the key with hash %d is not indexed", "hash")
    surplus = F.format_string("an entry with hash %d names a record without that key, or no record", "hash")
    words = F.when(F.col("wanted"), missing).otherwise(surplus)
    wrong = met.select(F.lit("index"), F.coalesce("file", F.lit("index")), "logOffset", words)
    broken = found.where("words is not null").select(F.lit("index"), "file", "logOffset", "words")
    return wrong.union(broken).toDF("kind", "file", "offset", "words")


def run(
    spark: "SparkSession",
    store: Path,
    *,
    index_slots: int = INDEX_SLOTS,
    index_entries: int = INDEX_ENTRIES,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
) -> Report:
    """Check a store directory. A broker may be running on it."""
    store = store.absolute()  # Executors have working directories of their own.
    files = StoreFiles(store)
    marks = read_marks(store)
    # Names before contents: what is listed now was complete up to the checkpoint that was read before.
    segments, indexes = segment_paths(store), index_paths(store)
    complete_to = _complete_to(segments, marks)
    # Without a checkpoint of ours, what RocketMQ vouches for is what must be on disk.
    flushed = marks.flushed if marks.dispatched is not None or marks.is_clean else complete_to
    records = scan_log(spark, segments, delay_levels_ms=delay_levels_ms, crc_from=marks.crc_from).cache()
    try:
        breaks, last_record = rebuild.find_breaks(records)
        end, damage = judge_breaks(breaks, last_record=last_record, flushed=flushed, is_clean=marks.is_clean)
        records_read = records.where(f"logOffset < {end}")
        extent = Extent(
            log_start=int(segments[0].name),
            complete_to=complete_to,
            is_clean=marks.is_clean,
            damage=tuple(_stretch(each, segments) for each in damage),
            queues=marks.queues,
        )
        findings = [Finding("log", _segment_name(segments, each.log_offset), *_words(each)) for each in damage]
        findings += _missing_segments(segments)
        findings += _check_checkpoint(marks, last_record, end)
        findings += _collect(build(records_read, store, extent))
        queues = _queues_in(records_read.where(f"logOffset < {complete_to}"))
        findings += _check_other_queues(files, queues, marks, extent)
        findings += _check_index(spark, records_read, indexes, marks, extent, slots=index_slots, entries=index_entries)
        counts = records_read.where("damage is null").selectExpr("count(*) as records", "sum(size(hashes)) as keys")
        row = counts.collect()[0]
    finally:
        records.unpersist()
    return Report(len(segments), row["records"], len(queues), row["keys"] or 0, complete_to, tuple(findings))


def _complete_to(segments: list[Path], marks: StoreMarks) -> int:
    """Log offset below which queues and index must be complete."""
    if marks.is_clean:
        return EVER
    if marks.dispatched is not None:
        return marks.dispatched
    for path in reversed(segments):
        first: Row | None = next(scan_segment(path), None)
        if first is not None and first.stored_at_ms and first.stored_at_ms <= marks.rescan_ms:
            return first.segment
    return int(segments[0].name)


def _words(each: Break) -> tuple[int, str]:
    following = f"; the next one is at {each.following}" if each.following is not None else ""
    return each.log_offset, f"no valid record ({each.text}){following}"


def _segment_at(segments: list[Path], log_offset: int) -> Path:
    return max((path for path in segments if int(path.name) <= log_offset), key=lambda path: path.name)


def _segment_name(segments: list[Path], log_offset: int) -> str:
    return f"commitlog/{_segment_at(segments, log_offset).name}"


def _stretch(each: Break, segments: list[Path]) -> tuple[int, int]:
    path = _segment_at(segments, each.log_offset)
    return each.log_offset, each.following or int(path.name) + path.stat().st_size


def _missing_segments(segments: list[Path]) -> Iterator[Finding]:
    for before, after in pairwise(segments):
        end = int(before.name) + before.stat().st_size
        if end != int(after.name):
            yield Finding(
                "log", f"commitlog/{after.name}", end, f"the segment before it ends at {end}: files are missing"
            )


def _check_checkpoint(marks: StoreMarks, last_record: int, end: int) -> Iterator[Finding]:
    if marks.flushed > end:
        yield Finding("checkpoint", "kappamq.checkpoint", marks.flushed, f"the log ends before, at {end}")
    if marks.is_clean and marks.dispatched is not None and last_record >= marks.dispatched:
        words = f"the log of a store that was stopped in order has a record behind it, at {last_record}"
        yield Finding("checkpoint", "kappamq.checkpoint", marks.dispatched, words)


def _collect(frame: "DataFrame") -> list[Finding]:
    return [Finding(*row) for row in frame.orderBy("offset", "file").limit(FINDINGS_MAX).collect()]


def _queues_in(records: "DataFrame") -> set[tuple[str, int]]:
    rows = records.where("damage is null and queueId is not null").select("topic", "queueId").distinct().collect()
    return {(row["topic"], row["queueId"]) for row in rows}


def _check_other_queues(
    files: StoreFiles, queues: set[tuple[str, int]], marks: StoreMarks, extent: Extent
) -> Iterator[Finding]:
    """Queues on disk of which the log has no record."""
    if not marks.is_clean:
        return
    for topic in files.topics():
        for queue_id in files.queue_ids(topic):
            if (topic, queue_id) not in queues:
                where = f"consumequeue/{topic}/{queue_id}"
                reader = QueueReader(files.root / where)
                yield from check_surplus(reader, where, extent, start=reader.first)


def _check_index(
    spark: "SparkSession",
    records: "DataFrame",
    indexes: list[Path],
    marks: StoreMarks,
    extent: Extent,
    *,
    slots: int,
    entries: int,
) -> list[Finding]:
    present = {path.name for path in indexes}
    wrong = [
        Finding("index", f"index/{name}", last, "the checkpoint names it, but it is missing")
        for name, last in marks.index_files
        if name not in present and last >= extent.log_start
    ]
    wanted = file_bytes(slots, entries)
    sizes = {path.name: size for path in indexes if (size := path.stat().st_size) != wanted}
    for name, size in sizes.items():
        words = f"it has {size} bytes, not {wanted}: give its --index-slots and --index-entries; no key was checked"
        wrong.append(Finding("index", f"index/{name}", extent.log_start, words))
    if sizes or not indexes:
        return wrong
    paths = spark.createDataFrame([(str(path),) for path in indexes], "path string")
    is_clean = extent.is_clean

    def read(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for path in batch.column(0).to_pylist():
                yield from _read_index(Path(path), slots=slots, entries=entries, has_chains=is_clean)

    found = paths.repartition(len(indexes), "path").mapInArrow(read, INDEX_SCHEMA)
    return wrong + _collect(build_index(records, found, extent))


def _read_index(path: Path, *, slots: int, entries: int, has_chains: bool) -> "Iterator[pa.RecordBatch]":
    """Entries of a file, and rows with words for what is wrong with it."""
    import pyarrow as pa

    def batch(hashes: Any, offsets: Any, words: str | None) -> pa.RecordBatch:
        count = len(hashes)
        columns = [
            pa.array([f"index/{path.name}"] * count, pa.string()),
            pa.array(hashes, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([words] * count, pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, ["file", "hash", "logOffset", "words"])

    view = IndexFileView(path, slots=slots, entries=entries)
    for at in range(0, len(view.entries), ROWS_AT_ONCE):
        some = view.entries[at : at + ROWS_AT_ONCE]
        yield batch(some["hash"].astype("=i4"), some["log_offset"].astype("=i8"), None)
    if has_chains:
        for log_offset, words in view.chain_faults():
            yield batch([0], [log_offset], words)

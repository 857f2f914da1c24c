"""Make the consume queues of a commit log anew, one task for each segment, so that a copy of the log alone can be read.

A broker needs this job for nothing: it rebuilds its queues by itself. Topics of the system are left out, since entries
of delayed messages hold a time that only the broker's settings tell.
"""

import mmap
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from struct import Struct
from typing import IO, TYPE_CHECKING, Any, Final

from kappamq.admin.topics import is_system_topic
from kappamq.errors import CorruptRecord, UsageError
from kappamq.model.message import TRANSACTION_MASK, Flags, StoredMessage
from kappamq.model.names import check_topic
from kappamq.model.properties import Name, property_of, tags_code
from kappamq.model.record import BLANK_BYTES, BLANK_MAGIC, decode_mark, decode_record
from kappamq.spark.store_files import BLANK_SIZE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "topic string, queueId int, queueOffset bigint, logOffset bigint, size int, tagsCode bigint"
QUEUE_FILE_BYTES: Final = 6_000_000
"""Length of a consume-queue file, RocketMQ's default."""

ENTRIES_AT_ONCE: Final = 20_000

_ENTRY = Struct(">qiq")
_BLANK = _ENTRY.pack(0, BLANK_SIZE, 0)
_UNDISPATCHED: Final = (int(Flags.PREPARED), int(Flags.ROLLED_BACK))

Entry = tuple[str, int, int, int, int, int]


def scan_segment(path: Path) -> Iterator[Entry]:
    """Entries of the records of one segment, in order. Raises `CorruptRecord` for what is no record."""
    start, at = int(path.name), 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        while at + BLANK_BYTES <= len(mapped):
            size, magic = decode_mark(mapped[at : at + BLANK_BYTES], 0)
            if magic == BLANK_MAGIC or (size == 0 and magic == 0):
                return
            message = decode_record(mapped[at : at + max(size, 1)])
            if message.log_offset != start + at:
                raise CorruptRecord(
                    f"record at log offset {start + at} says it belongs to {message.log_offset}: run `verify` first",
                    log_offset=start + at,
                )
            if message.flags & TRANSACTION_MASK not in _UNDISPATCHED and not is_system_topic(message.topic):
                yield _entry(message)
            at += size


def _entry(message: StoredMessage) -> Entry:
    code = tags_code(property_of(message.properties_text, Name.TAGS))
    return message.topic, message.queue_id, message.queue_offset, message.log_offset, message.size, code


def build(segments: "DataFrame") -> "DataFrame":
    """Entries of the records in segments (`path`), so that each queue is whole, and in order, in one partition."""
    entries = segments.mapInArrow(scan_segments, SCHEMA)
    return entries.repartition("topic", "queueId").sortWithinPartitions("topic", "queueId", "queueOffset")


def scan_segments(paths: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Entries of segments, where the files are."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int64())
    names = ("topic", "queueId", "queueOffset", "logOffset", "size", "tagsCode")
    for batch in paths:
        for path in batch.column(0).to_pylist():
            entries = scan_segment(Path(path))
            while rows := list(islice(entries, ENTRIES_AT_ONCE)):
                columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, names)


def write_queues(entries: Iterable[Any], output: Path, *, file_bytes: int = QUEUE_FILE_BYTES) -> None:
    """Write the files of whole, ordered queues below `output/consumequeue`."""
    for (topic, queue_id), rows in groupby(entries, lambda row: (row[0], row[1])):
        check_topic(topic)
        directory = output / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True)
        _write_queue(rows, directory, file_bytes)


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
                file = (directory / f"{first * _ENTRY.size:020d}").open("xb")
                file.truncate(per_file * _ENTRY.size)
                file.write(_BLANK * (offset - first))
            file.write(_ENTRY.pack(log_offset, size, code))
            expected = offset + 1
    finally:
        if file is not None:
            file.close()


def run(spark: "SparkSession", store: Path, *, output: Path, file_bytes: int = QUEUE_FILE_BYTES) -> int:
    """Write the queues of `store/commitlog` to `output/consumequeue`, which must not exist, and count the entries."""
    if (output / "consumequeue").exists():
        raise UsageError(f"{output / 'consumequeue'} exists already: choose another directory, or remove it")
    segments = [str(path) for path in sorted((store / "commitlog").iterdir()) if path.name.isdecimal()]
    if not segments:
        raise UsageError(f"{store / 'commitlog'} has no segment: point at a store directory")
    paths = spark.createDataFrame([(path,) for path in segments], "path string")
    entries = build(paths.repartition(len(segments), "path")).cache()
    try:
        count = entries.count()
        entries.foreachPartition(lambda rows: write_queues(rows, output, file_bytes=file_bytes))
    finally:
        entries.unpersist()
    return count

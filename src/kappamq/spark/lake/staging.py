"""Files of a batch that nobody sees yet.

    PATH/_staging/<query>-<batch>/<partition>-…-<n>.parquet           what a task has written
    PATH/_staging/<query>-<batch>/ready-<n>.parquet                   merged to the size that is wanted
    PATH/_staging/<query>-<batch>/plan.json                           where the ready files go: from here on the batch
                                                                      is finished after a crash, not made anew

Readers of directories (Spark, pyarrow, DuckDB) leave names out that begin with an underscore.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from kappamq.spark.lake.options import is_url

FILES_OPEN_MAX: Final = 200
"""Directories that one task writes to at once; beyond it, files are closed and begun anew."""
GROUP_ROWS: Final = 65536
GROUP_BYTES: Final = 64 * 1024 * 1024
COMPRESSION: Final = "zstd"
NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file and the values of the partition columns that all of its rows have."""

    path: str
    values: Values
    rows: int
    size: int


class Staging:
    """The directory of one batch of one query."""

    def __init__(self, root: str, query: str, batch: int) -> None:
        self.query = query
        self.batch = batch
        self.files, self.root = open_files(root)
        self.directory = f"{self.root}/_staging/{query}-{batch}"

    def remove(self) -> None:
        """Also what attempts left that were killed."""
        if self.files.get_file_info(self.directory).type is fs.FileType.Directory:
            self.files.delete_dir(self.directory)

    def read_json(self, path: str) -> Any:
        """Content of a JSON file, or `None`."""
        if self.files.get_file_info(path).type is not fs.FileType.File:
            return None
        with self.files.open_input_stream(path) as file:
            return json.loads(file.read())

    def write_json(self, path: str, value: Any) -> None:
        """Replace a file as a whole."""
        fresh = f"{path}.fresh"
        with self.files.open_output_stream(fresh) as file:
            file.write(json.dumps(value).encode())
        self.files.move(fresh, path)


def open_files(root: str) -> tuple[fs.FileSystem, str]:
    """File system and path of a local directory or of a URL that pyarrow knows (`s3://`, `gs://`, `hdfs://`, …)."""
    if is_url(root):
        files, path = fs.FileSystem.from_uri(root)
    else:
        files, path = fs.LocalFileSystem(), root
    return files, path.rstrip("/")


def write_staged(
    batches: Iterable[pa.RecordBatch], staging: Staging, name: str, columns: Sequence[str], *, keeps_columns: bool
) -> list[StagedFile]:
    """Write all rows of a task, a file for each combination of the partition columns, with them or without."""
    done: list[StagedFile] = []
    under_way: dict[Values, _File] = {}
    staging.files.create_dir(staging.directory, recursive=True)
    try:
        for batch in batches:
            for values, rows in split_rows(batch, columns):
                kept = rows if keeps_columns else rows.drop_columns(list(columns))
                if values not in under_way:
                    if len(under_way) >= FILES_OPEN_MAX:
                        done += [file.close() for file in under_way.values()]
                        under_way.clear()
                    path = f"{staging.directory}/{name}-{len(done) + len(under_way)}.parquet"
                    under_way[values] = _File(staging.files, path, values, kept.schema)
                under_way[values].write(kept)
    finally:
        done += [file.close() for file in under_way.values()]
    return done


class _File:
    """A file under way; rows are gathered, since each write becomes a row group."""

    def __init__(self, files: fs.FileSystem, path: str, values: Values, schema: pa.Schema) -> None:
        self._files, self._path, self._values, self._rows = files, path, values, 0
        self._writer = pq.ParquetWriter(path, schema, filesystem=files, compression=COMPRESSION)
        self._gathered: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(rows)
        self._rows += rows.num_rows
        gathered = self._gathered
        if (
            sum(each.num_rows for each in gathered) >= GROUP_ROWS
            or sum(each.nbytes for each in gathered) >= GROUP_BYTES
        ):
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered))
            self._gathered = []

    def close(self) -> StagedFile:
        self._flush()
        self._writer.close()
        return StagedFile(self._path, self._values, self._rows, self._files.get_file_info(self._path).size)


def split_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Rows by the values of some columns, each kept in order."""
    if not batch.num_rows:
        return
    keys = pa.table({name: batch.column(name).cast(pa.string()) for name in columns})
    keys = keys.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    groups = keys.group_by(list(columns)).aggregate([("row", "list")]).to_pydict()
    combinations = list(zip(*(groups[name] for name in columns), groups["row_list"]))
    if len(combinations) == 1:
        yield tuple(combinations[0][:-1]), batch
        return
    for *values, rows in combinations:
        yield tuple(values), batch.take(pa.array(sorted(rows), pa.int64()))


def directory_of(columns: Sequence[str], values: Values) -> str:
    """Path below the root, as Hive and Spark name it."""
    pieces = (
        f"{name}={NULL_DIRECTORY if value is None else quote(value, safe=' -_.')}"
        for name, value in zip(columns, values)
    )
    return "/".join(pieces)


def merge_files(files: fs.FileSystem, sources: Sequence[str], target: str) -> None:
    """One file with the rows of several, in their order."""
    with files.open_input_file(sources[0]) as opened:
        schema = pq.read_schema(opened)
    with pq.ParquetWriter(target, schema, filesystem=files, compression=COMPRESSION) as writer:
        for source in sources:
            with files.open_input_file(source) as opened, pq.ParquetFile(opened) as parquet:
                for batch in parquet.iter_batches(batch_size=GROUP_ROWS):
                    writer.write_batch(batch)

"""Making a batch visible, once: in a directory of Parquet files, in a Delta table, or in an Iceberg table.

    PATH/_progress/<query>.json    {"batch": last one that is visible, "topics": […]}

Files of one directory that are smaller than wanted are merged first, so that many small batches do not make many files.
A directory of Parquet files has no log that could hide a file, so there the last file is replaced by a longer one: each
step is one rename, and every reader sees every row exactly once at any time.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from pyarrow import fs

from kappamq.errors import ConfigError, UsageError
from kappamq.spark.lake.options import LakeOptions
from kappamq.spark.lake.staging import StagedFile, Staging, Values, directory_of, merge_files, open_files

PROGRESS: Final = "_progress"
PART_PREFIX: Final = "part-"
NOTHING: Final = fs.FileType.NotFound
_MARKS: Final = (("delta", "_delta_log"), ("iceberg", "_table"), ("parquet", PROGRESS))
"""What only a directory of a format has; the last one is in all of them, but is written after what the others have."""


class LakeTable(Protocol):
    """One of the formats."""

    def commit(self, staging: Staging, files: Sequence[StagedFile]) -> None:
        """Make the files of a batch visible; those of a batch that is visible already are dropped."""


def open_table(options: LakeOptions) -> LakeTable:
    """The table that the options name; made by the first batch. Raises `UsageError` where one of another format is."""
    files, root = open_files(options.path)
    check_format(files, root, options.format)
    if options.format == "delta":
        from kappamq.spark.lake.delta import DeltaLake

        return DeltaLake(options)
    if options.format == "iceberg":
        from kappamq.spark.lake.iceberg import IcebergLake

        return IcebergLake(options)
    return ParquetDirectory(options)


def check_format(files: fs.FileSystem, root: str, wanted: str) -> None:
    """Raise `UsageError` for a directory of another format: in it, files are not all part of the table."""
    found = next((each for each, mark in _MARKS if files.get_file_info(f"{root}/{mark}").type is not NOTHING), wanted)
    if found != wanted:
        raise UsageError(f"{root} is kept as {found}, not as {wanted}: name that format, or use another directory")


class ParquetDirectory:
    """Files by topic and day that any reader of Parquet understands."""

    def __init__(self, options: LakeOptions) -> None:
        self._options = options

    def commit(self, staging: Staging, files: Sequence[StagedFile]) -> None:
        progress = Progress(staging)
        if not progress.is_done:
            plan_path = f"{staging.directory}/plan.json"
            plan = staging.read_json(plan_path)
            if plan is None:
                progress.check_owner(files)
                plan = self._prepare(staging, files)
                staging.write_json(plan_path, plan)
            for ready, target in plan:
                # What is no longer there was moved before a crash.
                if staging.files.get_file_info(ready).type is fs.FileType.File:
                    staging.files.create_dir(target.rpartition("/")[0], recursive=True)
                    staging.files.move(ready, target)
            progress.record(files)
        staging.remove()

    def _prepare(self, staging: Staging, files: Sequence[StagedFile]) -> list[tuple[str, str]]:
        """Files as they are to be, and where they go. Touches nothing that readers see."""
        plan: list[tuple[str, str]] = []
        for values, batch_files in by_values(files).items():
            directory = f"{staging.root}/{directory_of(self._options.partition_columns, values)}"
            number, last = _last_part(staging.files, directory)
            sources = [(file.path, file.size) for file in batch_files]
            if last is not None and last.size < self._options.file_bytes:
                sources.insert(0, (last.path, last.size))
                number -= 1
            for pieces in gather(sources, self._options.file_bytes):
                ready = f"{staging.directory}/ready-{len(plan)}.parquet"
                if len(pieces) > 1:
                    merge_files(staging.files, pieces, ready)
                else:
                    staging.files.move(pieces[0], ready)
                plan.append((ready, f"{directory}/{PART_PREFIX}{number:08d}.parquet"))
                number += 1
        return plan


class Progress:
    """How far queries are in a lake."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._path = f"{staging.root}/{PROGRESS}/{staging.query}.json"
        self._known: dict[str, Any] = staging.read_json(self._path) or {"batch": -1, "topics": []}

    @property
    def is_done(self) -> bool:
        """Whether the batch is visible already."""
        return int(self._known["batch"]) >= self._staging.batch

    def check_owner(self, files: Sequence[StagedFile]) -> None:
        """Raise `UsageError` when another query has written one of the topics: its rows would be there twice."""
        mine = _topics(files) - set(self._known["topics"])
        if not mine:
            return
        selector = fs.FileSelector(f"{self._staging.root}/{PROGRESS}", allow_not_found=True)
        for info in self._staging.files.get_file_info(selector):
            if not info.path.endswith(".json") or info.path.endswith(f"/{self._staging.query}.json"):
                continue
            other = self._staging.read_json(info.path) or {"topics": []}
            both = sorted(mine & set(other["topics"]))
            if both:
                raise UsageError(
                    f"{both[0]!r} is kept in {self._staging.root} by the query {info.base_name.removesuffix('.json')} "
                    "already: go on with its checkpoint, or use another directory"
                )

    def record(self, files: Sequence[StagedFile]) -> None:
        """The batch is visible."""
        topics = sorted({*self._known["topics"], *_topics(files)})
        self._staging.files.create_dir(f"{self._staging.root}/{PROGRESS}", recursive=True)
        self._staging.write_json(self._path, {"batch": self._staging.batch, "topics": topics})


def by_values(files: Iterable[StagedFile]) -> dict[Values, list[StagedFile]]:
    """Files that belong into the same directory."""
    found: dict[Values, list[StagedFile]] = {}
    for file in files:
        found.setdefault(file.values, []).append(file)
    return found


def gather(sources: Sequence[tuple[str, int]], file_bytes: int) -> list[list[str]]:
    """Paths with their sizes, as groups of about `file_bytes` each, in order."""
    groups: list[list[str]] = []
    size = file_bytes
    for path, bytes_ in sources:
        if size >= file_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += bytes_
    return groups


def make_ready(staging: Staging, files: Sequence[StagedFile], options: LakeOptions) -> list[tuple[StagedFile, str]]:
    """Move the files of a batch to where a table's log will name them: with the path below the root.

    Names come from query and batch, so that a repetition replaces what a crash left unnamed.
    """
    placed: list[tuple[StagedFile, str]] = []
    for values, batch_files in by_values(files).items():
        directory = directory_of(options.partition_columns, values)
        staging.files.create_dir(f"{staging.root}/{directory}", recursive=True)
        rows = {file.path: file.rows for file in batch_files}
        for pieces in gather([(file.path, file.size) for file in batch_files], options.file_bytes):
            name = f"{directory}/{PART_PREFIX}{staging.query}-{staging.batch}-{len(placed)}.parquet"
            target = f"{staging.root}/{name}"
            if len(pieces) > 1:
                merge_files(staging.files, pieces, target)
            else:
                staging.files.move(pieces[0], target)
            size = staging.files.get_file_info(target).size
            placed.append((StagedFile(target, values, sum(rows[piece] for piece in pieces), size), name))
    return placed


def lake_missing(missing: ImportError) -> ConfigError:
    """What to do without the packages for tables."""
    return ConfigError(f"this table format needs more packages ({missing}): pip install 'kappamq[lake]'")


def _topics(files: Iterable[StagedFile]) -> set[str]:
    """Values of the first partition column, which are topics unless somebody chose otherwise."""
    return {str(file.values[0]) for file in files if file.values}


def _last_part(files: fs.FileSystem, directory: str) -> tuple[int, fs.FileInfo | None]:
    """Number of the next file of a directory, and the last one it has."""
    found = files.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    parts = sorted((info for info in found if info.base_name.startswith(PART_PREFIX)), key=lambda info: info.base_name)
    if not parts:
        return 0, None
    number = parts[-1].base_name.removeprefix(PART_PREFIX).removesuffix(".parquet")
    return int(number) + 1, parts[-1]

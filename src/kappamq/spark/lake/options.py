"""Options of the sink `rocketmq_lake`."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kappamq.errors import UsageError

FORMATS: Final = ("parquet", "delta", "iceberg")
LAKE_NAMES: Final = ("path", "tableFormat", "partitionColumns", "targetFileBytes", "tableName")
TABLE_NAME: Final = "kappamq.messages"
TARGET_FILE_BYTES: Final = 128 * 1024 * 1024
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """Where rows are kept, and how."""

    path: str
    format: str = "parquet"
    partition_columns: tuple[str, ...] = ("topic", "day")
    file_bytes: int = TARGET_FILE_BYTES
    table: str = TABLE_NAME
    """Namespace and name in an Iceberg catalog."""


def placed(options: LakeOptions) -> LakeOptions:
    """The same with the full path of a local directory: each executor has a working directory of its own."""
    if is_url(options.path):
        return options
    return replace(options, path=str(Path(options.path).absolute()))


def is_url(path: str) -> bool:
    """Whether a path names a file system, such as `s3://bucket/lake`."""
    return "://" in path or path.startswith("file:")


def parse_lake_options(given: Mapping[str, str]) -> LakeOptions:
    """Options as Spark hands them on. Raises `UsageError` for unknown and wrong ones."""
    known = {name.lower(): name for name in LAKE_NAMES}
    values: dict[str, str] = {}
    for raw, value in given.items():
        name = known.get(raw.lower())
        if name is not None:
            values[name] = value.strip()
        elif raw.lower() not in _SPARKS_OWN and not raw.lower().startswith("spark."):
            close = difflib.get_close_matches(raw.lower(), known, n=1)
            hint = f"did you mean {known[close[0]]!r}?" if close else f"known are {', '.join(LAKE_NAMES)}"
            raise UsageError(f"there is no option {raw!r}: {hint}")
    if not values.get("path"):
        raise UsageError("no directory is given: pass it to start(), or set the option path")
    kind = values.get("tableFormat", "parquet").lower()
    if kind not in FORMATS:
        raise UsageError(f"tableFormat is {kind!r}: use {', '.join(FORMATS)}")
    size = values.get("targetFileBytes", str(TARGET_FILE_BYTES))
    if not (size.isdecimal() and int(size) > 0):
        raise UsageError(f"targetFileBytes is {size!r}: use a whole number of bytes")
    columns = tuple(name.strip() for name in values.get("partitionColumns", "topic,day").split(",") if name.strip())
    return LakeOptions(values["path"], kind, columns, int(size), values.get("tableName", TABLE_NAME))

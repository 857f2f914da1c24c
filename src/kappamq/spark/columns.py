"""The columns of a topic as a table: their order, their Spark and Arrow types, and projections of them."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from kappamq.errors import UsageError

ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "storeTimestamp": pa.timestamp("us", tz="UTC"),
    "bornTimestamp": pa.timestamp("us", tz="UTC"),
    "keys": pa.string(),
    "tags": pa.string(),
    "messageId": pa.string(),
    "reconsumeTimes": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
}

COLUMNS: Final = tuple(ARROW_TYPES)

SPARK_TYPES: Final[dict[str, str]] = {
    "topic": "string",
    "broker": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "storeTimestamp": "timestamp",
    "bornTimestamp": "timestamp",
    "keys": "string",
    "tags": "string",
    "messageId": "string",
    "reconsumeTimes": "int",
    "properties": "map<string,string>",
    "body": "binary",
}

NOT_NULL: Final = " not null"

DDL: Final = ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items())
"""The full schema as Spark writes it."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Schema of the batches that hold these columns; every column may be null."""
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


def check_projection(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Names of the wanted columns, in order, given `(name, Spark type)` of each field of a user's schema.

    Raises `UsageError` for a column that does not exist or that has another type: Spark would not notice. The type of a
    column that must not be null ends with `NOT_NULL`.
    """
    if not fields:
        raise UsageError(f"the schema has no column: name at least one of {', '.join(COLUMNS)}")
    for name, kind in fields:
        if name not in SPARK_TYPES:
            raise UsageError(f"a topic has no column {name!r}: it has {', '.join(COLUMNS)}")
        if kind.endswith(NOT_NULL):
            raise UsageError(f"column {name!r} may hold nulls, and so may values of a map: leave NOT NULL out")
        if kind != SPARK_TYPES[name]:
            raise UsageError(f"column {name!r} is {SPARK_TYPES[name]}, not {kind}: correct the schema, then cast")
    return tuple(name for name, _ in fields)

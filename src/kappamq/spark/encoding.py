"""From rows of a data frame to messages. Pure: what a row says, checked, and the id that it always gets."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kappamq.errors import InvalidMessage, UsageError
from kappamq.kernel import row_ids
from kappamq.kernel.client_reference import ID_DIGITS
from kappamq.model.message import Message
from kappamq.model.properties import PROPERTIES_BYTES_MAX, RESERVED, Name

COLUMNS_USED: Final = (
    "body",
    "value",
    "topic",
    "keys",
    "tags",
    "properties",
    "broker",
    "queueId",
    "shardingKey",
    "delayLevel",
    "deliverTime",
    "flag",
    "messageId",
)
COLUMNS_PASSED_OVER: Final = ("queueOffset", "storeTimestamp", "bornTimestamp", "reconsumeTimes")
"""What reading a topic gives and sending decides anew."""

_TEXT: Final = ("string",)
_NUMBER: Final = ("tinyint", "smallint", "int", "bigint")
_BODY: Final = ("binary", "string", "struct<", "array<", "map<")
_TYPES: Final = {
    "body": _BODY,
    "value": _BODY,
    "topic": _TEXT,
    "keys": ("string", "array<string>"),
    "tags": _TEXT,
    "properties": ("map<string,string>",),
    "broker": _TEXT,
    "queueId": _NUMBER,
    "shardingKey": _TEXT,
    "delayLevel": _NUMBER,
    "deliverTime": ("timestamp", "timestamp_ntz", "bigint"),
    "flag": _NUMBER,
    "messageId": _TEXT,
}
"""What Spark may call the type of each column; `<` stands for everything that begins like this."""
_NOTHING: Final = "void"
"""Type of a column that has no value at all."""

_PLAIN_COLUMNS: Final = frozenset({"body", "value", "topic", "keys", "tags", "properties", "messageId"})


@dataclass(slots=True)
class Outgoing:
    """A message, and where it wants to go. `is_single` ones cannot share a request with others."""

    message: Message
    queue_id: int | None = None
    broker: str | None = None
    sharding_key: str | None = None
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """Which write, batch and partition rows belong to: the same for every attempt of the same work."""

    write: str
    batch: int
    partition: int

    def message_id(self, row: int) -> str:
        """Id of a row."""
        return self.message_ids(row, 1)[0].as_py()  # type: ignore[no-any-return]

    def message_ids(self, first_row: int, count: int) -> pa.StringArray:
        """Ids of rows that follow each other."""
        ids = row_ids(f"{self.write}/{self.batch}/{self.partition}/".encode(), first=first_row, count=count)
        offsets = np.arange(0, len(ids) + 1, ID_DIGITS, dtype=np.int32)
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(ids))


def check_columns(columns: Sequence[str], *, topic: str | None) -> None:
    """Raise `UsageError` for rows that cannot become messages, before any is sent."""
    for name in columns:
        if name not in COLUMNS_USED and name not in COLUMNS_PASSED_OVER:
            close = difflib.get_close_matches(name, COLUMNS_USED, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "put it into properties, or into the body as JSON"
            raise UsageError(f"column {name!r} cannot be written: {hint}")
    if ("body" in columns) == ("value" in columns):
        raise UsageError("rows need exactly one of the columns body and value: select one, for example to_json(…)")
    if topic is None and "topic" not in columns:
        raise UsageError("no topic is given: set the option topic, or select a column topic")
    if "deliverTime" in columns and "delayLevel" in columns:
        raise UsageError("delayLevel and deliverTime exclude each other: select one of them")


def check_types(fields: Sequence[tuple[str, str]]) -> None:
    """Raise `UsageError` for a column, given as name and Spark type, that does not hold what messages need."""
    for name, kind in fields:
        allowed = _TYPES.get(name, (kind,))
        fits = kind in allowed or any(each.endswith("<") and kind.startswith(each) for each in allowed)
        if not fits and (kind != _NOTHING or name in ("body", "value")):
            wanted = " or ".join(each.rstrip("<") for each in allowed)
            raise UsageError(f"column {name!r} is {kind}, but must be {wanted}: cast it")


def rows_to_messages(
    batch: pa.RecordBatch, identity: RowIdentity, first_row: int, *, topic: str | None
) -> Iterator[Outgoing]:
    """One message for each row; `first_row` counts the rows of the partition before this batch."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in COLUMNS_USED}
    bodies = columns.get("body") or columns.get("value") or []
    ids = identity.message_ids(first_row, batch.num_rows).to_pylist()
    for at, body in enumerate(bodies):
        row = {name: values[at] for name, values in columns.items()}
        yield _message(row, _bytes_of(body, first_row + at), ids[at], topic)


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Rows of one topic as columns: properties in their text form, and bodies."""

    topic: str
    texts: tuple[memoryview, memoryview]
    bodies: tuple[memoryview, memoryview]
    count: int


def plain_rows(
    batch: pa.RecordBatch, identity: RowIdentity, first_row: int, *, topic: str | None, body_bytes_max: int
) -> PlainRows | None:
    """The same messages as columns, made column by column; `None` for rows that need more care.

    That is: rows for several topics or for queues of their choice, delayed ones, bodies that are no bytes or too large,
    and everything that a message may not hold.
    """
    names = set(batch.schema.names) & set(COLUMNS_USED)
    goes_to = topic or _only_topic(batch)
    body = batch.column("body" if "body" in names else "value")
    is_simple = names <= _PLAIN_COLUMNS and body.type in (pa.binary(), pa.string()) and not body.null_count
    if not is_simple or goes_to is None or not batch.num_rows:
        return None
    ids = identity.message_ids(first_row, batch.num_rows)
    if "messageId" in names:
        ids = _first_filled(batch.column("messageId"), ids)
    # The order in which a client puts them.
    pieces = [_piece(Name.UNIQUE_ID, ids), pa.scalar(f"{Name.WAIT}\x01true\x02")]
    marks = 2 * batch.num_rows
    for name, column, place in ((Name.KEYS, "keys", 0), (Name.TAGS, "tags", None)):
        if column in names:
            values = batch.column(column)
            if values.type != pa.string():
                return None
            is_filled = pc.fill_null(pc.greater(pc.binary_length(values), 0), False)
            marks += pc.sum(is_filled).as_py()
            pieces.insert(
                len(pieces) if place is None else place, pc.if_else(is_filled, _piece(name, values), pa.scalar(""))
            )
    if "properties" in names:
        found = _property_texts(batch.column("properties"))
        if found is None:
            return None
        pieces.append(found[0])
        marks += found[1]
    texts = pc.binary_join_element_wise(*pieces, pa.scalar(""))
    if not _is_plain(texts, marks) or not _fits(body, 1, body_bytes_max):
        return None
    return PlainRows(goes_to, _buffers(texts), _buffers(body), batch.num_rows)


def _only_topic(batch: pa.RecordBatch) -> str | None:
    """The topic of all rows, if they have one in common."""
    topics = batch.column("topic").unique().to_pylist() if "topic" in batch.schema.names else []
    return topics[0] or None if len(topics) == 1 else None


def _first_filled(values: pa.Array, otherwise: pa.Array) -> pa.Array:
    return pc.if_else(pc.fill_null(pc.greater(pc.binary_length(values), 0), False), values, otherwise)


def _piece(name: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(f"{name}\x01"), values, pa.scalar("\x02"), pa.scalar(""))


def _property_texts(maps: pa.Array) -> tuple[pa.Array, int] | None:
    """Text of the properties of each row, and how many there are; `None` when one of them is not allowed."""
    kind = maps.type
    if not pa.types.is_map(kind) or kind.key_type != pa.string() or kind.item_type != pa.string():
        return None
    ends = np.asarray(maps.offsets)
    counts = np.diff(ends)
    if maps.null_count and counts[np.asarray(maps.is_null())].any():
        return None
    names = maps.keys.slice(ends[0], ends[-1] - ends[0])
    values = maps.items.slice(ends[0], ends[-1] - ends[0])
    is_kept = pc.and_(
        pc.invert(pc.is_in(names, value_set=pa.array(sorted(RESERVED)))),
        pc.fill_null(pc.greater(pc.binary_length(values), 0), False),
    )
    rows = np.repeat(np.arange(len(maps)), counts)[np.asarray(is_kept, dtype=np.bool_)]
    names, values = names.filter(is_kept), values.filter(is_kept)
    if pc.any(pc.or_(pc.utf8_is_space(names), pc.utf8_is_space(values))).as_py() or not _fits(names, 1, 1 << 15):
        return None
    pieces = pc.binary_join_element_wise(names, pa.scalar("\x01"), values, pa.scalar("\x02"), pa.scalar(""))
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(maps))))).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pieces), ""), len(names)


def _is_plain(texts: pa.Array, marks: int) -> bool:
    """Whether the texts are not too long and hold no separators but their own."""
    _, data = _buffers(texts)
    octets = np.frombuffer(data, dtype=np.uint8)
    is_marked = np.count_nonzero(octets == 1) == marks and np.count_nonzero(octets == 2) == marks
    return bool(is_marked) and _fits(texts, 1, PROPERTIES_BYTES_MAX)


def _fits(values: pa.Array, least: int, most: int) -> bool:
    lengths = pc.min_max(pc.binary_length(values)).as_py()
    return not len(values) or (lengths["min"] >= least and lengths["max"] <= most)


def _buffers(values: pa.Array) -> tuple[memoryview, memoryview]:
    """Offsets and data of an array."""
    _, offsets, data = values.buffers()
    own = memoryview(offsets).cast("B")[values.offset * 4 : (values.offset + len(values) + 1) * 4]
    return own, memoryview(data if data is not None else b"").cast("B")


def _message(row: dict[str, Any], body: bytes, message_id: str, topic: str | None) -> Outgoing:
    goes_to = topic or row.get("topic")
    if not goes_to:
        raise InvalidMessage("a row has no topic: fill the column topic, or set the option topic")
    properties = _properties(row.get("properties"))
    properties[Name.UNIQUE_ID] = row.get("messageId") or message_id
    outgoing = Outgoing(
        Message(goes_to, body, row.get("tags") or None, _keys(row.get("keys")), properties, row.get("flag") or 0),
        queue_id=row.get("queueId"),
        broker=row.get("broker"),
        sharding_key=row.get("shardingKey"),
    )
    if outgoing.sharding_key:
        properties[Name.SHARDING_KEY] = outgoing.sharding_key
    if row.get("delayLevel"):
        properties[Name.DELAY] = str(row["delayLevel"])
        outgoing.is_single = True
    if row.get("deliverTime") is not None:
        properties[Name.TIMER_DELIVER_MS] = str(_milliseconds(row["deliverTime"]))
        outgoing.is_single = True
    return outgoing


def _bytes_of(body: Any, row: int) -> bytes:
    if body is None:
        raise InvalidMessage(f"row {row} of a partition has no body: filter such rows out")
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes):
        return body
    if isinstance(body, (dict, list)):
        return json.dumps(body, ensure_ascii=False, default=str).encode()
    raise InvalidMessage(f"a body is {type(body).__name__}: make the column binary or string")


def _keys(keys: Any) -> str | list[str]:
    return keys if isinstance(keys, str) else [key for key in keys or [] if key]


def _properties(pairs: Any) -> dict[str, str]:
    """Properties of a row without those that sending sets itself: rows that were read carry them."""
    items = pairs.items() if isinstance(pairs, dict) else pairs or []
    return {name: value for name, value in items if name not in RESERVED and value}


def _milliseconds(moment: Any) -> int:
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(moment)

"""From rows of a data frame to messages. Pure: what a row says, checked, and the id that it always gets."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from kappamq.errors import InvalidMessage, UsageError
from kappamq.model.message import Message
from kappamq.model.properties import RESERVED, Name

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

_ID_HASH_BYTES: Final = 12


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
        """Id of a row, in the form of a client's unique id.

        RocketMQ: tools read the time of birth from digits 20 to 27. Zero there means the start of the month.
        """
        text = f"{self.write}/{self.batch}/{self.partition}/{row}"
        digest = blake2b(text.encode(), digest_size=_ID_HASH_BYTES).digest()
        return (digest[:10] + bytes(4) + digest[10:]).hex().upper()


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


def rows_to_messages(
    batch: pa.RecordBatch, identity: RowIdentity, first_row: int, *, topic: str | None
) -> Iterator[Outgoing]:
    """One message for each row; `first_row` counts the rows of the partition before this batch."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in COLUMNS_USED}
    bodies = columns.get("body") or columns.get("value") or []
    for at, body in enumerate(bodies):
        row = {name: values[at] for name, values in columns.items()}
        yield _message(row, _bytes_of(body, first_row + at), identity.message_id(first_row + at), topic)


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

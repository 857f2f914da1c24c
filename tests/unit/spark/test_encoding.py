from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from kappamq.errors import InvalidMessage, UsageError
from kappamq.model.properties import Name
from kappamq.spark.encoding import Outgoing, RowIdentity, check_columns, rows_to_messages

IDENTITY = RowIdentity("query", 3, 1)


def convert(rows: list[dict[str, Any]], topic: str | None = "orders", first_row: int = 0) -> list[Outgoing]:
    return list(rows_to_messages(pa.RecordBatch.from_pylist(rows), IDENTITY, first_row, topic=topic))


def test_ids_depend_on_everything_that_identifies_a_row_and_on_nothing_else() -> None:
    ids = {
        RowIdentity(write, batch, partition).message_id(row)
        for write in ("a", "b")
        for batch in (0, 1)
        for partition in (0, 1)
        for row in (0, 1)
    }
    assert len(ids) == 16
    assert IDENTITY.message_id(7) == RowIdentity("query", 3, 1).message_id(7)
    assert all(len(each) == 32 and each[20:28] == "0" * 8 for each in ids)


def test_rows_are_numbered_through_the_partition() -> None:
    first = convert([{"body": "a"}, {"body": "b"}])
    second = convert([{"body": "b"}], first_row=1)
    assert first[1].message.properties == second[0].message.properties


def test_all_columns() -> None:
    row = {
        "value": "text",
        "topic": "ignored",
        "keys": ["k1", "k2"],
        "tags": "t",
        "properties": [("color", "red"), (Name.CLUSTER, "x"), ("empty", "")],
        "shardingKey": "customer",
        "queueId": 2,
        "broker": "broker-a",
        "flag": 5,
        "messageId": "MINE",
        "queueOffset": 99,
    }
    (out,) = convert([row])
    message = out.message
    assert (message.topic, message.body, message.tags, message.keys_text, message.flag) == (
        "orders",
        b"text",
        "t",
        "k1 k2",
        5,
    )
    assert message.properties == {"color": "red", Name.UNIQUE_ID: "MINE", Name.SHARDING_KEY: "customer"}
    assert (out.queue_id, out.broker, out.sharding_key, out.is_single) == (2, "broker-a", "customer", False)


def test_delayed_rows_travel_alone() -> None:
    (level,) = convert([{"body": b"x", "delayLevel": 3}])
    assert level.is_single
    assert level.message.properties[Name.DELAY] == "3"
    (timed,) = convert([{"body": b"x", "deliverTime": datetime(2030, 1, 1, tzinfo=UTC)}])
    assert timed.is_single
    assert timed.message.properties[Name.TIMER_DELIVER_MS] == "1893456000000"
    (plain,) = convert([{"body": b"x", "deliverTime": 17}])
    assert plain.message.properties[Name.TIMER_DELIVER_MS] == "17"


def test_rows_without_body_or_topic_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="row 5 of a partition has no body"):
        convert([{"body": None}], first_row=5)
    with pytest.raises(InvalidMessage, match="no topic"):
        convert([{"body": "x", "topic": None}], topic=None)
    with pytest.raises(InvalidMessage, match="make the column binary or string"):
        convert([{"body": 5}])


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        (["body", "tag"], "t", "did you mean 'tags'"),
        (["body", "amount"], "t", "put it into properties"),
        (["body", "value"], "t", "exactly one"),
        (["keys"], "t", "exactly one"),
        (["body"], None, "no topic"),
        (["body", "delayLevel", "deliverTime"], "t", "exclude each other"),
    ],
)
def test_columns_are_checked_before_anything_is_sent(columns: list[str], topic: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_columns(columns, topic=topic)

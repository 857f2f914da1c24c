from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.client.core.preparing import prepare
from kappamq.errors import InvalidMessage, UsageError
from kappamq.model.properties import Name
from kappamq.spark.encoding import Outgoing, RowIdentity, check_columns, check_types, plain_rows, rows_to_messages

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


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("body", "int", "'body' is int, but must be binary or string or struct or array or map: cast it"),
        ("value", "void", "'value' is void"),
        ("keys", "bigint", "must be string or array<string>"),
        ("tags", "int", "must be string"),
        ("properties", "map<string,int>", "must be map<string,string>"),
        ("properties", "struct<a:int>", "must be map<string,string>"),
        ("queueId", "string", "must be tinyint or smallint or int or bigint"),
        ("shardingKey", "bigint", "must be string"),
        ("deliverTime", "string", "must be timestamp"),
    ],
)
def test_columns_of_wrong_types_are_named(name: str, kind: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_types([(name, kind)])


def test_columns_of_right_types() -> None:
    fields = [("body", "struct<a:int>"), ("keys", "array<string>"), ("tags", "void"), ("queueOffset", "bigint")]
    check_types([*fields, ("deliverTime", "timestamp"), ("delayLevel", "int"), ("properties", "map<string,string>")])


# ── Column by column ────────────────────────────────────────────────────────────────────────────────────────────────

MAP = pa.map_(pa.string(), pa.string())
STRICT_MAP = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))


def texts_of(column: tuple[memoryview, memoryview], count: int) -> list[bytes]:
    ends = column[0].cast("i")
    return [bytes(column[1][ends[row] : ends[row + 1]]) for row in range(count)]


def same(batch: pa.RecordBatch, topic: str | None = "orders") -> None:
    """Rows as columns are the messages that they become one by one."""
    rows = plain_rows(batch, IDENTITY, 5, topic=topic, body_bytes_max=100)
    assert rows is not None
    messages = [outgoing.message for outgoing in rows_to_messages(batch, IDENTITY, 5, topic=topic)]
    assert {message.topic for message in messages} == {rows.topic}
    assert texts_of(rows.bodies, rows.count) == [message.body for message in messages]
    expected = [prepare(message, "unused").properties.encode() for message in messages]
    assert texts_of(rows.texts, rows.count) == expected


WORD = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=5).filter(
    lambda text: not text.isspace()
)
ENTRIES = st.dictionaries(
    WORD.filter(bool) | st.sampled_from(("KEYS", "UNIQ_KEY", "shop")), WORD | st.none(), max_size=4
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.text(min_size=1, max_size=20),
            "topic": st.just("other"),
            "keys": st.none() | WORD,
            "tags": st.none() | WORD,
            "properties": st.none() | ENTRIES.map(lambda entries: list(entries.items())),
            "messageId": st.none() | st.sampled_from(("", "MINE")),
        }
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(ROWS, st.integers(0, 2), st.sampled_from((None, "orders")))
def test_columns_say_what_messages_say(rows: list[dict[str, Any]], first: int, topic: str | None) -> None:
    names = ["value", "topic", "keys", "tags", "properties", "messageId"]
    schema = pa.schema([(name, MAP if name == "properties" else pa.string()) for name in names])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    same(batch, topic)
    if batch.num_rows > first:
        same(batch.slice(first), topic)
        same(batch.select(["value"]).slice(first), "orders")


def test_maps_without_nulls() -> None:
    schema = pa.schema([("body", pa.binary()), ("properties", STRICT_MAP)])
    same(pa.RecordBatch.from_pylist([{"body": b"a", "properties": [("x", "1")]}], schema=schema))


@pytest.mark.parametrize(
    "row",
    [
        {"body": b""},
        {"body": b"y" * 101},
        {"body": None},
        {"body": [1]},
        {"body": b"x", "queueId": 1},
        {"body": b"x", "delayLevel": 3},
        {"body": b"x", "flag": 3},
        {"body": b"x", "keys": ["a", "b"]},
        {"body": b"x", "tags": "a\x02b"},
        {"body": b"x", "keys": "\x01"},
        {"body": b"x", "tags": "t" * 40_000},
        {"body": b"x", "properties": [(" ", "blank")]},
        {"body": b"x", "properties": [("", "nameless")]},
        {"body": b"x", "properties": [("name", "a\x01b")]},
    ],
)
def test_rows_that_need_more_care(row: dict[str, Any]) -> None:
    columns = {name: pa.array([value], type=MAP if name == "properties" else None) for name, value in row.items()}
    batch = pa.RecordBatch.from_pydict(columns)
    assert plain_rows(batch, IDENTITY, 0, topic="orders", body_bytes_max=100) is None


def test_rows_of_several_topics_or_none() -> None:
    for topics in (["a", "b"], [None], [""]):
        batch = pa.RecordBatch.from_pydict({"body": [b"x"] * len(topics), "topic": pa.array(topics, pa.string())})
        assert plain_rows(batch, IDENTITY, 0, topic=None, body_bytes_max=100) is None

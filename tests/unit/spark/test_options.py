from pathlib import Path
from typing import Any

import pytest

from kappamq.errors import InvalidExpression, InvalidName, UsageError
from kappamq.model.message import Queue
from kappamq.spark.offsets import AtTime, Committed, End, Explicit
from kappamq.spark.options import parse_read_options, parse_write_options

BASE = {"namesrvAddr": "127.0.0.1:9876", "subscribe": "orders"}


def read(is_stream: bool = False, /, **more: str) -> Any:
    return parse_read_options(BASE | more, is_stream=is_stream)


def test_defaults() -> None:
    options = read()
    assert options.topics == ("orders",)
    assert options.start is None
    assert options.end is End.LATEST
    assert options.fails_on_loss
    assert options.mode == "pull"
    assert options.selector is None


def test_names_are_case_insensitive_and_have_aliases() -> None:
    options = parse_read_options(
        {
            "NAMESERVER": "a:1",
            "Subscribe": "a, b,a",
            "subexpression": "x || y",
            "fetchOffset.numRetries": "0",
            "kafkaConsumer.pollTimeoutMs": "700",
            "kafka.group.id": "readers",
        },
        is_stream=False,
    )
    assert options.pull_timeout_ms == 700
    assert options.group == "readers"
    assert options.name_servers == "a:1"
    assert options.topics == ("a", "b")
    assert options.selector is not None
    assert options.selector.tags == {"x", "y"}
    assert options.retries == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "did you mean 'namesrvAddr'"),
        ({"bootstrap.servers": "x"}, "did you mean 'namesrvAddr'"),
        ({"topic": "orders"}, "did you mean 'subscribe'"),
        ({"zzzzzzzz": "1"}, "known are namesrvAddr"),
        ({"accessKey": "1"}, "reserved for access control"),
        ({"client.tls": "1"}, "reserved for access control"),
        ({"kafka.security.protocol": "SSL"}, "reserved for access control"),
        ({"nameServer": "other:1"}, "given twice"),
        ({"subscribePattern": "a.*"}, "exclude each other"),
        ({"startingOffsets": "latest"}, "table would be empty"),
        ({"endingOffsets": "earliest"}, "table would be empty"),
        ({"startingOffsets": "newest"}, "use earliest, latest"),
        ({"startingOffsets": "{"}, "not JSON"),
        ({"startingOffsets": '{"a": {"b": {"0": -3}}}'}, "offset -3"),
        ({"startingOffsets": '{"a": {"b": {"x": 1}}}'}, "queue id 'x'"),
        ({"startingOffsets": '{"a": {"b": {"0": true}}}'}, "whole number"),
        ({"startingOffsets": '{"a": [1]}'}, "JSON object belongs"),
        ({"failOnDataLoss": "maybe"}, "use true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"minPartitions": "many"}, "whole number"),
        ({"minPartitions": " "}, "is empty"),
        ({"maxTriggerDelay": "soon"}, "a number and a unit"),
        ({"commitGroupOffsets": "g"}, "only a stream has progress"),
        ({"mode": "disk"}, "pull or files"),
        ({"mode": "files"}, "needs storePath"),
        ({"storePath": "/data"}, "belong to mode=files"),
        ({"mode": "files", "storePath": "/a/store,/b/store"}, "one different name"),
        ({"mode": "files", "storePath": "a=/x,a=/y"}, "one different name"),
        ({"mode": "files", "storePath": "a=/x,/y"}, "broker=directory for each store"),
        ({"mode": "files", "storePath": "a=/x", "brokerName": "b"}, "leave brokerName out"),
        ({"tagExpression": "a", "sqlFilter": "a > 1"}, "exclude each other"),
    ],
)
def test_mistakes_are_explained(more: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_read_options(BASE | more, is_stream=False)


def test_streams_have_no_end() -> None:
    with pytest.raises(UsageError, match="a stream has no end"):
        read(True, endingOffsets="latest")
    with pytest.raises(UsageError, match="mode=files reads a table"):
        read(True, mode="files", storePath="/a")
    assert read(True, startingOffsets="latest").start is End.LATEST


def test_bad_filters_and_names_fail_early() -> None:
    with pytest.raises(InvalidExpression):
        read(sqlFilter="a >")
    with pytest.raises(InvalidName):
        read(subscribe="a b")
    with pytest.raises(UsageError, match="not a regular expression"):
        parse_read_options({"namesrvAddr": "a:1", "subscribePattern": "("}, is_stream=False)


def test_missing_parts() -> None:
    with pytest.raises(UsageError, match="no name server"):
        parse_read_options({"subscribe": "orders"}, is_stream=False)
    with pytest.raises(UsageError, match="no topic is named"):
        parse_read_options({"namesrvAddr": "a:1"}, is_stream=False)


def test_places() -> None:
    queue = Queue("orders", "broker-a", 0)
    assert read(startingOffsets="group:g1").start == Committed("g1")
    assert read(startingOffsets='{"orders":{"broker-a":{"0":5}}}').start == Explicit({queue: 5})
    assert read(startingTimestamp="99", startingOffsets="earliest").start == AtTime(99)
    assert read(endingOffsetsByTimestamp='{"orders":{"broker-a":{"0":7}}}').end == AtTime({queue: 7})
    assert not read(startingTimestamp="1", startingOffsetsByTimestampStrategy="latest").late_start_fails


def test_assign() -> None:
    options = parse_read_options({"namesrvAddr": "a:1", "assign": '{"orders":{"broker-a":[0,2]}}'}, is_stream=False)
    assert options.assigned == {Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 2)}
    with pytest.raises(UsageError, match="names no queue"):
        parse_read_options({"namesrvAddr": "a:1", "assign": "{}"}, is_stream=False)


def test_trigger_delay_and_spark_s_own_options() -> None:
    options = read(True, maxTriggerDelay="90s", checkpointLocation="/c", minOffsetsPerTrigger="10")
    assert options.trigger_delay_ms == 90_000
    assert options.rows_min == 10


@pytest.mark.parametrize(("text", "ms"), [("200ms", 200), ("15m", 900_000), ("15min", 900_000), ("1 d", 86_400_000)])
def test_delays_have_sparks_units(text: str, ms: int) -> None:
    assert read(True, maxTriggerDelay=text).trigger_delay_ms == ms


def test_files_mode_needs_no_name_server() -> None:
    options = parse_read_options(
        {"subscribe": "orders", "mode": "files", "storePath": "/data/broker-a,/data/broker-b"}, is_stream=False
    )
    assert options.store_paths == {"broker-a": Path("/data/broker-a"), "broker-b": Path("/data/broker-b")}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"storePath": "one=/data/a, two=/data/b"}, {"one": "/data/a", "two": "/data/b"}),
        ({"storePath": "one=relative/a=b"}, {"one": "relative/a=b"}),
        ({"storePath": "./a=b"}, {"a=b": "a=b"}),
        ({"storePath": "/data/a,/data/b", "brokerName": "one, two"}, {"one": "/data/a", "two": "/data/b"}),
    ],
)
def test_stores_have_names(more: dict[str, str], wanted: dict[str, str]) -> None:
    options = parse_read_options({"subscribe": "orders", "mode": "files"} | more, is_stream=False)
    assert options.store_paths == {name: Path(path) for name, path in wanted.items()}


def test_writer() -> None:
    options = parse_write_options({"namesrvAddr": "a:1", "topic": "orders", "compression": "ZSTD"})
    assert options.topic == "orders"
    assert options.compression == "zstd"
    with pytest.raises(UsageError, match="did you mean 'topic'"):
        parse_write_options({"namesrvAddr": "a:1", "topik": "orders"})
    with pytest.raises(UsageError, match="did you mean 'topic'"):
        parse_write_options({"namesrvAddr": "a:1", "subscribe": "orders"})
    with pytest.raises(UsageError, match="no name server"):
        parse_write_options({"topic": "orders"})

"""RocketMQ's JSON dialect, both ways."""

import pytest

from kappamq.errors import RemoteProtocolError
from kappamq.model import fastjson
from kappamq.model.message import Queue


def test_integer_keys_without_quotes() -> None:
    assert fastjson.loads('{"offsetTable":{0:5,-1:7}}') == {"offsetTable": {0: 5, -1: 7}}
    assert fastjson.dumps({"offsetTable": {0: 5}}) == '{"offsetTable":{0:5}}'
    assert fastjson.dumps({"offsetTable": {0: 5}}, standard=True) == '{"offsetTable":{"0":5}}'


def test_queues_as_keys() -> None:
    queue = Queue("T", "b", 0)
    text = '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'
    assert fastjson.loads(text) == {"offsetTable": {queue: 5}}
    assert fastjson.dumps({"offsetTable": {queue: 5}}) == text


def test_references_are_followed_or_become_none() -> None:
    assert fastjson.loads('{"a":{"x":1},"b":{"$ref":"$.a"},"c":[{"$ref":"$.d[9]"}]}') == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": [None],
    }


def test_escapes_single_quotes_and_surrogates() -> None:
    assert fastjson.loads("{'a\\n':'\\uD83D\\uDE00',1:2}") == {"a\n": "😀", 1: 2}


def test_missing_values_are_left_out_and_pretty_text_reads_back() -> None:
    value = {"a": None, "b": [1, 2.5, True], "c": {}, "d": {"e": "é\x01"}}
    assert fastjson.loads(fastjson.dumps(value, pretty=True)) == {"b": [1, 2.5, True], "c": {}, "d": {"e": "é\x01"}}
    assert fastjson.dumps({"x": "é😀"}, standard=True) == '{"x":"\\u00E9\\uD83D\\uDE00"}'


@pytest.mark.parametrize(
    "text", ["{", '{"a":}', "{1:2}x", '{"a" 1}', "[1,,]x", "{nope:nope}", "[" * 200, '{"a', b"\xff\xfe{1:2}"]
)
def test_nonsense_raises(text: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(text)

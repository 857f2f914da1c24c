"""Tables, facts and JSON."""

import json

import pytest

from kappamq.cli.output import body_text, message_facts, message_value, moment, print_facts, print_json, print_table
from kappamq.model.ids import pack_host
from kappamq.model.message import StoredMessage
from kappamq.model.properties import encode_properties
from kappamq.model.record import NewRecord, decode_record

Capture = pytest.CaptureFixture[str]


def stored(body: bytes) -> StoredMessage:
    host = pack_host("127.0.0.1", 10911)
    properties = encode_properties({"KEYS": "k1 k2", "TAGS": "a", "colour": "grün"}).encode()
    record = NewRecord("orders", 3, body, properties, 1, host, host)
    return decode_record(record.encode(queue_offset=5, log_offset=100, stored_at_ms=9, append_crc=False))


def test_tables_are_not_cut_in_a_pipe(capsys: Capture) -> None:
    print_table(("name", "count"), [("x" * 150, 5), ("y [bold]", 12345)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "count"]
    assert lines[1].split() == ["x" * 150, "5"]
    assert lines[2].split() == ["y", "[bold]", "12345"]
    assert lines[1].index("5", 150) > lines[2].index("12345")


def test_an_empty_table_has_its_header(capsys: Capture) -> None:
    print_table(("name", "count"), [])
    assert capsys.readouterr().out.split() == ["name", "count"]


def test_facts_are_aligned(capsys: Capture) -> None:
    print_facts([("a", None), ("long name", 1.25), ("b", True), ("c", "")])
    assert capsys.readouterr().out.splitlines() == ["a          -", "long name  1.2", "b          yes", "c"]


def test_json_keeps_text_readable(capsys: Capture) -> None:
    print_json({"name": "grün"})
    assert capsys.readouterr().out == '{\n  "name": "grün"\n}\n'


def test_messages_as_json() -> None:
    value = message_value(stored("grün".encode()))
    assert json.loads(json.dumps(value)) == value
    assert (value["body"], value["keys"], value["tags"], value["queue_id"]) == ("grün", ["k1", "k2"], "a", 3)
    binary = message_value(stored(b"\xff\x00"))
    assert "body" not in binary
    assert binary["body_base64"] == "/wA="


def test_messages_for_people() -> None:
    facts = dict(message_facts(stored(b"\xff\x00")))
    assert facts["body"] == "<2 bytes>"
    assert facts["queue"] == "3 at 5"
    assert facts["  colour"] == "grün"
    assert body_text(b"text") == "text"


def test_moments() -> None:
    assert moment(0) == moment(-1) == "-"
    assert moment(1767225600000).startswith(("2025-12-31", "2026-01-01"))

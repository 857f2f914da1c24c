"""Frames that real clients and servers have sent (see `tests/interop/record.py`), read by our protocol code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.model.record import decode_records
from kappamq.wire import headers
from kappamq.wire.batch import decode_batch
from kappamq.wire.bodies import (
    decode_consumer_ids,
    decode_heartbeat,
    decode_locked_queues,
    decode_queue_set,
    decode_route,
)
from kappamq.wire.command import Command
from kappamq.wire.frame import FrameDecoder, encode_frame
from kappamq.wire.headers import Request, decode_fields, encode_fields
from kappamq.wire.registration import decode_registration

RECORDED = Path(__file__).parent / "recorded"
EXCHANGES: list[dict[str, Any]] = json.loads((RECORDED / "index.json").read_text(encoding="utf-8"))
FILES = [entry[part] for entry in EXCHANGES for part in ("request", "reply") if part in entry]
REQUESTS: dict[int, type[Request]] = {
    kind.code: kind
    for kind in vars(headers).values()
    if isinstance(kind, type) and issubclass(kind, Request) and hasattr(kind, "code")
}
# A batch is sent with the fields of a single message.
REQUESTS[320] = headers.SendRequest

# What clients send beyond the specification's tables, and no broker reads.
FIELDS_WITHOUT_USE = {"ReqT", "bname", "force", "indexType"}


def only(name: str) -> Command:
    """The one command in a recorded file."""
    [command] = FrameDecoder().feed((RECORDED / name).read_bytes())
    return command


@pytest.mark.parametrize("name", FILES)
def test_frame_is_read_however_it_is_cut(name: str) -> None:
    frame = (RECORDED / name).read_bytes()
    whole = only(name)
    for pieces in ([bytes((byte,)) for byte in frame], [frame + frame[:7], frame[7:]]):
        decoder = FrameDecoder()
        assert {repr(command) for piece in pieces for command in decoder.feed(piece)} == {repr(whole)}
    [again] = FrameDecoder().feed(encode_frame(whole))
    assert again == whole


@pytest.mark.parametrize("entry", EXCHANGES, ids=lambda entry: entry["request"])
def test_request_and_reply_belong_together(entry: dict[str, Any]) -> None:
    request = only(entry["request"])
    assert (request.code, request.is_reply) == (entry["code"], False)
    assert request.is_one_way or "reply" in entry
    if "reply" in entry:
        reply = only(entry["reply"])
        assert (reply.code, reply.is_reply) == (entry["reply_code"], True)
        assert reply.request_id == request.request_id


@pytest.mark.parametrize("entry", EXCHANGES, ids=lambda entry: entry["request"])
def test_header_loses_no_field_that_we_know(entry: dict[str, Any]) -> None:
    command = only(entry["request"])
    kind = REQUESTS[command.code]
    ours = encode_fields(decode_fields(command.fields, kind))
    theirs = {name: value for name, value in command.fields.items() if value != "null"}
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }
    assert set(theirs) - set(ours) <= FIELDS_WITHOUT_USE


BODIES: dict[str, Callable[[Command], object]] = {
    "heartbeat-{}.request.bin": lambda command: decode_heartbeat(command.body).consumers[0].group,
    "route-{}.reply.bin": lambda command: len(decode_route(command.body).brokers),
    "send-batch-{}.request.bin": lambda command: [item.body for item in decode_batch(command.body)],
    "pull-{}.reply.bin": lambda command: next(decode_records(command.body)).body,
    "consumer-list-{}.reply.bin": lambda command: len(decode_consumer_ids(command.body)),
    "lock-{}.request.bin": lambda command: len(decode_queue_set(command.body)[2]),
    "lock-{}.reply.bin": lambda command: len(decode_locked_queues(command.body)),
}
EXPECTED: dict[str, object] = {
    "route-{}.reply.bin": 1,
    "send-batch-{}.request.bin": [b"0", b"1", b"2"],
    "pull-{}.reply.bin": b"Hello",
    "consumer-list-{}.reply.bin": 1,
    "lock-{}.request.bin": 1,
    "lock-{}.reply.bin": 1,
}


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
@pytest.mark.parametrize("pattern", BODIES)
def test_body_is_read(pattern: str, version: str) -> None:
    expected = EXPECTED.get(pattern, f"recorded-{version.replace('.', '-')}")
    assert BODIES[pattern](only(pattern.format(version))) == expected


def test_registration_of_a_real_broker() -> None:
    command = only("register-broker-5.5.0.request.bin")
    topics = decode_registration(command.body, compressed=False, expected_crc=int(command.fields["bodyCrc32"]))
    assert command.fields["brokerName"] == "broker-a"
    assert {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} <= set(topics.topics)

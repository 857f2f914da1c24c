"""The benchmarks' load generator against a broker of a few lines that can misbehave on purpose."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import socketserver
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import generator
from benchmarks.generator import GeneratorFailed, Load

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the generator needs a C compiler")

TOPIC = "generated"
PRODUCER_FIELDS = list("abcdefghijkmn")  # As recorded from the Java client 5.5.0: no `l` outside retry topics.
PROPERTIES = re.compile("UNIQ_KEY\x01([0-9A-F]{32})\x02WAIT\x01true\x02")


class StubBroker(socketserver.ThreadingTCPServer):
    """Keeps the number of messages per queue, and every unique key it has seen."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StubConnection)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.guard = threading.Lock()
        self.queues: defaultdict[int, int] = defaultdict(int)
        self.keys: list[str] = []
        self.headers: list[dict[str, Any]] = []
        self.refuse_every = 0
        self.forget_every = 0
        self.close_after = 0
        self.skip_records = False
        self.stall_once_seconds = 0.0

    def answer(self, header: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        fields = header["extFields"]
        match header["code"]:
            case 17:
                return 0, {}, b""
            case 30:
                return 0, {"offset": str(self.queues[int(fields["queueId"])])}, b""
            case 310 | 320:
                return self.append(header, body)
            case 11:
                return self.fetch(fields)
        raise AssertionError(f"unexpected request {header}")

    def append(self, header: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.headers.append(header)
        fields = header["extFields"]
        outer = PROPERTIES.fullmatch(fields["i"])
        assert outer is not None
        keys = [outer[1]] if header["code"] == 310 else batch_keys(body)
        self.keys += keys
        count = len(self.headers)
        if self.close_after and count > self.close_after:
            raise ConnectionAbortedError
        if self.refuse_every and count % self.refuse_every == 0:
            return 2, {}, b""
        if not (self.forget_every and count % self.forget_every == 0):
            self.queues[int(fields["e"])] += len(keys)
        return 0, {"msgId": "0", "queueId": fields["e"], "queueOffset": "0"}, b""

    def fetch(self, fields: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        queue, start = int(fields["queueId"]), int(fields["queueOffset"])
        end = min(self.queues[queue], start + int(fields["maxMsgNums"]))
        first = start + 1 if self.skip_records else start
        records = b"".join(record(queue, queue_offset) for queue_offset in range(first, end))
        offsets = {"nextBeginOffset": str(end), "minOffset": "0", "maxOffset": str(self.queues[queue])}
        return (0 if end > start else 19), offsets, records


class StubConnection(socketserver.BaseRequestHandler):
    """Reads and writes in odd pieces, and answers what it has read last first."""

    server: StubBroker

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pieces = random.Random(7)
        waiting = b""
        try:
            while received := self.request.recv(pieces.choice((1, 9, 300, 65536))):
                waiting += received
                replies = []
                while len(waiting) >= 8 and len(waiting) >= 4 + int.from_bytes(waiting[:4]):
                    size = 4 + int.from_bytes(waiting[:4])
                    replies.append(self.reply(waiting[:size]))
                    waiting = waiting[size:]
                out = b"".join(reversed(replies))
                while out:
                    size = pieces.choice((1, 9, 300, 65536))
                    self.request.sendall(out[:size])
                    out = out[size:]
        except ConnectionError:
            pass

    def reply(self, frame: bytes) -> bytes:
        header, is_binary, body = decode(frame)
        with self.server.guard:
            if header["code"] == 310 and self.server.stall_once_seconds:
                time.sleep(self.server.stall_once_seconds)
                self.server.stall_once_seconds = 0.0
            code, fields, reply_body = self.server.answer(header, body)
        return encode(code, header["opaque"], fields, reply_body, is_binary=is_binary)


def decode(frame: bytes) -> tuple[dict[str, Any], bool, bytes]:
    header_size = int.from_bytes(frame[5:8])
    header, body = frame[8 : 8 + header_size], frame[8 + header_size :]
    if frame[4] == 0:
        return json.loads(header), False, body
    code, _, version, opaque, flag, remark, size = struct.unpack(">hbhiiii", header[:21])
    assert remark == 0
    assert size == len(header) - 21
    fields, at = {}, 21
    while at < len(header):
        name_end = at + 2 + int.from_bytes(header[at : at + 2])
        value_end = name_end + 4 + int.from_bytes(header[name_end : name_end + 4])
        fields[header[at + 2 : name_end].decode()] = header[name_end + 4 : value_end].decode()
        at = value_end
    return {"code": code, "version": version, "opaque": opaque, "flag": flag, "extFields": fields}, True, body


def encode(code: int, opaque: int, fields: dict[str, str], body: bytes, *, is_binary: bool) -> bytes:
    if is_binary:
        pairs = b"".join(
            struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value)) + value.encode()
            for name, value in fields.items()
        )
        remark = b"" if code == 0 else b"stub"
        header = struct.pack(">hbhiii", code, 0, 513, opaque, 1, len(remark)) + remark
        header += struct.pack(">i", len(pairs)) + pairs
    else:
        value = {"remark": 'a "quoted" remark }', "extFields": fields, "code": code, "flag": 1, "opaque": opaque}
        header = json.dumps(value, indent=1).encode()
    return struct.pack(">IB", 4 + len(header) + len(body), is_binary) + len(header).to_bytes(3) + header + body


def record(queue: int, queue_offset: int) -> bytes:
    head = struct.pack(">IIIiIqq", 91, 0xDAA320A7, 0, queue, 0, queue_offset, 0)
    return head + bytes(91 - len(head))


def batch_keys(body: bytes) -> list[str]:
    keys = []
    while body:
        size, _, _, _, body_size = struct.unpack(">IIIII", body[:20])
        properties_size = int.from_bytes(body[20 + body_size : 22 + body_size])
        assert size == 22 + body_size + properties_size
        found = PROPERTIES.fullmatch(body[22 + body_size : size].decode())
        assert found is not None
        keys.append(found[1])
        body = body[size:]
    return keys


@contextmanager
def stub_broker() -> Iterator[StubBroker]:
    with StubBroker() as broker:
        thread = threading.Thread(target=broker.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield broker
        finally:
            broker.shutdown()
            thread.join()


@pytest.fixture(name="broker")
def broker_fixture() -> Iterator[StubBroker]:
    with stub_broker() as broker:
        yield broker


def run(load: Load, broker: StubBroker, seconds: float = 0.8) -> dict[str, Any]:
    return generator.run(load, broker.address, TOPIC, seconds=seconds, warmup_seconds=0.4, create=True)


@pytest.mark.parametrize("header", ["json", "binary"])
@pytest.mark.parametrize("batch", [1, 5])
def test_what_is_acknowledged_is_counted_once(broker: StubBroker, header: str, batch: int) -> None:
    outcome = run(Load(connections=3, in_flight=4, batch=batch, queues=11, header=header), broker)
    generator.check(outcome)
    assert outcome["total_count"] == sum(broker.queues.values()) > outcome["count"] > 0
    assert outcome["total_count"] == outcome["total_requests"] * batch
    assert len(broker.keys) == len(set(broker.keys)) == outcome["total_count"]
    # Round robin: no queue is ahead of another by more than one request.
    assert max(broker.queues.values()) - min(broker.queues.values()) <= batch
    assert 0 < outcome["latency_us"]["p50"] <= outcome["latency_us"]["p99"] <= outcome["latency_us"]["max"]


def test_send_has_the_fields_of_the_java_client(broker: StubBroker) -> None:
    run(Load(body_bytes=10), broker, seconds=0.01)
    header = broker.headers[0]
    assert list(header) == ["code", "extFields", "flag", "language", "opaque", "serializeTypeCurrentRPC", "version"]
    fields = header["extFields"]
    assert list(fields) == PRODUCER_FIELDS
    assert abs(int(fields["g"]) / 1000 - time.time()) < 60
    assert {name: fields[name] for name in "bcdfhjkm"} == {
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "f": "0",
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def test_many_topics_take_turns(broker: StubBroker) -> None:
    outcome = run(Load(connections=2, in_flight=3, topics=5, queues=2), broker)
    assert outcome["topics"] == 5
    names = {header["extFields"]["b"] for header in broker.headers}
    assert names == {TOPIC, *(f"{TOPIC}-{number}" for number in range(1, 5))}


@pytest.mark.parametrize("header", ["json", "binary"])
def test_pull_once_counts_every_record(broker: StubBroker, header: str) -> None:
    broker.queues.update({0: 1000, 1: 0, 2: 33, 3: 1})
    outcome = run(Load(mode="pull", in_flight=2, queues=4, header=header, once=True), broker, seconds=20)
    generator.check(outcome)
    assert outcome["total_count"] == outcome["count"] == 1034
    assert outcome["empty_pulls"] == 4


def test_a_gap_between_pulled_records_is_noticed(broker: StubBroker) -> None:
    broker.queues[0] = 100
    broker.skip_records = True
    outcome = run(Load(mode="pull", queues=1, once=True), broker)
    with pytest.raises(GeneratorFailed, match="malformed 1"):
        generator.check(outcome)


def test_refusals_are_counted_by_code(broker: StubBroker) -> None:
    broker.refuse_every = 10
    outcome = run(Load(connections=2, in_flight=2), broker)
    assert outcome["errors"] == {"2": len(broker.headers) // 10}
    assert outcome["total_count"] == len(broker.headers) - len(broker.headers) // 10
    with pytest.raises(GeneratorFailed, match="refused"):
        generator.check(outcome)


def test_an_acknowledged_message_that_is_not_there_is_noticed(broker: StubBroker) -> None:
    broker.forget_every = 10
    outcome = generator.run(Load(), broker.address, TOPIC, seconds=0.3, drain_seconds=0.1, warmup_seconds=0)
    with pytest.raises(GeneratorFailed, match="the queues grew by"):
        generator.check(outcome)


def test_fixed_rate_counts_what_a_stall_keeps_waiting(broker: StubBroker) -> None:
    broker.stall_once_seconds = 0.5
    outcome = generator.run(Load(rate=200), broker.address, TOPIC, seconds=1, warmup_seconds=0, create=True)
    generator.check(outcome)
    assert outcome["total_count"] == 200
    # 100 of the 200 were due during the stall and waited for what was left of it; a generator that waits with the
    # broker would have seen one slow answer.
    assert outcome["latency_us"]["p90"] > 250_000
    assert outcome["latency_us"]["max"] >= 500_000


def test_a_closed_connection_ends_the_run(broker: StubBroker) -> None:
    broker.close_after = 5
    with pytest.raises(GeneratorFailed, match="closed a connection"):
        run(Load(), broker)


def test_load_goes_to_loopback_only() -> None:
    with pytest.raises(GeneratorFailed, match="must be on loopback"):
        generator.run(Load(), "192.0.2.1:10911", TOPIC, seconds=1)


def test_the_floor_answers_every_request_in_order() -> None:
    seconds, in_flight = 0.2, 12
    outcome = generator.echo(4, 3, message_bytes=70_000, seconds=seconds)
    assert outcome["requests"] > 0
    assert 0 < outcome["latency_us"]["p50"] <= outcome["latency_us"]["max"]
    # No more than twelve are under way at any time, also of those that were begun before the clock was started.
    longest_seconds = outcome["latency_us"]["max"] / 1e6
    waited_at_once = outcome["rate"] * outcome["latency_us"]["mean"] / 1e6
    assert waited_at_once < (in_flight + 1) * (1 + longest_seconds / seconds)

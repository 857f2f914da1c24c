"""What strangers and broken clients send: a defined answer or a closed connection, and nobody else notices."""

import asyncio
import json
import logging
import time
from asyncio import StreamReader
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.net.connection import ConnectionLimits
from kappamq.net.dialer import Dialer
from kappamq.net.server import ServerLimits
from kappamq.testing import run_cluster
from kappamq.testing.cluster import SMALL_STORE
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.frame import FRAME_BYTES_MAX, encode_frame
from kappamq.wire.headers import (
    CreateTopicRequest,
    MaxOffsetRequest,
    PullRequest,
    SendRequest,
    UpdateOffsetRequest,
    ViewMessageRequest,
)

CALL_MS = 30_000


@dataclass
class Scene:
    """A cluster with a well-behaved client that must not notice anything."""

    dialer: Dialer
    broker: str
    nameserver: str

    async def send(self, **changes: object) -> Command:
        body = changes.pop("body", b"hello")
        assert isinstance(body, bytes)
        request = SendRequest(
            producer_group="good", topic="good", queue_id=0, born_at_ms=int(time.time() * 1000), properties=""
        )
        command = request.command(body=body)
        command.fields |= {name: str(value) for name, value in changes.items()}
        return await self.dialer.call_raw(self.broker, command, timeout_ms=CALL_MS)

    async def check_others_untouched(self) -> None:
        assert (await self.send()).code == 0


@asynccontextmanager
async def scene(**changes: object) -> AsyncIterator[Scene]:
    settings = replace(BrokerSettings(name="x", store=SMALL_STORE), **changes)  # type: ignore[arg-type]
    async with run_cluster(settings=settings) as cluster, Dialer() as dialer:
        yield Scene(dialer, cluster.brokers["broker-a"], cluster.nameserver)


async def conversation(address: str, data: bytes, *, wait: float = 30.0) -> bytes:
    """Send bytes and read until the other side closes or answers."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(wait):
            return await reader.read(65536)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def frame(header: bytes, body: bytes = b"", header_type: int = 0) -> bytes:
    size = (len(header) + len(body) + 4).to_bytes(4, "big")
    return size + bytes((header_type,)) + len(header).to_bytes(3, "big") + header + body


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "tls hello": bytes.fromhex("160301020001000001fc0303") + bytes(200),
    "text": b"hello, is anybody there?\n",
    "too long": (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(100),
    "negative length": b"\xff\xff\xff\xf0" + bytes(100),
    "header beyond frame": b"\x00\x00\x00\x08\x00\xff\xff\xff" + bytes(8),
    "unknown header type": frame(b"{}", header_type=9),
    "no json": frame(b"<xml/>"),
    "json list": frame(b"[1,2,3]"),
    "deep json": frame(b'{"code":1,"extFields":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "huge header": frame(b'{"code":34,"extFields":{' + b",".join(b'"f%d":"v"' % n for n in range(5000)) + b"}}"),
    "code of a wrong type": frame(b'{"code":{},"opaque":1}'),
    "no code": frame(b'{"opaque":1}'),
    "bad utf-8": frame(b'{"code":1,"remark":"\xff\xfe"}'),
    "binary cut short": frame(b"\x00\x69\x03\x01\xdf\x00", header_type=1),
    "binary lying lengths": frame(
        b"\x00\x69\x03\x01\xdf\x00\x00\x00\x07\x00\x00\x00\x00\x7f\xff\xff\xff", header_type=1
    ),
}


def test_strangers_are_shown_the_door(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with scene() as good:
            for address in (good.broker, good.nameserver):
                for name, data in STRANGERS.items():
                    caplog.clear()
                    with caplog.at_level(logging.WARNING):
                        assert await conversation(address, data) == b"", name
                    lines = [record for record in caplog.records if "protocol" in record.message]
                    assert len(lines) == 1, f"{name}: one log line for one stranger"
                    await good.check_others_untouched()

    asyncio.run(main())


def test_an_unknown_code_is_answered() -> None:
    async def main() -> None:
        async with scene() as good:
            for address in (good.broker, good.nameserver):
                reply = await good.dialer.call_raw(address, Command(31999), timeout_ms=CALL_MS)
                assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert reply.remark == " request type 31999 not supported"
            await good.check_others_untouched()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"e": "abc"}, ResponseCode.SYSTEM_ERROR),
        ({"e": str(2**40)}, ResponseCode.SYSTEM_ERROR),
        ({"g": "yesterday"}, ResponseCode.SYSTEM_ERROR),
        ({"e": 99}, ResponseCode.INVALID_PARAMETER),
        ({"b": "../../etc/passwd"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "a/b"}, ResponseCode.INVALID_PARAMETER),
        ({"b": ".."}, ResponseCode.INVALID_PARAMETER),
        ({"b": "nul\x00byte"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "x" * 128}, ResponseCode.INVALID_PARAMETER),
        ({"b": ""}, ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"b": "fresh", "c": "no-template"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"body": b""}, ResponseCode.MESSAGE_ILLEGAL),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "p\x01" + "v" * 32767 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x01soon\x02", "f": 4}, ResponseCode.MESSAGE_ILLEGAL),
        (
            {"i": "TRAN_MSG\x01true\x02PGROUP\x01g\x02TIMER_DELAY_SEC\x0199999999999\x02", "f": 4},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({"m": "true", "body": b"\x00\x00\x00\x1f" + bytes(9)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"m": "true", "body": bytes.fromhex("000000ff") + bytes(12) + b"\0\0\0\1A\0\0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"m": "true", "body": b""}, ResponseCode.MESSAGE_ILLEGAL),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)
def test_sends_that_cannot_be_stored_say_why(changes: dict[str, object], code: ResponseCode) -> None:
    async def main() -> None:
        async with scene() as good:
            reply = await good.send(**changes)
            assert reply.code == code, reply.remark
            assert reply.remark
            await good.check_others_untouched()

    asyncio.run(main())


def test_other_requests_with_wrong_values_say_why() -> None:
    async def main() -> None:
        async with scene() as good:
            await good.send()
            pull = PullRequest(group="g", topic="good", queue_id=0, start=0, count_max=32, flags=4, subscription="*")
            cases: list[tuple[Command, int]] = [
                (replace_fields(pull.command(), topic="missing"), ResponseCode.TOPIC_NOT_EXIST),
                (replace_fields(pull.command(), queueId="77"), ResponseCode.INVALID_PARAMETER),
                (replace_fields(pull.command(), queueId="-1"), ResponseCode.INVALID_PARAMETER),
                (replace_fields(pull.command(), queueOffset="99"), ResponseCode.PULL_OFFSET_MOVED),
                (replace_fields(pull.command(), queueOffset="-5"), ResponseCode.PULL_OFFSET_MOVED),
                (replace_fields(pull.command(), consumerGroup="no/group"), ResponseCode.INVALID_PARAMETER),
                (replace_fields(pull.command(), subscription="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
                (
                    replace_fields(pull.command(), subscription="a >", expressionType="SQL92"),
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                ),
                (
                    replace_fields(pull.command(), subscription="(" * 3000, expressionType="SQL92"),
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                ),
                (replace_fields(pull.command(), sysFlag="0"), ResponseCode.SUBSCRIPTION_NOT_EXIST),
                (ViewMessageRequest(log_offset=7).command(), ResponseCode.SYSTEM_ERROR),
                (ViewMessageRequest(log_offset=10**15).command(), ResponseCode.SYSTEM_ERROR),
                (ViewMessageRequest(log_offset=-1).command(), ResponseCode.SYSTEM_ERROR),
                (
                    UpdateOffsetRequest(group="nobody", topic="good", queue_id=0, committed_offset=1).command(),
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                ),
                (Command(34, body=b"not json"), ResponseCode.SYSTEM_ERROR),
                (Command(34, body=json.dumps({"consumerDataSet": 5}).encode()), ResponseCode.SYSTEM_ERROR),
                (Command(41, body=b'{"mqSet":[7]}'), ResponseCode.SYSTEM_ERROR),
            ]
            for command, code in cases:
                reply = await good.dialer.call_raw(good.broker, command, timeout_ms=CALL_MS)
                assert reply.code == code, (command, reply.code, reply.remark)
                assert reply.remark
            unknown = MaxOffsetRequest(topic="missing", queue_id=3).command()
            assert (await good.dialer.call(good.broker, unknown, timeout_ms=CALL_MS)).fields["offset"] == "0"
            await good.check_others_untouched()

    asyncio.run(main())


def replace_fields(command: Command, **fields: str) -> Command:
    command.fields |= fields
    return command


def test_topics_that_cannot_be_are_refused() -> None:
    async def main() -> None:
        async with scene() as good:
            for fields in (
                {"readQueueNums": "-1", "writeQueueNums": "-1"},
                {"perm": "99"},
                {"topic": "a/b"},
                {"topic": "TBW102"},
                {"readQueueNums": "1000000"},
            ):
                command = replace_fields(CreateTopicRequest(topic="new").command(), **fields)
                reply = await good.dialer.call_raw(good.broker, command, timeout_ms=CALL_MS)
                assert reply.code == ResponseCode.INVALID_PARAMETER, (fields, reply.remark)
            await good.check_others_untouched()

    asyncio.run(main())


def test_a_byte_a_second_is_cut_off() -> None:
    async def main() -> None:
        limits = ServerLimits(frame_seconds=0.5, sweep_seconds=0.1)
        async with scene(limits=limits) as good:
            host, port = good.broker.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            whole = encode_frame(Command(34))
            is_cut_off = False
            for byte in whole:
                writer.write(bytes((byte,)))
                try:
                    async with asyncio.timeout(0.2):
                        is_cut_off = await reader.read(1) == b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    is_cut_off = True
                break
            assert is_cut_off, "a frame that takes longer than it may was read to its end"
            writer.close()
            await good.check_others_untouched()

    asyncio.run(main())


def test_a_reader_that_never_reads_costs_a_bounded_buffer() -> None:
    async def main() -> None:
        limits = ServerLimits(connection=ConnectionLimits(write_bytes_high=512 * 1024, write_bytes_low=64 * 1024))
        async with scene(limits=limits) as good:
            for _ in range(64):
                await good.send(body=b"x" * 4096)
            pull = PullRequest(group="g", topic="good", queue_id=0, start=0, count_max=64, flags=4, subscription="*")
            host, port = good.broker.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            request = encode_frame(pull.command())
            # Each answer has 256 KiB: 4,000 of them would be a gigabyte.
            before = resident_bytes()  # The process is as large as the tests before this one have made it.
            writer.write(request * 4000)
            for _ in range(50):
                await good.check_others_untouched()
            assert resident_bytes() - before < 300 * 1024 * 1024
            writer.close()

    asyncio.run(main())


def test_a_flood_of_one_way_sends_is_stored_and_bounded() -> None:
    async def main() -> None:
        async with scene() as good:
            request = SendRequest(producer_group="flood", topic="flood", queue_id=0, born_at_ms=1)
            command = request.command(body=b"x" * 200, one_way=True)
            host, port = good.broker.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            for _ in range(20):
                writer.write(encode_frame(command) * 500)
                await writer.drain()
                await good.check_others_untouched()
            deadline = time.monotonic() + 60
            while True:
                query = MaxOffsetRequest(topic="flood", queue_id=0).command()
                stored = int((await good.dialer.call(good.broker, query, timeout_ms=CALL_MS)).fields["offset"])
                if stored == 10_000:
                    break
                assert time.monotonic() < deadline, stored
            writer.close()

    asyncio.run(main())


def test_connections_beyond_the_limit_are_refused() -> None:
    async def main() -> None:
        async with scene(limits=ServerLimits(connections_max=3)) as good:
            await good.send()
            host, port = good.broker.split(":")
            streams = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
            closed: list[StreamReader] = []

            async def await_end(reader: StreamReader) -> None:
                with suppress(ConnectionResetError):
                    assert await reader.read(1) == b""
                closed.append(reader)

            async with asyncio.TaskGroup() as tasks:
                ends = [tasks.create_task(await_end(reader)) for reader, _ in streams]
                async with asyncio.timeout(60):
                    while len(closed) < 4:
                        await asyncio.sleep(0.01)
                await good.check_others_untouched()
                for end in ends:
                    end.cancel()
            assert len(closed) == 4
            for _, writer in streams:
                writer.close()
            await good.check_others_untouched()

    asyncio.run(main())


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

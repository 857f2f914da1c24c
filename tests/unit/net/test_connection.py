"""Connections over real loopback sockets: matching, expiry, back-pressure, half-close."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kappamq.errors import CallTimeout, ConnectFailed, ConnectionLost, TooManyInFlight
from kappamq.net.connection import Connection, ConnectionLimits
from kappamq.net.dialer import Dialer
from kappamq.net.server import Server, ServerLimits
from kappamq.net.standing import IS_COMPILED
from kappamq.net.turns import Arrived, Reads
from kappamq.wire.command import Command
from kappamq.wire.frame import FrameDecoder, encode_frame

served_by: str = ""
"""How connections are served in this test: by transports of the event loop, or in turns."""


@pytest.fixture(params=["event loop", "turns"], autouse=True)
def _served_by(request: pytest.FixtureRequest) -> None:
    global served_by
    served_by = request.param
    if served_by == "turns" and not IS_COMPILED:
        pytest.skip("the compiled half of turns is not built")


def hand_over(reads: Reads, others: Arrived) -> None:
    for connection, data in [*zip(reads.connections, reads.buffers), *others]:
        connection.receive(data)


@asynccontextmanager
async def served(
    handler: Callable[[Connection, Command], None], limits: ServerLimits | None = None
) -> AsyncIterator[str]:
    async with Server(handler, limits=limits, on_turn=hand_over if served_by == "turns" else None) as server:
        port = await server.listen("127.0.0.1", 0)
        yield f"127.0.0.1:{port}"


def echo(connection: Connection, request: Command) -> None:
    connection.reply(request.reply(body=request.body))


def test_replies_find_their_callers_in_any_order() -> None:
    async def main() -> None:
        held: list[tuple[Connection, Command]] = []

        def backwards(connection: Connection, request: Command) -> None:
            held.append((connection, request))
            if len(held) == 10:
                for each, command in reversed(held):
                    echo(each, command)

        async with served(backwards) as address, Dialer() as dialer:
            connection = await dialer.connect(address)
            replies = [connection.begin(Command(1, body=b"%d" % n), timeout_ms=5000) for n in range(10)]
            assert [reply.body for reply in await asyncio.gather(*replies)] == [b"%d" % n for n in range(10)]

    asyncio.run(main())


def test_a_call_without_an_answer_times_out_and_a_late_answer_is_dropped() -> None:
    async def main() -> None:
        held: list[tuple[Connection, Command]] = []
        async with (
            served(lambda connection, request: held.append((connection, request))) as address,
            Dialer() as dialer,
        ):
            connection = await dialer.connect(address)
            with pytest.raises(CallTimeout):
                await dialer.call_raw(address, Command(1), timeout_ms=50)
            while not held:
                await asyncio.sleep(0)
            echo(*held[0])
            again = connection.begin(Command(1, body=b"second"), timeout_ms=5000)
            while len(held) < 2:
                await asyncio.sleep(0)
            echo(*held[1])
            assert (await again).body == b"second"

    asyncio.run(main())


def test_a_lost_connection_fails_its_calls_and_the_next_call_dials_again() -> None:
    async def main() -> None:
        def moody(connection: Connection, request: Command) -> None:
            if request.code == 2:
                connection.abort("bad mood")
            else:
                echo(connection, request)

        async with served(moody) as address, Dialer() as dialer:
            with pytest.raises(ConnectionLost):
                await dialer.call_raw(address, Command(2), timeout_ms=5000)
            assert (await dialer.call_raw(address, Command(1, body=b"x"), timeout_ms=5000)).body == b"x"

    asyncio.run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        async with served(echo) as address:
            pass
        async with Dialer() as dialer:
            with pytest.raises(ConnectFailed, match="check that it runs"):
                await dialer.connect(address)

    asyncio.run(main())


def test_requests_in_flight_are_capped() -> None:
    async def main() -> None:
        async with (
            served(lambda connection, request: None) as address,
            Dialer(limits=ConnectionLimits(inflight_max=3)) as dialer,
        ):
            connection = await dialer.connect(address)
            waiting = [connection.begin(Command(1), timeout_ms=60_000) for _ in range(3)]
            with pytest.raises(TooManyInFlight):
                connection.begin(Command(1), timeout_ms=60_000)
            connection.close()
            assert all(
                isinstance(fault, ConnectionLost) for fault in await asyncio.gather(*waiting, return_exceptions=True)
            )

    asyncio.run(main())


def test_order_holds_while_answers_pile_up() -> None:
    """A peer that sends much and reads nothing is read slowly; when it reads at last, all answers come in order."""

    async def main() -> None:
        limits = ServerLimits(connection=ConnectionLimits(write_bytes_high=64 * 1024, write_bytes_low=16 * 1024))
        async with served(echo, limits) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            count, body = 300, b"x" * 20_000
            sending = asyncio.get_running_loop().create_task(write_all(writer, count, body))
            decoder = FrameDecoder()
            got: list[int] = []
            while len(got) < count:
                got += [reply.request_id for reply in decoder.feed(await reader.read(65536))]
            await sending
            assert got == list(range(count))
            writer.close()

    async def write_all(writer: asyncio.StreamWriter, count: int, body: bytes) -> None:
        for number in range(count):
            writer.write(encode_frame(Command(1, number, body=body)))
            await writer.drain()

    asyncio.run(main())


def test_a_half_closed_peer_still_gets_its_answer() -> None:
    async def main() -> None:
        held: list[tuple[Connection, Command]] = []
        async with served(lambda connection, request: held.append((connection, request))) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode_frame(Command(1, 9, body=b"last words")))
            writer.write_eof()
            while not held:
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            echo(*held[0])
            (reply,) = FrameDecoder().feed(await reader.read(65536))
            assert (reply.request_id, reply.body) == (9, b"last words")
            writer.close()

    asyncio.run(main())


def test_idle_peers_are_closed() -> None:
    async def main() -> None:
        async with served(echo, ServerLimits(idle_seconds=0.1, sweep_seconds=0.05)) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.timeout(30):
                    assert await reader.read(1) == b""
            except ConnectionResetError:
                pass
            writer.close()

    asyncio.run(main())

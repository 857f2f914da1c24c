"""Connections in turns, over loopback sockets: what is done for many of them at once, and who leaves that way."""

import asyncio
import select
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kappamq.net.connection import Connection, ConnectionLimits
from kappamq.net.lookout import TURNS_MIN
from kappamq.net.server import Server, ServerLimits
from kappamq.net.standing import IS_COMPILED, PlainStanding, Standing
from kappamq.net.turns import Arrived, Reads, reply_all

if TYPE_CHECKING or IS_COMPILED:
    from kappamq.net._sockets import Sockets

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="the compiled half of turns is not built")

SECONDS_MAX = 30.0


class Desk:
    """Takes every read as so many requests, and answers when told to."""

    def __init__(self, requests: int = 1) -> None:
        self.requests = requests
        self.plain: list[bool] = []
        self.sources: list[tuple[bytes, bytes]] = []
        self.askers: list[tuple[Connection, int]] = []

    def turn(self, reads: Reads, others: Arrived) -> None:
        self.plain += [True] * len(reads.connections) + [False] * len(others)
        for connection, data in others:
            reads.add(connection, data)
        taken = [(len(data), self.requests, self.requests) for data in reads.buffers]
        total, rest = reads.note_taken(taken, sources=self.sources, askers=self.askers)
        assert (total, rest) == (self.requests * len(taken), [])

    def answer(self, frames: bytes) -> None:
        asked, self.askers = self.askers, []
        reply_all([(connection, frames, count) for connection, count in asked])

    async def asked(self, times: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.plain) < times:
                await asyncio.sleep(0.001)


def refuse(connection: Connection, _: object) -> None:
    raise AssertionError(f"nothing is decoded here: {connection.peer}")


@asynccontextmanager
async def served(desk: Desk, limits: ConnectionLimits | None = None) -> AsyncIterator[tuple[str, int]]:
    server_limits = ServerLimits(connection=limits or ConnectionLimits())
    async with Server(refuse, limits=server_limits, on_turn=desk.turn) as server:
        yield "127.0.0.1", await server.listen("127.0.0.1", 0)


def test_both_standings_begin_alike() -> None:
    fields = PlainStanding.__slots__
    plain, compiled = (kind(unanswered_max=7, now=1.5) for kind in (PlainStanding, Standing))
    assert [getattr(plain, name) for name in fields] == [getattr(compiled, name) for name in fields]


def test_a_connection_is_plain_from_its_first_read_on() -> None:
    async def main() -> None:
        desk = Desk()
        async with served(desk) as address:
            reader, writer = await asyncio.open_connection(*address)
            for number in range(3):
                writer.write(b"ask")
                await desk.asked(number + 1)
                connection = desk.askers[0][0]
                assert connection.standing.unanswered == 1
                desk.answer(b"answer")
                assert connection.standing.unanswered == 0
                assert await reader.readexactly(6) == b"answer"
            writer.close()
        assert desk.plain == [True, True, True]
        assert [data for data, _host in desk.sources] == [b"ask"] * 3

    asyncio.run(main())


def test_what_a_peer_does_not_take_is_kept_in_order_and_it_is_plain_again_afterwards() -> None:
    async def main() -> None:
        desk = Desk()
        loop = asyncio.get_running_loop()
        async with served(desk) as address:
            with socket.create_connection(address) as peer:
                peer.setblocking(False)
                await loop.sock_sendall(peer, b"ask")
                await desk.asked(1)
                connection = desk.askers[0][0]
                answers = [bytes((65 + number,)) * 3_000_000 for number in range(3)]
                for frames in answers:
                    desk.askers = [(connection, 1)]
                    desk.answer(frames)
                assert not connection.standing.is_plain
                got = bytearray()
                async with asyncio.timeout(SECONDS_MAX):
                    while len(got) < 9_000_000:
                        got += await loop.sock_recv(peer, 1 << 20)
                assert got == b"".join(answers)
                for number in range(2, 4):
                    await loop.sock_sendall(peer, b"more")
                    await desk.asked(number)
                assert desk.plain == [True, False, True]

    asyncio.run(main())


def test_a_peer_with_too_many_open_requests_waits_until_they_are_answered() -> None:
    async def main() -> None:
        desk = Desk(requests=5)
        async with served(desk, ConnectionLimits(unanswered_max=10)) as address:
            reader, writer = await asyncio.open_connection(*address)
            for number in (1, 2):
                writer.write(b"ask")
                await desk.asked(number)
            standing = desk.askers[0][0].standing
            assert (standing.unanswered, standing.is_plain) == (10, False)
            writer.write(b"later")
            await asyncio.sleep(0.05)
            assert len(desk.plain) == 2
            desk.answer(b"!")
            await desk.asked(3)
            assert await reader.readexactly(2) == b"!!"
            assert [data for data, _host in desk.sources] == [b"ask", b"ask", b"later"]
            writer.close()

    asyncio.run(main())


def test_answers_to_a_connection_that_has_closed_meanwhile_are_dropped() -> None:
    async def main() -> None:
        desk = Desk()
        async with served(desk) as address:
            peers = [await asyncio.open_connection(*address) for _ in range(2)]
            for _reader, writer in peers:
                writer.write(b"ask")
            await desk.asked(2)
            gone = desk.askers[0][0]
            gone.close("closed by the test")
            await gone.wait_closed()
            desk.answer(b"answer")
            names = [f"127.0.0.1:{writer.get_extra_info('sockname')[1]}" for _reader, writer in peers]
            for name, (reader, writer) in zip(names, peers):
                assert await reader.read(6) == (b"" if name == gone.peer else b"answer")
                writer.close()

    asyncio.run(main())


def test_a_peer_that_is_gone_when_it_is_answered_is_forgotten() -> None:
    async def main() -> None:
        desk = Desk()
        async with served(desk) as address:
            with socket.create_connection(address) as peer:
                peer.sendall(b"ask")
                await desk.asked(1)
                connection = desk.askers[0][0]
                # Closed with a reset, which is noticed when it is written to or read from.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            desk.answer(b"answer")
            async with asyncio.timeout(SECONDS_MAX):
                await connection.wait_closed()
            assert not connection.standing.is_plain

    asyncio.run(main())


def test_who_is_not_plain_counts_as_active_too() -> None:
    async def main() -> None:
        desk = Desk()
        async with served(desk) as address:
            _reader, writer = await asyncio.open_connection(*address)
            writer.write(b"ask")
            await desk.asked(1)
            standing = desk.askers[0][0].standing
            for is_plain in (True, False):
                standing.is_plain = is_plain
                standing.last_active = 0.0
                writer.write(b"more")
                await desk.asked(len(desk.plain) + 1)
                assert standing.last_active > 0.0
            assert desk.plain == [True, True, False]
            writer.close()

    asyncio.run(main())


def test_one_that_asks_again_and_again_is_answered_while_the_broker_looks() -> None:
    """More round trips than it takes to look, then a pause in which others have their turn, then on."""

    async def main() -> None:
        desk = Desk()
        async with served(desk) as address:
            reader, writer = await asyncio.open_connection(*address)
            frame = (3).to_bytes(4, "big") + b"ask"
            for number in range(5 * TURNS_MIN):
                writer.write(frame)
                await desk.asked(number + 1)
                desk.answer(b"answer")
                assert await reader.readexactly(6) == b"answer"
                if number == 3 * TURNS_MIN:
                    await asyncio.sleep(0.01)
            writer.close()

    asyncio.run(main())


def test_what_comes_while_looking_is_found() -> None:
    ours, theirs = socket.socketpair()
    epoll = select.epoll()
    try:
        epoll.register(ours.fileno(), select.EPOLLIN)
        sockets = Sockets(epoll.fileno())
        later = threading.Timer(0.05, theirs.send, [b"ask"])
        later.start()
        assert sockets.receive(0.0)[3] == []
        assert [data for _fd, _events, data in sockets.receive(0.0, 10_000_000)[3]] == [b"ask"]
        later.join()
        assert sockets.receive(0.0, 100)[3] == []
    finally:
        epoll.close()
        ours.close()
        theirs.close()

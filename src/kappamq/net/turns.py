"""Accepted connections served in turns: one call reads from all sockets that have something, one call writes to many.

    epoll is readable ─▶ Sockets.receive ─▶ on_turn: everything that was read ─▶ reply_all ─▶ reply_plain

An event loop calls back once for each connection that can be read, and each answer is a call of its own: with many
connections that have one request under way, that costs more than the requests. The transports here keep asyncio's
contract towards their protocol, so that a connection does not know the difference. Nearly all connections of a turn are
plain (`standing.py`): what is done for each of those is compiled.

Needs the compiled half (`_sockets.pyx`); without it the event loop's own transports serve.
"""

import asyncio
import errno
import logging
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kappamq.net.connection import Connection
from kappamq.net.lookout import Lookout
from kappamq.net.standing import IS_COMPILED

if TYPE_CHECKING or IS_COMPILED:
    from kappamq.net._sockets import Sockets, note_taken, reply_plain

log = logging.getLogger(__name__)

TURNS_MAX: Final = 8
"""Turns that follow each other while there is something to read, before the event loop looks after its other work."""
_ACCEPT_AT_ONCE: Final = 64
_ACCEPT_PAUSE_SECONDS: Final = 1.0
_WRITE_PIECE_BYTES: Final = 1024 * 1024
_PASSING_ACCEPT_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TRY_AGAIN: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})

Arrived = list[tuple[Connection, bytes]]


@dataclass(slots=True)
class Reads:
    """What was read in one turn from connections of which each takes frames: the three lists go together."""

    connections: list[Connection]
    buffers: list[bytes]
    rooms: list[int]
    """How many more requests each may have open."""

    def add(self, connection: Connection, data: bytes) -> None:
        self.connections.append(connection)
        self.buffers.append(data)
        self.rooms.append(connection.room)

    def note_taken(
        self,
        taken: list[tuple[int, int, int]],
        *,
        sources: list[tuple[bytes, bytes]],
        askers: list[tuple[Connection, int]],
    ) -> tuple[int, list[tuple[Connection, bytes, int]]]:
        """Of each read so much was taken: up to a position, so many sends, so many answers to come.

        Adds those with sends to `sources` and `askers`; returns the number of all sends, and the reads that go on.
        """
        if IS_COMPILED:
            return note_taken(self.connections, self.buffers, taken, sources=sources, askers=askers)
        total = 0
        rest: list[tuple[Connection, bytes, int]] = []
        for connection, data, (at, count, answers) in zip(self.connections, self.buffers, taken):
            if count:
                sources.append((data, connection.peer_host))
                askers.append((connection, answers))
                total += count
                connection.standing.unanswered += answers
                connection.pace()
            if at < len(data):
                rest.append((connection, data, at))
        return total, rest


TurnHandler = Callable[[Reads, Arrived], None]
"""Called with what was read in one turn, each connection once at most: from those that are plain, and from others.
Hands to `Connection.receive` what it does not take itself."""


class Turns:
    """All accepted connections of one event loop, and the sockets that accept them."""

    def __init__(self, sockets: "Sockets", epoll: select.epoll, *, on_turn: TurnHandler) -> None:
        """Use `Turns.open`."""
        self._sockets = sockets
        self._epoll = epoll
        self._on_turn = on_turn
        self._loop = asyncio.get_running_loop()
        self._lookout = Lookout()
        self._transports: dict[int, TurnTransport] = {}
        self._listening: list[socket.socket] = []
        self._loop.add_reader(epoll.fileno(), self._run)

    @classmethod
    def open(cls, *, on_turn: TurnHandler) -> "Turns | None":
        """`None` where the compiled half is missing."""
        if not IS_COMPILED:
            return None
        epoll = select.epoll()
        return cls(Sockets(epoll.fileno()), epoll, on_turn=on_turn)

    def close(self) -> None:
        """Stop serving. Connections are to be closed before."""
        self.stop_listening()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    # ── Accepting ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def listen(self, accept: Callable[[], Connection], host: str, port: int, *, backlog: int) -> int:
        """Accept on all addresses of a host; returns the port of the first. Raises `OSError`."""
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        opened: list[socket.socket] = []
        try:
            for family, kind, protocol, _name, address in dict.fromkeys(found):
                opened.append(listening := socket.socket(family, kind, protocol))
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(address)
                listening.listen(backlog)
        except OSError:
            for listening in opened:
                listening.close()
            raise
        for listening in opened:
            self._listening.append(listening)
            self._loop.add_reader(listening.fileno(), self._accept, listening, accept)
        chosen: int = opened[0].getsockname()[1]
        return chosen

    def stop_listening(self) -> None:
        """Accept no more; connections stay."""
        for listening in self._listening:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()

    def _accept(self, listening: socket.socket, accept: Callable[[], Connection]) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                if fault.errno not in _PASSING_ACCEPT_ERRORS:
                    raise
                log.warning("connection not accepted: will try again fault=%s", fault)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listening, accept)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = accept()
            transport = TurnTransport(self, accepted, connection)
            self._transports[transport.fd] = transport
            self._sockets.add(transport.fd, connection)
            self._epoll.register(transport.fd, select.EPOLLIN)
            connection.standing.fd = transport.fd
            connection.connection_made(transport)
            connection.reconsider()

    def _accept_again(self, listening: socket.socket, accept: Callable[[], Connection]) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening, accept)

    # ── Turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        if self._epoll.closed:
            return  # Since it was decided to go on here.
        look_us = 0
        for _ in range(TURNS_MAX):
            connections, buffers, rooms, happened = self._sockets.receive(self._loop.time(), look_us)
            if not connections and not happened:
                if look_us:
                    self._lookout.missed()
                return
            is_single = len(connections) == 1 and not happened and _is_one_frame(buffers[0])
            self._lookout.found(is_single=is_single)
            others = self._look_after(happened) if happened else []
            if connections or others:
                self._on_turn(Reads(connections, buffers, rooms), others)
            for connection, _data in others:
                connection.reconsider()
            look_us = self._lookout.microseconds
            if look_us and not self._lookout.is_alone():
                self._lookout.missed()
                look_us = 0
        if look_us:
            # Others had to wait for these turns: they come first, then it goes on here.
            self._loop.call_soon(self._run)

    def _look_after(self, happened: list[tuple[int, int, bytes | int | None]]) -> Arrived:
        """Deal with what happened to connections that are not plain; returns what was read from them."""
        arrived: Arrived = []
        for fd, events, data in happened:
            transport = self._transports.get(fd)
            if transport is None:
                continue
            if isinstance(data, bytes) and data:
                transport.connection.standing.last_active = self._loop.time()
                arrived.append((transport.connection, data))
            else:
                transport.happened(events, data)
            if events & select.EPOLLOUT:
                transport.writable()
        return arrived

    # ── For transports ──────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        if self._transports.pop(fd, None) is not None:
            self._sockets.remove(fd)
            if not self._epoll.closed:
                self._epoll.unregister(fd)


def reply_all(replies: list[tuple[Connection, bytes, int]]) -> None:
    """Answer requests of many connections, for each with frames and how many requests they answer.

    One call for all that are plain; the others as `Connection.reply_frames` does it.
    """
    if IS_COMPILED:
        replies, short = reply_plain(replies)
        for connection, frames, taken in short:
            assert isinstance(connection.transport, TurnTransport), "only connections in turns are plain"
            connection.transport.sent(frames, taken)
    for connection, frames, count in replies:
        connection.reply_frames(frames, count)


def _is_one_frame(data: bytes) -> bool:
    """Whether a read that begins with a frame has just that one."""
    return int.from_bytes(data[:4], "big") + 4 == len(data)


class TurnTransport(asyncio.Transport):
    """One accepted connection."""

    def __init__(self, turns: Turns, accepted: socket.socket, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.fd = accepted.fileno()
        self.turns = turns
        self._socket = accepted
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._is_reading = True
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            try:
                return self._socket.getpeername()
            except OSError:
                return default
        return self._socket if name == "socket" else default

    def is_closing(self) -> bool:
        return self._is_closing

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def pause_reading(self) -> None:
        self._is_reading = False
        self._watch()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._watch()

    def happened(self, events: int, data: bytes | int | None) -> None:
        """The peer has ended or broken the connection."""
        if self._is_closing and not self._unsent:
            return
        if data == b"":
            self.pause_reading()  # Nothing more will come.
            if not self.connection.eof_received():
                self.close()
        elif isinstance(data, int):
            if -data not in _TRY_AGAIN:
                self._break(OSError(-data, os.strerror(-data)))
        elif events & (select.EPOLLHUP | select.EPOLLERR):
            self._break(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if self._unsent:
            self._keep(data)
            return
        try:
            taken = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            taken = 0
        except OSError as fault:
            self._break(fault)
            return
        if taken < len(data):
            self._keep(memoryview(data)[taken:])

    def sent(self, data: bytes, taken: int) -> None:
        """Only a part of `data` was taken, or there was an error (below zero)."""
        if taken < 0 and -taken not in _TRY_AGAIN:
            self._break(OSError(-taken, os.strerror(-taken)))
        elif not self._is_closing:
            self._keep(memoryview(data)[max(taken, 0) :])

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        was_empty = not self._unsent
        self.connection.standing.is_plain = False
        self._unsent += data
        if was_empty:
            self._watch()
        if len(self._unsent) > self._high and not self._is_paused:
            self._is_paused = True
            self.connection.pause_writing()

    def writable(self) -> None:
        """The peer takes more."""
        if self._is_lost or not self._unsent:
            return
        try:
            with memoryview(self._unsent) as unsent:
                taken = self._socket.send(unsent[:_WRITE_PIECE_BYTES])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as fault:
            self._break(fault)
            return
        del self._unsent[:taken]
        if self._is_paused and len(self._unsent) <= self._low:
            self._is_paused = False
            self.connection.resume_writing()
        if not self._unsent:
            self._watch()
            if self._is_closing:
                self._lose(None)

    # ── Ending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        if self._is_closing:
            return
        self.connection.standing.is_plain = False
        self._is_closing = True
        if self._unsent:
            self.pause_reading()
        else:
            self._lose(None)

    def abort(self) -> None:
        self._break(None)

    def _break(self, fault: Exception | None) -> None:
        self.connection.standing.is_plain = False
        self._is_closing = True
        self._unsent.clear()
        self._lose(fault)

    def _lose(self, fault: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.turns.forget(self.fd)
        # Later, as asyncio does: whoever closes is not called back meanwhile.
        self._loop.call_soon(self._finish, fault)

    def _finish(self, fault: Exception | None) -> None:
        try:
            self.connection.connection_lost(fault)
        finally:
            self._socket.close()

    def _watch(self) -> None:
        if not self._is_lost:
            events = select.EPOLLIN if self._is_reading else 0
            self.turns.watch(self.fd, events | (select.EPOLLOUT if self._unsent else 0))

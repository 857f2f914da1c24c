"""Accepted connections served in turns: one call reads from all sockets that have something, one call writes to many.

    epoll is readable ─▶ Sockets.receive ─▶ on_turn: everything that was read ─▶ replies ─▶ Sockets.send

An event loop calls back once for each connection that can be read, and each answer is a call of its own: with many
connections that have one request under way, that costs more than the requests. The transports here keep asyncio's
contract towards their protocol, so that a connection does not know the difference.

Needs the compiled half (`_sockets.pyx`); without it the event loop's own transports serve.
"""

import asyncio
import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from kappamq.net.connection import Connection

if TYPE_CHECKING:
    from kappamq.net._sockets import Sockets

log = logging.getLogger(__name__)

_INTERFACE: Final = 2
TURNS_MAX: Final = 8
"""Turns that follow each other while there is something to read, before the event loop looks after its other work."""
_ACCEPT_AT_ONCE: Final = 64
_ACCEPT_PAUSE_SECONDS: Final = 1.0
_WRITE_PIECE_BYTES: Final = 1024 * 1024
_PASSING_ACCEPT_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TRY_AGAIN: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})

Arrived = list[tuple[Connection, bytes]]
TurnHandler = Callable[[Arrived], None]
"""Called with what was read in one turn, each connection once at most. Hands to `Connection.data_received` what it does
not take itself."""


def make_sockets(epoll: int) -> "Sockets | None":
    """The compiled half; `None` where it was not built, or from older sources."""
    if os.environ.get("KAPPAMQ_KERNEL") == "python":
        return None
    try:
        from kappamq.net import _sockets
    except ImportError:
        return None
    return _sockets.Sockets(epoll) if _sockets.INTERFACE == _INTERFACE else None


class Turns:
    """All accepted connections of one event loop, and the sockets that accept them."""

    def __init__(self, sockets: "Sockets", epoll: select.epoll, *, on_turn: TurnHandler) -> None:
        """Use `Turns.open`."""
        self.sockets = sockets
        self._epoll = epoll
        self._on_turn = on_turn
        self._loop = asyncio.get_running_loop()
        self._transports: dict[int, TurnTransport] = {}
        self._listening: list[socket.socket] = []
        self._loop.add_reader(epoll.fileno(), self._run)

    @classmethod
    def open(cls, *, on_turn: TurnHandler) -> "Turns | None":
        """`None` where the compiled half is missing."""
        epoll = select.epoll()
        sockets = make_sockets(epoll.fileno())
        if sockets is None:
            epoll.close()
            return None
        return cls(sockets, epoll, on_turn=on_turn)

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
            self._epoll.register(transport.fd, select.EPOLLIN)
            connection.connection_made(transport)

    def _accept_again(self, listening: socket.socket, accept: Callable[[], Connection]) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening, accept)

    # ── Turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        for _ in range(TURNS_MAX):
            happened = self.sockets.receive()
            if not happened:
                return
            arrived: Arrived = []
            for fd, events, data in happened:
                transport = self._transports.get(fd)
                if transport is None:
                    continue
                if data.__class__ is bytes and data:
                    arrived.append((transport.connection, data))
                else:
                    transport.happened(events, data)
                if events & select.EPOLLOUT:
                    transport.writable()
            if arrived:
                self._on_turn(arrived)

    # ── For transports ──────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        if self._transports.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)


def reply_all(replies: Iterable[tuple[Connection, bytes, int]]) -> None:
    """Answer requests of many connections, for each with frames and how many requests they answer.

    One call for all that can be written now, in turns; the rest as `Connection.reply_frames` does it.
    """
    direct: list[TurnTransport] = []
    pairs: list[tuple[int, bytes]] = []
    for connection, frames, count in replies:
        transport = connection.transport
        if not isinstance(transport, TurnTransport) or not transport.is_idle:
            connection.reply_frames(frames, count)
        elif connection.answered(count):
            direct.append(transport)
            pairs.append((transport.fd, frames))
        else:
            connection.reply_frames(frames, 0)
    if direct:
        for transport, (_fd, frames), taken in zip(direct, pairs, direct[0].turns.sockets.send(pairs)):
            if taken != len(frames):
                transport.sent(frames, taken)


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

    @property
    def is_idle(self) -> bool:
        """Whether bytes can be written now, before any others."""
        return not self._unsent and not self._is_closing

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
        self._is_closing = True
        if self._unsent:
            self.pause_reading()
        else:
            self._lose(None)

    def abort(self) -> None:
        self._break(None)

    def _break(self, fault: Exception | None) -> None:
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

"""Connections over real sockets and syncs of real files, in random sequences, with peers and calls that misbehave.

A model says what must come out: every byte once and in order, every request counted, every sync reported.
"""

import errno
import os
import random
import select
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Final

STEPS_MAX: Final = 40
PEERS_MAX: Final = 5
UNANSWERED_MAX: Final = 50
SYNC_SECONDS_MAX: Final = 30.0
FILES_MAX: Final = 256


class _Connection:
    """What the compiled half needs of one, and what the model knows about its peer."""

    def __init__(self, standing: Any, own: socket.socket, peer: socket.socket) -> None:
        self.standing = standing
        self.own = own
        self.peer = peer
        self.peer_host = b"\x7f\0\0\1\0\0\0\1"
        self.paces = 0
        self.unread = bytearray()
        """Sent by the peer, not received yet."""
        self.unseen = bytearray()
        """Written to the peer, not read by it yet."""
        self.unanswered = 0
        self.is_peer_gone = False

    def pace(self) -> None:
        self.paces += 1


class Turns:
    """One sequence of turns."""

    def __init__(self, source: random.Random) -> None:
        from kappamq.net import _sockets

        self._compiled: Any = _sockets
        self._random = source
        self._epoll = select.epoll()
        self._sockets: Any = _sockets.Sockets(self._epoll.fileno())
        self._connections: dict[int, _Connection] = {}
        self._asked: list[tuple[_Connection, int]] = []

    def run(self) -> str | None:
        """What went wrong in a sequence, if anything."""
        steps = (self._connect, self._ask, self._ask, self._turn, self._turn, self._answer, self._take, self._leave)
        try:
            for _ in range(self._random.randrange(STEPS_MAX)):
                found = self._random.choice((*steps, self._misuse))()
                if found is not None:
                    return found
            return self._turn() or self._answer() or self._take()
        finally:
            for connection in self._connections.values():
                connection.own.close()
                connection.peer.close()
            self._epoll.close()

    def _any(self) -> _Connection | None:
        return self._random.choice(list(self._connections.values())) if self._connections else None

    def _connect(self) -> None:
        if len(self._connections) >= PEERS_MAX:
            return
        own, peer = socket.socketpair()
        for end in (own, peer):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        standing = self._compiled.Standing(unanswered_max=UNANSWERED_MAX, now=0.0)
        standing.fd = own.fileno()
        standing.is_plain = self._random.random() < 0.8
        connection = _Connection(standing, own, peer)
        self._connections[own.fileno()] = connection
        if self._random.random() < 0.95:  # Else what is read from it is nobody's.
            self._sockets.add(own.fileno(), connection)
        self._epoll.register(own.fileno(), select.EPOLLIN)

    def _ask(self) -> None:
        connection = self._any()
        if connection is None or connection.is_peer_gone:
            return
        data = self._random.randbytes(self._random.choice((1, 7, 300, 5000)))
        try:
            connection.unread += data[: connection.peer.send(data)]
        except BlockingIOError:
            pass

    def _turn(self) -> str | None:
        connections, buffers, rooms, others = self._sockets.receive(1.0)
        if not len(connections) == len(buffers) == len(rooms):
            return "receive: lists of different lengths"
        for connection, data, room in zip(connections, buffers, rooms):
            if not connection.standing.is_plain or room != UNANSWERED_MAX - connection.unanswered:
                return "receive: not plain, or the room is wrong"
            found = self._check_read(connection, data)
            if found is not None:
                return found
        for fd, _events, data in others:
            connection = self._connections[fd]
            if isinstance(data, bytes) and data:
                found = self._check_read(connection, data)
                if found is not None:
                    return found
            elif not connection.is_peer_gone:
                return f"receive: {data!r} though the peer is there"
            else:
                self._forget(connection)
        return self._note(connections, buffers)

    def _check_read(self, connection: _Connection, data: bytes) -> str | None:
        if connection.unread[: len(data)] != data:
            return "receive: other bytes than were sent"
        del connection.unread[: len(data)]
        return None

    def _note(self, connections: list[_Connection], buffers: list[bytes]) -> str | None:
        source = self._random
        taken = [(source.randrange(len(data) + 1), source.randrange(3), source.randrange(3)) for data in buffers]
        sources: list[Any] = []
        askers: list[Any] = []
        paces = [connection.paces for connection in connections]
        total, rest = self._compiled.note_taken(connections, buffers, taken, sources=sources, askers=askers)
        counted = [(connection, answers) for connection, (_at, count, answers) in zip(connections, taken) if count]
        for connection, answers in counted:
            connection.unanswered += answers
        ends = [(data, at) for data, (at, _count, _answers) in zip(buffers, taken) if at < len(data)]
        if total != sum([count for _at, count, _answers in taken]) or askers != counted or len(sources) != len(askers):
            return "note_taken: sends or askers are wrong"
        if [(data, at) for _connection, data, at in rest] != ends:
            return "note_taken: the rest is wrong"
        for connection, before, (_at, count, _answers) in zip(connections, paces, taken):
            if connection.standing.unanswered != connection.unanswered:
                return "note_taken: requests are not counted"
            if (connection.paces > before) != bool(count and connection.unanswered >= UNANSWERED_MAX):
                return "note_taken: a full connection is not slowed down, or another one is"
        self._asked += counted
        return None

    def _answer(self) -> str | None:
        source = self._random
        asked: dict[_Connection, int] = {}
        for connection, answers in self._asked:
            asked[connection] = asked.get(connection, 0) + answers
        self._asked = []
        replies = [
            (connection, source.randbytes(source.choice((0, 1, 300, 9000))), answers)
            for connection, answers in asked.items()
        ]
        others, short = self._compiled.reply_plain(replies)
        if others != [reply for reply in replies if not reply[0].standing.is_plain]:
            return "reply_plain: the others are wrong"
        refused = {connection: taken for connection, _frames, taken in short}
        for connection, frames, answers in replies:
            if not connection.standing.is_plain:
                continue
            connection.unanswered = max(0, connection.unanswered - answers)
            taken = refused.get(connection, len(frames))
            if taken < 0 and taken != -errno.EAGAIN and not connection.is_peer_gone:
                return f"reply_plain: error {-taken} though the peer is there"
            connection.unseen += frames[: max(taken, 0)]
            if connection.standing.unanswered != connection.unanswered:
                return "reply_plain: answers are not counted"
        for connection, _frames, _taken in short:
            connection.standing.is_plain = False  # As transports do: what comes later must not overtake the rest.
        return None

    def _take(self) -> str | None:
        """A peer reads what was written to it."""
        connection = self._any()
        if connection is None or connection.is_peer_gone:
            return None
        try:
            data = connection.peer.recv(self._random.choice((1, 100, 100_000)))
        except BlockingIOError:
            return "a peer got nothing" if connection.unseen else None
        if not data or connection.unseen[: len(data)] != data:
            return "a peer got other bytes than were written"
        del connection.unseen[: len(data)]
        return None

    def _leave(self) -> None:
        """A peer goes, or we do while it may still be answered."""
        connection = self._any()
        if connection is None:
            return
        if self._random.random() < 0.6:
            connection.peer.close()
            connection.is_peer_gone = True
        else:
            self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        fd = connection.own.fileno()
        connection.standing.is_plain = False
        self._sockets.remove(fd)
        self._epoll.unregister(fd)
        del self._connections[fd]
        connection.own.close()
        connection.peer.close()

    def _misuse(self) -> str | None:
        """Calls that must be refused, and change nothing."""
        connection = self._any()
        note: Callable[..., Any] = self._compiled.note_taken
        calls: list[Callable[[], Any]] = [
            lambda: note([connection], [], [(0, 0, 0)], sources=[], askers=[]),
            lambda: note([connection], [b""], [], sources=[], askers=[]),
            lambda: note([connection], [b"x"], [(0, 1)], sources=[], askers=[]),
            lambda: note([object()], [b"x"], [(0, 1, 1)], sources=[], askers=[]),
            lambda: note([connection], [b"x"], None, sources=[], askers=[]),
            lambda: self._compiled.reply_plain([(connection, bytearray(b"x"), 1)]),
            lambda: self._compiled.reply_plain([(object(), b"x", 1)]),
            lambda: self._compiled.reply_plain([(connection, b"x")]),
            lambda: self._compiled.reply_plain(None),
        ]
        try:
            self._random.choice(calls)()
        except (TypeError, ValueError, AttributeError):
            return None
        return "a call that makes no sense was not refused"


def sync_difference(source: random.Random) -> str | None:
    """Whether syncs of a file, of none, or of one that is not open are reported as they should be."""
    from kappamq.store import _syncing

    syncer = _syncing.Syncer()
    thread = threading.Thread(target=syncer.run)
    thread.start()
    fault = 0
    try:
        with tempfile.TemporaryFile() as file:
            target = 0
            for _ in range(source.randrange(1, 6)):
                files = [file.fileno()] * source.choice((0, 1, 1, 1, 3, FILES_MAX, FILES_MAX + 1))
                if source.random() < 0.1:
                    files.append(-1)
                try:
                    syncer.request(files, target + 1)
                except ValueError:
                    if len(files) <= FILES_MAX:
                        return "request: refused"
                    continue
                target += 1
                os.write(file.fileno(), b"x")
                if source.random() < 0.5:
                    continue  # The next one may take it along.
                reached = 0
                while reached < target and not fault:
                    if not select.select([syncer.fileno()], [], [], SYNC_SECONDS_MAX)[0]:
                        return "run: a sync is not reported"
                    reached, fault = syncer.take()
                if fault:
                    return None if fault == errno.EBADF else f"run: error {fault}"
            syncer.stop()
            thread.join(SYNC_SECONDS_MAX)
            reached, fault = syncer.take()
            if fault not in (0, errno.EBADF) or (not fault and reached != target):
                return f"run: ended at {reached} of {target} with error {fault}"
            return None
    finally:
        syncer.stop()
        thread.join(SYNC_SECONDS_MAX)

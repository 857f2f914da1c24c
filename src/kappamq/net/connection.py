"""One connection: bytes through a decoder, requests to a handler, replies to their callers, with back-pressure.

Reading stops while the peer does not take what we write (`write_bytes_high`), or while too many of its requests are
unanswered (`unanswered_max`). What was read already waits in a backlog, so order holds and memory is bounded.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from kappamq.errors import CallTimeout, ConnectionLost, LocalProtocolError, RemoteProtocolError
from kappamq.kernel import scan_send_replies
from kappamq.kernel.client_reference import SendReplied
from kappamq.model.ids import pack_host
from kappamq.net.standing import Standing
from kappamq.wire.command import ONE_WAY_FLAG, Command, HeaderType
from kappamq.wire.exchange import INFLIGHT_MAX, Exchange
from kappamq.wire.frame import FRAME_BYTES_MAX, FRAME_HEAD_BYTES, FrameDecoder, encode_frame
from kappamq.wire.header_codec import decode_header

log = logging.getLogger(__name__)

_TLS_HANDSHAKE: Final = 0x16
_EXPIRE_SECONDS: Final = 0.5
_HALF_CLOSED_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one peer may cost us."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    write_bytes_high: int = 4 * 1024 * 1024
    write_bytes_low: int = 1024 * 1024
    unanswered_max: int = 8192
    inflight_max: int = INFLIGHT_MAX


RequestHandler = Callable[["Connection", Command], None]
"""Called for every request in order of arrival; answers now or later with `Connection.reply`, must not block."""


class ReplyWaiter(Protocol):
    """Gets the reply to a request: a future, or something cheaper where there are many."""

    def done(self) -> bool: ...

    def set_result(self, reply: Command, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class RunWaiter(ABC):
    """Gets the replies to many sends. Plain successes come as the kernel finds them, the others as commands."""

    __slots__ = ()

    def done(self) -> bool:
        return False

    @abstractmethod
    def set_stored(self, replies: Sequence[SendReplied], /) -> None: ...

    @abstractmethod
    def set_result(self, reply: Command, /) -> None: ...

    @abstractmethod
    def set_exception(self, error: BaseException, /) -> None: ...


FramesHandler = Callable[["Connection", bytes, int, int], int]
"""Called with a buffer, a position and a number: takes up to that many requests from the position on, as long as it
knows them, and returns where it stopped. What it takes it answers now or later, with `Connection.reply_frames`."""


class Connection(asyncio.Protocol):
    """Both ends use the same class: each may ask and answer."""

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        limits: ConnectionLimits | None = None,
        on_open: Callable[["Connection"], None] | None = None,
        on_lost: Callable[["Connection"], None] | None = None,
        on_frames: FramesHandler | None = None,
    ) -> None:
        """`on_frames` is offered the bytes of requests before anybody decodes them."""
        self._limits = limits or ConnectionLimits()
        self._on_request = on_request
        self._on_open = on_open
        self._on_lost = on_lost
        self._on_frames = on_frames
        self._decoder = FrameDecoder(frame_bytes_max=self._limits.frame_bytes_max)
        self._exchange: Exchange[ReplyWaiter] = Exchange(inflight_max=self._limits.inflight_max)
        self._backlog: deque[Command] = deque()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self.transport: asyncio.Transport | None = None
        """What bytes go through; `None` before the connection is made."""
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._is_write_paused = False
        self._is_read_paused = False
        self._is_flush_due = False
        self._is_closing = False
        self._has_runs = False
        """Whether replies to many sends may be on their way."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is gone."""
        self._why = "closed by the peer"
        self.peer = "unknown"
        self.peer_host = pack_host("127.0.0.1", 0)
        self.standing = Standing(unanswered_max=self._limits.unanswered_max, now=self._loop.time())
        self.frame_since: float | None = None
        """When the frame that is still incomplete began to arrive."""

    # ── Life cycle ──────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport: a cast, no check.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._limits.write_bytes_high, low=self._limits.write_bytes_low)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            host = str(name[0]).partition("%")[0].removeprefix("::ffff:")
            self.peer_host = pack_host(host, name[1])
            self.peer = f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.standing.is_plain = False
        self._is_closing = True
        if exc is not None:
            self._why = f"lost: {exc}"
        if self._expiry is not None:
            self._expiry.cancel()
        for waiter in self._exchange.abandon():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(f"connection to {self.peer} {self._why}: try again"))
        self._backlog.clear()
        self._outgoing.clear()
        if not self.lost.done():
            self.lost.set_result(None)
        if self._on_lost is not None:
            self._on_lost(self)

    def close(self, why: str = "closed by us") -> None:
        """Finish writing what is queued, then close."""
        if self._is_closing or self.transport is None:
            return
        self._flush()
        self.standing.is_plain = False
        self._is_closing = True
        self._why = why
        self.transport.close()

    def abort(self, why: str) -> None:
        """Close at once; what was not written is lost."""
        if self.transport is None:
            return
        self.standing.is_plain = False
        self._is_closing = True
        self._why = why
        self.transport.abort()

    async def wait_closed(self) -> None:
        """Return when the connection is gone."""
        await asyncio.shield(self.lost)  # Shielded: several may wait, and one that is cancelled must not end the rest.

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self._is_closing

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for this peer: incomplete input and unsent output."""
        unsent = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return self._decoder.buffered_bytes + self._outgoing_bytes + unsent

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self.standing.last_active = self._loop.time()
        try:
            if self._on_frames is not None and not self._backlog:
                self._take_in_bulk(self._decoder.join(data), self._on_frames)
                return
            if self._has_runs and not self._backlog:
                self._take_replies(self._decoder.join(data))
                return
            commands = self._decoder.feed(data)
        except RemoteProtocolError as fault:
            self._refuse_stream(data, fault)
            return
        self._note_progress(bool(commands))
        if self._backlog:
            self._backlog.extend(commands)
            return
        self._take(commands)

    def _refuse_stream(self, data: bytes, fault: RemoteProtocolError) -> None:
        hint = _hint(data)
        log.warning("peer broke the protocol: connection closed peer=%s fault=%s%s", self.peer, fault, hint)
        self.abort(f"broke the protocol: {fault}")

    def _note_progress(self, has_frames: bool) -> None:
        if not self._decoder.buffered_bytes:
            self.frame_since = None
        elif has_frames or self.frame_since is None:
            self.frame_since = self.standing.last_active

    def eof_received(self) -> bool:
        """The peer will send no more: answer what it has asked, then close."""
        if self.standing.unanswered == 0 and not self._outgoing and not self._backlog:
            return False
        self._loop.call_later(_HALF_CLOSED_SECONDS, self.close, "half-closed by the peer")
        return True

    def _take(self, commands: "list[Command] | deque[Command]") -> None:
        """Handle commands in order until the peer must wait; keep the rest."""
        for position, command in enumerate(commands):
            if not command.is_reply and self._must_wait():
                self._backlog = deque(list(commands)[position:])
                break
            self._handle(command)
            if self._is_closing:
                break
        self._finish_read()

    def _take_replies(self, buffer: bytes) -> None:
        """The same where many replies to plain sends are awaited: they go to their run together."""
        taken, replies = scan_send_replies(buffer, 0, frame_bytes_max=self._limits.frame_bytes_max)
        start, position = 0, 0
        while position < len(replies):
            waiter = self._exchange.waiter_of(replies[position][0])
            if isinstance(waiter, RunWaiter):
                rest = replies[position:] if position else replies
                count = self._exchange.close_run((reply[0] for reply in rest), waiter)
                waiter.set_stored(rest[:count])
                position += count
            else:
                if waiter is not None:
                    self._handle(
                        decode_header(HeaderType.JSON, buffer[start + FRAME_HEAD_BYTES : replies[position][-1]], b"")
                    )
                position += 1
            start = replies[position - 1][-1]
        frames = self._decoder.split(buffer, taken)
        self._note_progress(taken > 0 or bool(frames))
        self._has_runs = self._exchange.inflight > 0
        self._take(
            [decode_header(kind, buffer[start:middle], buffer[middle:stop]) for kind, start, middle, stop in frames]
        )

    @property
    def takes_frames(self) -> bool:
        """Whether what is read next begins with a frame, which may be answered before anything else."""
        return not (self._backlog or self._is_closing or self._decoder.is_amid_frame)

    def reconsider(self) -> None:
        """Find out whether this connection is plain, which only one that is served in turns can be."""
        self.standing.is_plain = (
            self.standing.fd >= 0
            and self.takes_frames
            and not (self._outgoing or self._is_read_paused or self._is_write_paused)
            and self.transport is not None
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
        )

    def go_on(self, buffer: bytes, at: int) -> None:
        """What was read was taken up to this position; what follows is for this connection to deal with."""
        if at == len(buffer):
            return
        self.standing.is_plain = False
        assert self._on_frames is not None
        try:
            self._take_in_bulk(buffer, self._on_frames, at)
        except RemoteProtocolError as fault:
            self._refuse_stream(buffer, fault)
        except Exception:  # noqa: BLE001 - one of two places that must outlive a bug: others were read from as well.
            self._give_up()
        self.reconsider()

    def receive(self, data: bytes) -> None:
        """`data_received` for one of many connections: a fault of ours costs this one alone."""
        self.standing.is_plain = False
        try:
            self.data_received(data)
        except Exception:  # noqa: BLE001 - one of two places that must outlive a bug: others were read from as well.
            self._give_up()
        self.reconsider()

    def _give_up(self) -> None:
        log.exception("a request could not be handled: connection closed peer=%s", self.peer)
        self.abort("closed: internal error")

    def _take_in_bulk(self, buffer: bytes, on_frames: FramesHandler, at: int = 0) -> None:
        """The same for the frames of a buffer, each run of which is offered to `on_frames` first."""
        taken = on_frames(self, buffer, at, self.room) if buffer else 0
        if taken and taken == len(buffer):
            self.frame_since = None
            if self._is_read_paused or self.standing.unanswered >= self._limits.unanswered_max:
                self.pace()
            return
        try:
            frames = self._decoder.split(buffer, taken)
            self._note_progress(taken > 0 or bool(frames))
            for position, (header_type, header_at, body_at, end) in enumerate(frames):
                if header_at < taken:
                    continue
                command = decode_header(header_type, buffer[header_at:body_at], buffer[body_at:end])
                if not command.is_reply and self._must_wait():
                    self._backlog = deque(
                        decode_header(kind, buffer[start:middle], buffer[middle:stop])
                        for kind, start, middle, stop in frames[position:]
                    )
                    break
                self._handle(command)
                if self._is_closing:
                    break
                taken = end
                if position + 1 < len(frames):
                    taken = on_frames(self, buffer, end, self.room)
        finally:
            self._finish_read()

    def _handle(self, command: Command) -> None:
        if command.is_reply:
            waiter = self._exchange.close(command.request_id)
            if waiter is not None and not waiter.done():
                waiter.set_result(command)
            return
        if not command.is_one_way:
            self.standing.unanswered += 1
        self._on_request(self, command)

    def _finish_read(self) -> None:
        self._flush()
        self.pace()

    @property
    def room(self) -> int:
        """How many more requests the peer may have open now."""
        if self._is_write_paused or self._outgoing_bytes > self._limits.write_bytes_high:
            return 0
        return self._limits.unanswered_max - self.standing.unanswered

    @property
    def frame_bytes_max(self) -> int:
        return self._limits.frame_bytes_max

    def _must_wait(self) -> bool:
        return (
            self._is_write_paused
            or self._outgoing_bytes > self._limits.write_bytes_high
            or self.standing.unanswered >= self._limits.unanswered_max
        )

    def pace(self) -> None:
        """Read only as fast as the peer takes our answers."""
        if self.transport is None or self._is_closing:
            return
        must_wait = self._must_wait() or bool(self._backlog)
        if must_wait and not self._is_read_paused:
            self.standing.is_plain = False
            self._is_read_paused = True
            self.transport.pause_reading()
        elif not must_wait and self._is_read_paused:
            self._is_read_paused = False
            self.transport.resume_reading()

    def _resume(self) -> None:
        if self._backlog and not self._must_wait() and not self._is_closing:
            backlog, self._backlog = self._backlog, deque()
            self._take(backlog)
        else:
            self.pace()

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def reply(self, command: Command) -> None:
        """Answer a request of the peer. Answers to a closed connection are dropped."""
        self.reply_encoded(encode_frame(command))

    def reply_encoded(self, frame: bytes) -> None:
        """Answer with a frame that is encoded already."""
        self.settle()
        self._enqueue(frame)

    def expect_replies(self, count: int) -> None:
        """Count requests that were taken from their bytes as unanswered."""
        self.standing.unanswered += count

    def reply_frames(self, frames: bytes, count: int) -> None:
        """Answer that many requests with frames that are encoded already: one write for all of them."""
        if not self.answered(count) or self.transport is None:
            self._enqueue(frames)
            return
        self.standing.last_active = self._loop.time()
        self.transport.write(frames)

    def answered(self, count: int) -> bool:
        """Count that many requests as answered; whether their answers may be written at once, before all else."""
        self.standing.unanswered = max(0, self.standing.unanswered - count)
        if self._backlog or self._is_read_paused:
            self._loop.call_soon(self._resume)
        return not (self._outgoing or self._is_closing)

    def settle(self) -> None:
        """Count one request of the peer as answered (or as one that gets no answer)."""
        if self.standing.unanswered > 0:
            self.standing.unanswered -= 1

    def send(self, command: Command) -> None:
        """Send a request that gets no reply."""
        if not self.is_open:
            raise ConnectionLost(f"connection to {self.peer} is {self._why}: try again")
        command.flag |= ONE_WAY_FLAG
        command.request_id = self._exchange.next_id()
        self._enqueue(encode_frame(command))

    async def call(self, command: Command, *, timeout_ms: float) -> Command:
        """Send a request and wait for its reply, whatever its code.

        Raises `CallTimeout`, `ConnectionLost` or `TooManyInFlight`. When cancelled, the outcome is unknown.
        """
        return await self.begin(command, timeout_ms=timeout_ms)

    def begin(self, command: Command, *, timeout_ms: float) -> asyncio.Future[Command]:
        """Send a request now and return the future of its reply: pipelining without a task for each call."""
        if command.flag & ONE_WAY_FLAG:
            raise LocalProtocolError("a one-way request gets no reply: use send()")
        waiter: asyncio.Future[Command] = self._loop.create_future()
        command.request_id = self.expect(waiter, timeout_ms=timeout_ms)
        self._enqueue(encode_frame(command))
        return waiter

    def expect(self, waiter: ReplyWaiter, *, timeout_ms: float) -> int:
        """Request id of a request that the caller encodes and writes; `waiter` gets the reply or the error."""
        if not self.is_open:
            raise ConnectionLost(f"connection to {self.peer} is {self._why}: try again")
        request_id = self._exchange.open(waiter, deadline=self._loop.time() + timeout_ms / 1000)
        if self._expiry is None:
            self._expiry = self._loop.call_later(min(_EXPIRE_SECONDS, timeout_ms / 1000), self._expire)
        return request_id

    def expect_many(self, waiter: RunWaiter, count: int, *, timeout_ms: float) -> int:
        """The same for requests with ids that follow each other: `waiter` gets every reply. Returns the first id."""
        if not self.is_open:
            raise ConnectionLost(f"connection to {self.peer} is {self._why}: try again")
        request_id = self._exchange.open_many(waiter, count, deadline=self._loop.time() + timeout_ms / 1000)
        self._has_runs = True
        if self._expiry is None:
            self._expiry = self._loop.call_later(min(_EXPIRE_SECONDS, timeout_ms / 1000), self._expire)
        return request_id

    def write(self, frame: bytes) -> None:
        """Write requests that are encoded already, together with what else is written now."""
        self._enqueue(frame)

    def write_at_once(self, frames: bytes) -> None:
        """The same for whoever has collected requests and waits for no more of them."""
        self._outgoing.append(frames)
        self._flush()

    def _expire(self) -> None:
        self._expiry = None
        for waiter in self._exchange.expire(self._loop.time()):
            if not waiter.done():
                waiter.set_exception(CallTimeout(f"no reply from {self.peer} in time: try again or allow more time"))
        if self._exchange.inflight and not self._is_closing:
            self._expiry = self._loop.call_later(_EXPIRE_SECONDS, self._expire)

    def _enqueue(self, frame: bytes) -> None:
        if self._is_closing or self.transport is None:
            return
        self.standing.is_plain = False
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush()
        if self._backlog or self._is_read_paused:
            self._resume()

    def _flush(self) -> None:
        """Hand everything that is queued to the transport in one write."""
        self._is_flush_due = False
        if not self._outgoing:
            return
        data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self.transport is not None and not self._is_closing:
            self.standing.last_active = self._loop.time()
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.standing.is_plain = False
        self._is_write_paused = True
        self.pace()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._loop.call_soon(self._resume)


def _hint(data: bytes) -> str:
    """What a stranger's first bytes look like."""
    if data[:1] == bytes((_TLS_HANDSHAKE,)):
        return " (looks like TLS: this port speaks plain RocketMQ remoting)"
    if data[:4].isalpha() or data[:4] in (b"GET ", b"PUT "):
        return " (looks like HTTP or text: this port speaks RocketMQ remoting)"
    return ""

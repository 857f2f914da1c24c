"""Accepting connections: limits, idle and slow peers, orderly stop."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from kappamq.errors import ConfigError
from kappamq.net.connection import Connection, ConnectionLimits, FramesHandler, RequestHandler
from kappamq.net.turns import TurnHandler, Turns

log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What all peers together may cost us."""

    connections_max: int = 10_000
    buffered_bytes_max: int = 512 * 1024 * 1024
    idle_seconds: float = 120.0
    frame_seconds: float = 60.0
    """How long one frame may take to arrive."""
    sweep_seconds: float = 5.0
    backlog: int = 1024
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


def _ignore(_: Connection) -> None:
    return None


class Server:
    """Listens on one or more addresses and hands requests to one handler. Use as an async context manager."""

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        limits: ServerLimits | None = None,
        on_open: Callable[[Connection], None] = _ignore,
        on_lost: Callable[[Connection], None] = _ignore,
        on_frames: FramesHandler | None = None,
        on_turn: TurnHandler | None = None,
    ) -> None:
        """With `on_turn`, connections are served in turns where that is possible; `on_frames` gets what it leaves."""
        self._on_turn = on_turn
        self._turns: Turns | None = None
        self._on_request = on_request
        self._limits = limits or ServerLimits()
        self._on_open = on_open
        self._on_lost = on_lost
        self._on_frames = on_frames
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Server":
        self._sweep = asyncio.get_running_loop().call_later(self._limits.sweep_seconds, self._sweep_peers)
        if self._on_turn is not None:
            self._turns = Turns.open(on_turn=self._on_turn)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def listen(self, host: str, port: int) -> int:
        """Start accepting on an address; returns the port, which matters when 0 was asked for."""
        loop = asyncio.get_running_loop()
        try:
            if self._turns is not None:
                return await self._turns.listen(self._accept, host, port, backlog=self._limits.backlog)
            server = await loop.create_server(
                self._accept, host or None, port, backlog=self._limits.backlog, reuse_address=True
            )
        except OSError as fault:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({fault.strerror or fault}): choose another port or stop its owner"
            ) from None
        self._servers.append(server)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._connections)

    async def stop_listening(self) -> None:
        """Accept no more; connections stay."""
        if self._turns is not None:
            self._turns.stop_listening()
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def stop(self) -> None:
        """Stop accepting, write what is queued, close all connections; within a deadline."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        await self.stop_listening()
        try:
            await self._close_all()
        finally:
            if self._turns is not None:
                self._turns.close()
                self._turns = None

    async def _close_all(self) -> None:
        closing = list(self._connections)
        for connection in closing:
            connection.close("closed: the server stops")
        if not closing:
            return
        waits = [connection.wait_closed() for connection in closing]
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*waits)
        except TimeoutError:
            for connection in closing:
                connection.abort("closed: the server stops")
        # Let the transports call connection_lost before the loop may end.
        await asyncio.sleep(0)

    def _accept(self) -> Connection:
        return Connection(
            self._on_request,
            limits=self._limits.connection,
            on_open=self._opened,
            on_lost=self._closed,
            on_frames=self._on_frames,
        )

    def _opened(self, connection: Connection) -> None:
        if len(self._connections) >= self._limits.connections_max:
            log.warning("connection refused: too many peer=%s limit=%d", connection.peer, self._limits.connections_max)
            connection.abort("refused: too many connections")
            return
        self._connections.add(connection)
        self._on_open(connection)

    def _closed(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._on_lost(connection)

    def _sweep_peers(self) -> None:
        """Close peers that are idle, too slow with a frame, or hold too much of our memory together."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        buffered = 0
        for connection in list(self._connections):
            buffered += connection.buffered_bytes
            if now - connection.standing.last_active > self._limits.idle_seconds:
                connection.abort(f"closed: idle for {self._limits.idle_seconds:.0f} s")
            elif connection.frame_since is not None and now - connection.frame_since > self._limits.frame_seconds:
                log.warning("peer too slow with a frame: connection closed peer=%s", connection.peer)
                connection.abort("closed: a frame took too long")
        if buffered > self._limits.buffered_bytes_max:
            worst = max(self._connections, key=lambda connection: connection.buffered_bytes)
            log.warning("buffers over the limit: largest peer closed peer=%s bytes=%d", worst.peer, buffered)
            worst.abort("closed: too much buffered")
        self._sweep = loop.call_later(self._limits.sweep_seconds, self._sweep_peers)

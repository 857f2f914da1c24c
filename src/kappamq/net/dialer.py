"""Outgoing connections: one for each address, made on demand, made again after a loss, with back-off."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from kappamq.errors import ConnectFailed
from kappamq.model.ids import split_address
from kappamq.net.connection import Connection, ConnectionLimits, RequestHandler
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import error_of

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
BACKOFF_SECONDS_MAX: Final = 1.0
_BACKOFF_SECONDS_MIN: Final = 0.05
_CLOSE_SECONDS: Final = 1.0


def refuse_requests(connection: Connection, request: Command) -> None:
    """Request handler of a client that serves nothing."""
    if request.is_one_way:
        return
    connection.reply(
        request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
    )


class Dialer:
    """Connections by address. Use as an async context manager; all of them close with it."""

    def __init__(
        self,
        on_request: RequestHandler = refuse_requests,
        *,
        limits: ConnectionLimits | None = None,
        on_open: Callable[[str, Connection], None] | None = None,
    ) -> None:
        self._on_request = on_request
        self._limits = limits
        self._on_open = on_open
        self._connections: dict[str, Connection] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._failed: dict[str, tuple[float, float]] = {}
        """Address → when it may be tried again, and the pause that follows the next failure."""

    async def __aenter__(self) -> "Dialer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, written data first."""
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=_CLOSE_SECONDS)

    def open_connection(self, address: str) -> Connection | None:
        """The connection to an address if there is a live one."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_open else None

    def addresses(self) -> list[str]:
        """Addresses with a live connection."""
        return [address for address, connection in self._connections.items() if connection.is_open]

    def drop(self, address: str, why: str) -> None:
        """Close the connection to an address; the next call makes a new one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close(why)

    async def connect(self, address: str) -> Connection:
        """A live connection. Raises `ConnectFailed` when none can be made now."""
        connection = self.open_connection(address)
        if connection is not None:
            return connection
        lock = self._locks.setdefault(address, asyncio.Lock())
        async with lock:
            connection = self.open_connection(address)
            if connection is None:
                connection = await self._dial(address)
                self._connections[address] = connection
        return connection

    async def call(self, address: str, command: Command, *, timeout_ms: float) -> Command:
        """Reply of an address with a success code; a failure code raises what it stands for."""
        reply = await self.call_raw(address, command, timeout_ms=timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise error_of(reply, address)
        return reply

    async def call_raw(self, address: str, command: Command, *, timeout_ms: float) -> Command:
        """Reply of an address, whatever its code."""
        connection = await self.connect(address)
        return await connection.call(command, timeout_ms=timeout_ms)

    async def send(self, address: str, command: Command) -> None:
        """Send a request that gets no reply."""
        (await self.connect(address)).send(command)

    async def _dial(self, address: str) -> Connection:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        again_at, pause = self._failed.get(address, (0.0, _BACKOFF_SECONDS_MIN))
        if again_at > loop.time():
            await asyncio.sleep(again_at - loop.time())
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._on_request, limits=self._limits), host, port
                )
        except (OSError, TimeoutError) as fault:
            self._failed[address] = (loop.time() + pause, min(pause * 2, BACKOFF_SECONDS_MAX))
            reason = "timed out" if isinstance(fault, TimeoutError) else (fault.strerror or str(fault))
            raise ConnectFailed(
                f"connect to {address} failed ({reason}): check that it runs and is reachable"
            ) from None
        self._failed.pop(address, None)
        if self._on_open is not None:
            self._on_open(address, connection)
        return connection

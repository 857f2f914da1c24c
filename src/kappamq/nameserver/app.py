"""Composition root of the name server: builds, starts, stops; holds no rule."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from kappamq.clock import Clock, SystemClock
from kappamq.errors import ConfigError
from kappamq.nameserver.handlers import Handlers
from kappamq.nameserver.kv import KeyValues
from kappamq.nameserver.routes import Gone, RouteTable
from kappamq.net.connection import Connection
from kappamq.net.server import Server, ServerLimits
from kappamq.settings import check_listen_host
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command

log = logging.getLogger(__name__)

NAMESERVER_PORT: Final = 9876


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerSettings:
    """Settings of one name server."""

    listen_host: str = "127.0.0.1"
    listen_port: int = NAMESERVER_PORT
    """0 takes any free port."""
    insecure: bool = False
    """Listen on an address that other machines reach, although nothing authenticates them."""
    kv_path: Path | None = None
    """Where key-value settings are kept; without it they end with the process."""
    broker_timeout_seconds: float = 120.0
    """A broker that was silent for so long is removed, unless it asked for another time."""
    scan_seconds: float = 5.0
    """How often silent brokers are looked for."""
    connections_max: int = 10_000

    def __post_init__(self) -> None:
        check_listen_host(self.listen_host, insecure=self.insecure)
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listen_port is {self.listen_port}: choose 0 to 65535")
        for name in ("broker_timeout_seconds", "scan_seconds", "connections_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: choose a value above 0")


class NameServer:
    """A running name server. Use as an async context manager; `address` is known inside it."""

    def __init__(self, settings: NameServerSettings | None = None, *, clock: Clock | None = None) -> None:
        self._settings = settings or NameServerSettings()
        self._clock = clock or SystemClock()
        self._routes = RouteTable()
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._scan: asyncio.Task[None] | None = None
        self._handlers: Handlers | None = None
        self.address = ""
        """`host:port` that clients and brokers are given."""

    async def __aenter__(self) -> "NameServer":
        settings = self._settings
        key_values = KeyValues(settings.kv_path)
        limits = ServerLimits(connections_max=settings.connections_max)
        try:
            server = await self._stack.enter_async_context(Server(self._handle, limits=limits, on_lost=self._lost))
            port = await server.listen(settings.listen_host, settings.listen_port)
            host = f"[{settings.listen_host}]" if ":" in settings.listen_host else settings.listen_host
            self.address = f"{host}:{port}"
            self._handlers = Handlers(
                self._routes,
                key_values,
                clock=self._clock,
                broker_timeout_seconds=settings.broker_timeout_seconds,
                facts={"bindAddress": settings.listen_host, "listenPort": str(port)},
            )
            tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
            self._scan = tasks.create_task(self._expire_forever(), name="expire brokers")
        except BaseException:
            await self._stack.aclose()
            raise
        log.info("name server started address=%s", self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scan is not None:
            self._scan.cancel()
        await self._stack.__aexit__(kind, error, trace)
        log.info("name server stopped address=%s", self.address)

    async def wait(self) -> None:
        """Return when `stop` was called. Cancelling it changes nothing else."""
        await self._stopping.wait()

    def stop(self) -> None:
        """Let `wait` return; the end of the context does the rest."""
        self._stopping.set()

    def _handle(self, connection: Connection, request: Command) -> None:
        if self._handlers is None:
            connection.abort("closed: not started")
            return
        try:
            reply = self._handlers.answer(request, connection)
        except Exception:  # A bug in one handler must not take the connection, or us, with it.
            log.exception("request failed code=%d peer=%s", request.code, connection.peer)
            reply = request.reply(ResponseCode.SYSTEM_ERROR, "internal error: see the log of the name server")
        if not request.is_one_way:
            connection.reply(reply)

    def _lost(self, connection: Connection) -> None:
        for gone in self._routes.drop_connection(connection):
            _log_gone("broker removed: its connection closed", gone)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.scan_seconds)
            for gone in self._routes.expire(now=self._clock.monotonic()):
                _log_gone("broker removed: no sign of life", gone)
                if isinstance(gone.connection, Connection):
                    gone.connection.abort("closed: the broker gave no sign of life")


def _log_gone(event: str, gone: Gone) -> None:
    member = gone.member
    log.warning("%s broker=%s id=%d address=%s", event, member.broker, member.broker_id, member.address)

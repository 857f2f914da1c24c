"""A broker's life: open the store, build the parts, serve, stop in order. Holds no rule."""

import asyncio
import logging
from dataclasses import replace
from types import TracebackType
from typing import Final

from kappamq.broker.assembly import Assembly
from kappamq.broker.router import Router
from kappamq.broker.settings import BrokerSettings, parse_delay_levels
from kappamq.clock import Clock, SystemClock
from kappamq.errors import ConfigError
from kappamq.kernel import KERNEL
from kappamq.net.server import Server
from kappamq.store.store import Store
from kappamq.wire.frame import FRAME_BYTES_MAX
from kappamq.wire.headers import RegisterBrokerRequest

log = logging.getLogger(__name__)

REGISTER_WAIT_SECONDS: Final = 3.0
_PORT_TRIES: Final = 20


class Broker:
    """A running broker. Use as an async context manager; `address` is known inside it."""

    def __init__(self, settings: BrokerSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        self._run: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self.address = ""
        """`host:port` that clients are given."""

    async def __aenter__(self) -> "Broker":
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._run = loop.create_task(self._serve(), name=f"broker-{self._settings.name}")
        await asyncio.wait([self._ready, self._run], return_when=asyncio.FIRST_COMPLETED)
        if self._run.done():
            await self._run
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._run is not None:
            await self._run

    async def wait(self) -> None:
        """Return when the broker has stopped; raise what made it stop."""
        assert self._run is not None
        await asyncio.shield(self._run)

    def stop(self) -> None:
        """Begin an orderly stop."""
        self._stopping.set()

    async def _serve(self) -> None:
        """Build bottom-up, serve, stop top-down."""
        settings = self._settings
        delays = parse_delay_levels(settings.delay_levels)
        store_settings = replace(
            settings.store,
            visible="flushed" if settings.flush == "durable" else "written",
            # Senders keep to the broker's limit, which may change; what waits since a larger one is still delivered.
            message_bytes_max=max(settings.message_bytes_max, FRAME_BYTES_MAX),
            delay_levels_ms=delays,
        )
        store = await asyncio.to_thread(Store.open, settings.data, store_settings, clock=self._clock)
        log.info("store open %s", store.recovery)
        try:
            assembly = Assembly(settings, store, clock=self._clock, delays_ms=delays, identity=self._identity)
            await assembly.load_waiting()
            await self._serve_parts(assembly)
            await assembly.save_tables()
        finally:
            await asyncio.to_thread(store.close)

    async def _serve_parts(self, parts: Assembly) -> None:
        async with asyncio.TaskGroup() as tasks:
            parts.build_pulls(tasks)
            router = Router(tasks=tasks)
            server = Server(
                router,
                limits=self._settings.limits,
                on_lost=parts.lost,
                on_frames=parts.lane if KERNEL == "compiled" else None,
                on_turn=parts.lane.turn if KERNEL == "compiled" else None,
            )
            async with server:
                port = await self._listen(server)
                # No await from here to serve(): a client that is quick must not find an empty router.
                self.address = f"{self._settings.address_host}:{port}"
                router.serve(*parts.handlers(port))
                parts.appender.start()
                await parts.transactions.repair()
                await parts.progress.save()
                upkeep = parts.start_upkeep(tasks)
                deliveries = parts.start_deliveries(tasks)
                parts.registration.start(tasks)
                await parts.registration.wait_registered(timeout_seconds=REGISTER_WAIT_SECONDS)
                log.info(
                    "broker ready name=%s address=%s flush=%s",
                    self._settings.name,
                    self.address,
                    self._settings.flush,
                )
                assert self._ready is not None
                self._ready.set_result(None)
                await self._stopping.wait()
                await parts.registration.stop()
                parts.pulls.parked.release_all()
                async with parts.gate:  # No delivery is cut off between the log and its progress.
                    for delivery in deliveries:
                        delivery.cancel()
                await parts.appender.stop()
                await parts.progress.save()
                parts.timers.close()
                parts.transactions.note_progress()
            for service in upkeep:
                service.cancel()

    async def _listen(self, server: Server) -> int:
        """Listen on the port of the settings and, where possible, two below it."""
        settings = self._settings
        if settings.listen_port:
            port = await server.listen(settings.listen_host, settings.listen_port)
            await self._listen_second(server, port)
            return port
        for _ in range(_PORT_TRIES):
            port = await server.listen(settings.listen_host, 0)
            if not settings.second_port or await self._listen_second(server, port):
                return port
            await server.stop_listening()
        raise ConfigError(f"no two free ports were found on {settings.listen_host}: name one with --listen HOST:PORT")

    async def _listen_second(self, server: Server, port: int) -> bool:
        # RocketMQ: slaves fetch the topic table from the port two below, and old clients may dial it.
        if not self._settings.second_port:
            return True
        try:
            await server.listen(self._settings.listen_host, port - 2)
        except ConfigError as fault:
            if self._settings.listen_port:
                log.warning("second port not available: clients that dial it will fail fault=%s", fault)
            return False
        return True

    def _identity(self) -> RegisterBrokerRequest:
        settings = self._settings
        host, _, port = self.address.rpartition(":")
        return RegisterBrokerRequest(
            broker=settings.name,
            address=self.address,
            cluster=settings.cluster,
            broker_id=settings.broker_id,
            replication_address=f"{host}:{int(port) + 1}",
            acting_master=False,
        )

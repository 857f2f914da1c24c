"""Telling the name servers: at start, every 30 seconds, at once after a change, and goodbye at the end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from kappamq.broker.topics import Topics
from kappamq.errors import KappaError
from kappamq.model.config import Permission, TopicConfig
from kappamq.net.connection import Connection
from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import decode_table
from kappamq.wire.command import Command
from kappamq.wire.headers import RegisterBrokerRequest, UnregisterBrokerRequest
from kappamq.wire.registration import BrokerTopics, encode_registration

log = logging.getLogger(__name__)

REGISTER_MS: Final = 24_000
UNREGISTER_MS: Final = 3_000
RETRY_SECONDS: Final = 2.0
DEBOUNCE_SECONDS: Final = 0.01
"""Changes this close together travel in one registration."""


class Registration:
    """One broker's presence at all of its name servers; each is told on its own, none waits for another."""

    def __init__(
        self,
        *,
        nameservers: tuple[str, ...],
        identity: Callable[[], RegisterBrokerRequest],
        topics: Topics,
        permission: Callable[[], int],
        every_seconds: float,
    ) -> None:
        self._nameservers = nameservers
        self._identity = identity
        self._topics = topics
        self._permission = permission
        self._every_seconds = every_seconds
        self._changes = {address: asyncio.Event() for address in nameservers}
        self._dialer = Dialer(on_open=self._watch)
        self._tasks: list[asyncio.Task[None]] = []
        self._known: dict[str, asyncio.Event] = {address: asyncio.Event() for address in nameservers}
        self._told: dict[str, int] = dict.fromkeys(nameservers, -1)
        self._told_more = asyncio.Condition()

    def topics_changed(self) -> None:
        """Register soon."""
        for change in self._changes.values():
            change.set()

    def _watch(self, address: str, connection: Connection) -> None:
        """A name server that restarted knows nothing of us: the lost connection tells, so register at once."""
        connection.lost.add_done_callback(lambda _: self._changes[address].set())

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start one task for each name server."""
        self._tasks = [
            tasks.create_task(self._keep_registered(address), name=f"register-{address}")
            for address in self._nameservers
        ]

    async def wait_registered(self, *, timeout_seconds: float) -> bool:
        """Whether every name server knows us within a time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                for known in self._known.values():
                    await known.wait()
        except TimeoutError:
            return False
        return True

    async def wait_told(self, *, timeout_seconds: float) -> bool:
        """Whether every name server knows the topics as they are now, within a time."""
        wanted = self._topics.version.counter
        try:
            async with asyncio.timeout(timeout_seconds), self._told_more:
                await self._told_more.wait_for(lambda: all(told >= wanted for told in self._told.values()))
        except TimeoutError:
            return False
        return True

    async def _keep_registered(self, address: str) -> None:
        is_warned = False
        while True:
            self._changes[address].clear()
            pause = self._every_seconds
            try:
                counter = self._topics.version.counter
                await self._register(address)
                self._told[address] = counter
                async with self._told_more:
                    self._told_more.notify_all()
                self._known[address].set()
                if is_warned:
                    log.info("registered again nameserver=%s", address)
                is_warned = False
            except KappaError as fault:
                pause = min(RETRY_SECONDS, self._every_seconds)
                if not is_warned:
                    log.warning("registration failed: will try again nameserver=%s fault=%s", address, fault)
                is_warned = True
            try:
                async with asyncio.timeout(pause):
                    await self._changes[address].wait()
                await asyncio.sleep(DEBOUNCE_SECONDS)
            except TimeoutError:
                continue

    async def _register(self, address: str) -> Command:
        permission = self._permission()
        topics = {name: _limited(topic, permission) for name, topic in self._topics.table().items()}
        body = encode_registration(BrokerTopics(version=self._topics.version, topics=topics))
        reply = await self._dialer.call(address, self._identity().command(body=body), timeout_ms=REGISTER_MS)
        if reply.body:
            self._topics.set_orders(decode_table(reply.body))
        return reply

    async def stop(self) -> None:
        """Tell every name server that we go."""
        # First of all: a task that saw its connection close would register us again.
        for task in self._tasks:
            task.cancel()
        identity = self._identity()
        goodbye = UnregisterBrokerRequest(
            broker=identity.broker, address=identity.address, cluster=identity.cluster, broker_id=identity.broker_id
        )
        for address in self._nameservers:
            if self._dialer.open_connection(address) is None:
                continue
            try:
                await self._dialer.call(address, goodbye.command(), timeout_ms=UNREGISTER_MS)
            except KappaError as fault:
                log.warning("could not unregister: it will time out nameserver=%s fault=%s", address, fault)
        await self._dialer.close()


def _limited(topic: TopicConfig, permission: int) -> TopicConfig:
    """A topic as a broker with less permission offers it."""
    if permission & Permission.WRITE and permission & Permission.READ:
        return topic
    return msgspec.structs.replace(topic, perm=topic.perm & permission)

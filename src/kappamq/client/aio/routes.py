"""Where topics live: asked from the name servers, kept, asked again."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from kappamq.client.core.routing import AddressBook
from kappamq.errors import ConfigError, KappaError, TopicNotFound, TransportError
from kappamq.model.ids import split_address
from kappamq.model.route import BrokerAddresses, TopicRoute
from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import decode_cluster, decode_route
from kappamq.wire.command import Command
from kappamq.wire.headers import ClusterRequest, Request, RouteRequest

log = logging.getLogger(__name__)


def parse_addresses(given: str | Sequence[str]) -> tuple[str, ...]:
    """Name server addresses of a list, or of a text with `;` between them."""
    pieces = given.replace(",", ";").split(";") if isinstance(given, str) else given
    addresses = tuple(piece.strip().rpartition("/")[2] for piece in pieces if piece.strip())
    if not addresses:
        raise ConfigError("no name server address: pass for example '127.0.0.1:9876'")
    for address in addresses:
        split_address(address)
    return addresses


class NameServers:
    """The name servers, of which the one that answered last is asked first."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer, *, timeout_ms: int, start: int = 0) -> None:
        self.addresses = tuple(addresses)
        self._dialer = dialer
        self._timeout_ms = timeout_ms
        self._current = start % len(self.addresses)

    async def call(self, request: Request) -> Command:
        """Reply of the first name server that can be reached. Raises the last `TransportError` when none can."""
        for left in range(len(self.addresses) - 1, -1, -1):
            address = self.addresses[self._current]
            try:
                return await self._dialer.call(address, request.command(), timeout_ms=self._timeout_ms)
            except TransportError:
                self._current = (self._current + 1) % len(self.addresses)
                if not left:
                    raise
        raise AssertionError("there is at least one name server")

    async def route(self, topic: str) -> TopicRoute:
        reply = await self.call(RouteRequest(topic=topic, accept_standard_json_only=True))
        return decode_route(reply.body)

    async def brokers(self) -> tuple[BrokerAddresses, ...]:
        return decode_cluster((await self.call(ClusterRequest())).body)


class Routes:
    """Known routes and the topics that somebody wants to know about. `addresses` holds their brokers."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._routes: dict[str, TopicRoute] = {}
        self._wanted: set[str] = set()
        self._asking: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, int] = {}
        self._listeners: list[Callable[[str], None]] = []
        self.addresses = AddressBook()

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener(topic)` whenever a route appears or changes."""
        self._listeners.append(listener)

    def forget_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.remove(listener)

    def known(self, topic: str) -> TopicRoute | None:
        """The route as last heard of."""
        return self._routes.get(topic)

    def want(self, topic: str) -> None:
        """Keep asking for this topic, even though it may not exist yet."""
        self._wanted.add(topic)

    def topics(self) -> list[str]:
        return sorted(self._wanted | self._routes.keys())

    def missing(self) -> list[str]:
        """Wanted topics without a route."""
        return sorted(self._wanted - self._routes.keys())

    async def find(self, topic: str) -> TopicRoute:
        """The known route, or the one that a name server tells now. Raises `TopicNotFound`."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask a name server. A known route survives a "no such topic": brokers may be registering again."""
        lock = self._asking.setdefault(topic, asyncio.Lock())
        asked_before = self._asked.get(topic, 0)
        async with lock:
            if self._asked.get(topic, 0) > asked_before + 1 and topic in self._routes:
                return self._routes[topic]  # A question asked after ours was answered while we waited.
            self._asked[topic] = self._asked.get(topic, 0) + 1
            try:
                route = await self._name_servers.route(topic)
            except TopicNotFound:
                if topic in self._routes:
                    return self._routes[topic]
                raise
            self._learn(topic, route)
            return self._routes[topic]

    def _learn(self, topic: str, route: TopicRoute) -> None:
        before = self._routes.get(topic)
        self.addresses.learn(route)
        if before is not None and before.says_the_same_as(route):
            return
        self._routes[topic] = route
        for listener in list(self._listeners):
            listener(topic)

    async def refresh_all(self) -> list[str]:
        """Ask for every topic again; returns the addresses of brokers that are gone."""
        for topic in self.topics():
            await self.refresh_quietly(topic)
        return self.addresses.keep_only(self._routes.values())

    async def refresh_quietly(self, topic: str) -> None:
        """Ask for a topic; what goes wrong is logged, since it will be asked again."""
        try:
            await self.refresh(topic)
        except TopicNotFound:
            pass
        except KappaError as fault:
            log.warning("route not refreshed topic=%s fault=%s", topic, fault)

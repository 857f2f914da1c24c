"""A broker whose answers a test writes, registered at a real name server of ours; on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from kappamq.admin.admin import Admin
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.nameserver.app import NameServer, NameServerSettings
from kappamq.net.connection import Connection
from kappamq.net.dialer import Dialer
from kappamq.net.server import Server
from kappamq.wire.command import Command
from kappamq.wire.headers import RegisterBrokerRequest
from kappamq.wire.registration import BrokerTopics, encode_registration

Answer = Callable[[Command], Command]


@dataclass
class ScriptedBroker:
    """Answers by request code; everything asked is kept in `asked`."""

    name: str
    dialer: Dialer
    nameserver: str
    cluster: str = "c1"
    address: str = ""
    answers: dict[int, Answer] = field(default_factory=dict)
    asked: list[Command] = field(default_factory=list)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    version: int = 0

    def on_request(self, connection: Connection, request: Command) -> None:
        self.asked.append(request)
        answer = self.answers.get(request.code)
        connection.reply(answer(request) if answer is not None else request.reply(3, f"no script for {request.code}"))

    def always(self, code: int, body: bytes) -> None:
        """Answer a request code with success and this body."""
        self.answers[code] = lambda request: request.reply(body=body)

    def codes(self) -> list[int]:
        return [request.code for request in self.asked]

    async def register(self, *configs: TopicConfig) -> None:
        self.topics |= {config.topic_name: config for config in configs}
        self.version += 1
        request = RegisterBrokerRequest(broker=self.name, address=self.address, cluster=self.cluster, broker_id=0)
        body = encode_registration(BrokerTopics(DataVersion(counter=self.version), self.topics))
        await self.dialer.call(self.nameserver, request.command(body=body), timeout_ms=3000)


@asynccontextmanager
async def scripted_cluster(*names: str, cluster: str = "c1") -> AsyncIterator[tuple[Admin, list[ScriptedBroker]]]:
    """An admin and one scripted broker for each name, each in a cluster of its own if named `broker@cluster`."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(60))
        nameserver = await stack.enter_async_context(NameServer(NameServerSettings(listen_port=0)))
        brokers = []
        for name in names:
            broker_name, _, own_cluster = name.partition("@")
            dialer = await stack.enter_async_context(Dialer())
            broker = ScriptedBroker(broker_name, dialer, nameserver.address, cluster=own_cluster or cluster)
            server = await stack.enter_async_context(Server(broker.on_request))
            broker.address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
            await broker.register(
                TopicConfig(topic_name="TBW102"), TopicConfig(topic_name=broker_name), TopicConfig(topic_name="orders")
            )
            brokers.append(broker)
        yield await stack.enter_async_context(Admin(nameserver.address)), brokers

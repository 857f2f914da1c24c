"""Brokers, name servers and clients restart in any order while messages flow: none is lost."""

import asyncio
import itertools
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import kappamq
import kappamq.aio
from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.errors import KappaError
from kappamq.model.message import StoredMessage
from kappamq.nameserver.app import NameServer, NameServerSettings
from kappamq.testing.cluster import SMALL_STORE
from tests.interop.rocketmq import free_port_triple

ROUNDS = 6
SETTLE_SECONDS = 180


class Cluster:
    """Two name servers and two brokers on fixed ports, each of which can be stopped and started."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._parts: dict[str, AsyncExitStack] = {}
        self._ports: dict[str, int] = {}

    @property
    def nameservers(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{self._ports[name]}" for name in ("names-1", "names-2"))

    async def start(self, name: str) -> None:
        stack = AsyncExitStack()
        # Not a port that the kernel hands out: while a server is away, nobody may be given its own.
        port = self._ports.get(name) or free_port_triple()
        if name.startswith("names"):
            server = await stack.enter_async_context(NameServer(NameServerSettings(listen_port=port)))
            self._ports[name] = int(server.address.split(":")[1])
        else:
            settings = BrokerSettings(
                name=name,
                listen_port=port,
                second_port=False,
                nameservers=self.nameservers,
                data=self._data / name,
                store=SMALL_STORE,
            )
            broker = await stack.enter_async_context(Broker(settings))
            self._ports[name] = int(broker.address.split(":")[1])
        self._parts[name] = stack

    async def stop(self, name: str) -> None:
        await self._parts.pop(name).aclose()

    async def stop_all(self) -> None:
        for name in sorted(self._parts):
            await self.stop(name)


async def produce(nameservers: str, sent: set[bytes], numbers: "itertools.count[int]", stop: asyncio.Event) -> None:
    async with kappamq.aio.Producer(nameservers, group="restarts") as producer:
        while not stop.is_set():
            body = b"%d" % next(numbers)
            try:
                await producer.send(kappamq.Message("restarts", body), timeout=5)
                sent.add(body)
            except KappaError:
                continue  # Not acknowledged: nobody may rely on it.


async def consume(nameservers: str, received: set[bytes], stop: asyncio.Event) -> None:
    async with kappamq.aio.PushConsumer(nameservers, group="restarts", start_from="first") as consumer:

        @consumer.on("restarts")
        async def handle(message: StoredMessage) -> None:
            received.add(message.body)

        await consumer.start()
        await stop.wait()


def grown(sent: set[bytes], *, by: int) -> Callable[[], bool]:
    """Whether more was sent since now."""
    known = len(sent)
    return lambda: len(sent) > known + by


@pytest.mark.timeout(600)
def test_restarts_in_any_order_lose_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        rng = random.Random(11)
        cluster = Cluster(tmp_path)
        for name in ("names-1", "names-2", "broker-a", "broker-b"):
            await cluster.start(name)
        nameservers = ";".join(cluster.nameservers)
        sent: set[bytes] = set()
        received: set[bytes] = set()
        numbers = itertools.count()
        all_done = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(consume(nameservers, received, all_done))
                for _ in range(ROUNDS):
                    # Clients restart with every round; servers in the middle of it.
                    round_done = asyncio.Event()
                    before = len(sent)
                    sender = tasks.create_task(produce(nameservers, sent, numbers, round_done))
                    reader = tasks.create_task(consume(nameservers, received, round_done))
                    for name in rng.sample(("names-1", "names-2", "broker-a", "broker-b"), 2):
                        await wait_for(grown(sent, by=20))
                        await cluster.stop(name)
                        await asyncio.sleep(rng.uniform(0, 0.3))
                        await cluster.start(name)
                    await wait_for(grown(sent, by=20))
                    round_done.set()
                    await sender
                    await reader
                    assert len(sent) > before
                await wait_for(lambda: sent <= received)
                all_done.set()
        finally:
            await cluster.stop_all()
        assert sent <= received

    async def wait_for(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SETTLE_SECONDS):
            while not holds():
                await asyncio.sleep(0.02)

    asyncio.run(main())

"""Our broker behind a real RocketMQ name server: Java clients find it there and never notice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.testing.cluster import SMALL_STORE
from tests.interop.conftest import skip_loudly
from tests.interop.harness import JavaClient
from tests.interop.rocketmq import NameServer, Unreachable
from tests.interop.scenarios import push_concurrent, routes_and_topics, send_creates_topic, send_sync

SCENARIOS = (send_sync, send_creates_topic, push_concurrent, routes_and_topics)


@dataclass(frozen=True)
class Mixed:
    """A cluster of their name server and our broker."""

    nameserver: str


@pytest.fixture(scope="module")
def mixed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    try:
        server = NameServer("5.5.0")
    except Unreachable as reason:
        skip_loudly(reason)
    with server, our_broker(server.address, tmp_path_factory.mktemp("mixed")):
        yield Mixed(server.address)


class our_broker:  # noqa: N801 - used like a function
    """Our broker in a thread, registered at one name server."""

    def __init__(self, nameserver: str, data: Path) -> None:
        self._settings = BrokerSettings(
            name="broker-a", listen_port=0, nameservers=(nameserver,), data=data, store=SMALL_STORE
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None

    async def _serve(self) -> None:
        async with Broker(self._settings) as broker:
            self._loop, self._broker = asyncio.get_running_loop(), broker
            self._ready.set()
            await broker.wait()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._ready.wait(90)

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._broker is not None
        self._loop.call_soon_threadsafe(self._broker.stop)
        self._thread.join(90)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_java_client_finds_our_broker(scenario: object, java_client_550: JavaClient, mixed_cluster: Mixed) -> None:
    assert callable(scenario)
    scenario(java_client_550, mixed_cluster)

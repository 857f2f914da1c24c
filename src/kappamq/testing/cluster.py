"""Name servers and brokers in this process: as an async context manager, or in a thread of their own."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.nameserver.app import NameServer, NameServerSettings
from kappamq.store.settings import StoreSettings

START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 60.0

SMALL_STORE: Final = StoreSettings(
    segment_bytes=64 * 1024 * 1024,
    queue_segment_bytes=600_000,
    index_slots=50_000,
    index_entries=200_000,
    disk_delete_ratio=0.97,
    disk_force_ratio=0.98,
    disk_full_ratio=0.99,
)
"""Small files, and no complaints about a developer's nearly full disk."""


@dataclass(frozen=True, slots=True)
class ClusterAddresses:
    """Where a cluster listens."""

    nameservers: tuple[str, ...]
    brokers: dict[str, str]
    data: Path

    @property
    def nameserver(self) -> str:
        """All name servers, as clients take them."""
        return ";".join(self.nameservers)


RunningCluster = ClusterAddresses


@asynccontextmanager
async def run_cluster(
    *,
    brokers: int = 1,
    nameservers: int = 1,
    data: Path | None = None,
    settings: BrokerSettings | None = None,
) -> AsyncIterator[ClusterAddresses]:
    """Run a cluster on the current event loop; it stops in order at the end.

    Without `data`, messages live in a temporary directory that goes with the cluster.
    """
    base = settings or BrokerSettings(name="template", store=SMALL_STORE)
    root = data or Path(tempfile.mkdtemp(prefix="kappamq-test-"))
    try:
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(NameServer(NameServerSettings(listen_port=0)))
                for _ in range(nameservers)
            ]
            addresses = tuple(server.address for server in servers)
            running: dict[str, str] = {}
            for number in range(brokers):
                name = f"broker-{chr(ord('a') + number)}"
                mine = replace(base, name=name, listen_port=0, nameservers=addresses, data=root / name)
                running[name] = (await stack.enter_async_context(Broker(mine))).address
            yield ClusterAddresses(addresses, running, root)
    finally:
        if data is None:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)


@contextmanager
def start_cluster(
    *,
    brokers: int = 1,
    nameservers: int = 1,
    data: Path | None = None,
    settings: BrokerSettings | None = None,
) -> Iterator[ClusterAddresses]:
    """Run a cluster in a thread, for tests that are not asynchronous."""
    started = threading.Event()
    outcome: list[ClusterAddresses | BaseException] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        try:
            async with run_cluster(brokers=brokers, nameservers=nameservers, data=data, settings=settings) as cluster:
                ended = asyncio.Event()
                stop.append((asyncio.get_running_loop(), ended))
                outcome.append(cluster)
                started.set()
                await ended.wait()
        except BaseException as fault:
            outcome.append(fault)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="kappamq-cluster", daemon=True)
    thread.start()
    if not started.wait(START_SECONDS):
        raise TimeoutError(f"the cluster did not start within {START_SECONDS:.0f} s")
    first = outcome[0]
    if isinstance(first, BaseException):
        raise first
    try:
        yield first
    finally:
        loop, ended = stop[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(STOP_SECONDS)

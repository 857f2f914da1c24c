"""Reaching the members of a cluster: which brokers there are, and calls to them and to the name servers."""

import asyncio
from collections.abc import Mapping
from typing import Final

from kappamq.client.aio.cluster import Cluster
from kappamq.errors import NotFound, UsageError
from kappamq.model.route import BrokerAddresses
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import error_of
from kappamq.wire.headers import Request

CALL_TIMEOUT_MS: Final = 5_000
STATS_TIMEOUT_MS: Final = 15_000
"""Questions that make a broker walk through many queues."""
PARALLEL_MAX: Final = 16
"""Questions that one command has in flight at once."""


class Reach:
    """A cluster as administration sees it: addresses and calls. Owns nothing; the cluster is opened elsewhere."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._slots = asyncio.Semaphore(PARALLEL_MAX)

    async def brokers(self, cluster: str | None = None) -> tuple[BrokerAddresses, ...]:
        """All broker sets, or those of one cluster. Raises `NotFound` when there are none."""
        brokers = await self.cluster.name_servers.brokers()
        chosen = tuple(broker for broker in brokers if cluster is None or broker.cluster == cluster)
        if not chosen:
            known = sorted({broker.cluster for broker in brokers})
            servers = ";".join(self.cluster.name_servers.addresses)
            raise NotFound(
                f"cluster {cluster!r} has no broker at {servers}: known are {', '.join(known)}"
                if cluster is not None and known
                else f"no broker is registered at {servers}: start one with `kappamq broker --nameserver {servers}`"
            )
        return tuple(sorted(chosen, key=lambda broker: (broker.cluster, broker.name)))

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker name → address of its master, for those that have one."""
        return {broker.name: broker.master for broker in await self.brokers(cluster) if broker.master is not None}

    async def one_cluster(self, cluster: str | None) -> str:
        """The cluster that was named, or the only one. Raises `UsageError` when the choice is open."""
        if cluster is not None:
            return cluster
        names = sorted({broker.cluster for broker in await self.brokers()})
        if len(names) > 1:
            raise UsageError(f"there are {len(names)} clusters ({', '.join(names)}): say which one with --cluster")
        return names[0]

    async def ask(
        self, address: str, request: "Request | Command", *, body: bytes = b"", timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Command:
        """Successful reply of one server. Raises what a failure code stands for."""
        command = request if isinstance(request, Command) else request.command(body=body)
        async with self._slots:
            reply = await self.cluster.call_raw(address, command, timeout_ms=timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise error_of(reply, address)
        return reply

    async def ask_each(
        self, addresses: Mapping[str, str], request: Request, *, body: bytes = b"", timeout_ms: int = CALL_TIMEOUT_MS
    ) -> dict[str, Command]:
        """Replies of several brokers by name. Raises when one of them fails."""
        replies = await asyncio.gather(
            *(self.ask(address, request, body=body, timeout_ms=timeout_ms) for address in addresses.values())
        )
        return dict(zip(addresses, replies))

    async def tell_name_servers(self, request: Request) -> list[Command]:
        """Replies of every name server, since they do not talk to each other."""
        return [await self.ask(address, request) for address in self.cluster.name_servers.addresses]

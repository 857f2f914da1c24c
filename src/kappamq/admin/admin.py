"""The door to administration: one object for one cluster, its operations grouped by noun."""

from collections.abc import Sequence
from types import TracebackType

from kappamq.admin.brokers import Brokers
from kappamq.admin.dead_letters import DeadLetters
from kappamq.admin.groups import Groups
from kappamq.admin.messages import Messages
from kappamq.admin.reach import Reach
from kappamq.admin.topics import Topics
from kappamq.admin.traces import Traces
from kappamq.client.aio.cluster import Cluster


class Admin:
    """Administration of a cluster through its name servers (`host:port`, several with `;` between them).

        async with Admin("127.0.0.1:9876") as admin:
            await admin.topics.create("orders", queues=8)

    Errors are those of `kappamq.errors`. Everything belongs to one event loop; cancelling leaves a change undecided.
    """

    def __init__(self, nameservers: str | Sequence[str]) -> None:
        self._cluster = Cluster(nameservers)
        reach = Reach(self._cluster)
        self.topics = Topics(reach)
        self.groups = Groups(reach)
        self.messages = Messages(reach)
        self.traces = Traces(reach)
        self.dead_letters = DeadLetters(reach, self.groups)
        self.brokers = Brokers(reach)

    async def __aenter__(self) -> "Admin":
        await self._cluster.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cluster.close()

"""Where a topic lives: its brokers with their addresses, and its queues on each of them."""

from dataclasses import dataclass
from typing import Final

from kappamq.model.config import Permission

MASTER_ID: Final = 0
"""Broker id of the one member of a broker set that takes writes; every other id is a follower."""


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """The members of one broker set: broker id → `host:port`."""

    name: str
    cluster: str
    addresses: dict[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """How many queues of a topic a broker has, and what may be done with them."""

    broker: str
    read_queues: int
    write_queues: int
    permission: int
    flags: int = 0

    @property
    def is_readable(self) -> bool:
        return bool(self.permission & Permission.READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.permission & Permission.WRITE)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One answer of a name server. `order_conf` (`brokerA:4;brokerB:4`) fixes the queues of an ordered topic."""

    brokers: tuple[BrokerAddresses, ...]
    queues: tuple[TopicQueues, ...]
    order_conf: str | None = None

    def says_the_same_as(self, other: "TopicRoute") -> bool:
        """Equality that does not look at the order of brokers and queues, which name servers do not keep."""
        return (
            self.order_conf == other.order_conf
            and sorted(self.queues, key=_queues_key) == sorted(other.queues, key=_queues_key)
            and sorted(self.brokers, key=_broker_key) == sorted(other.brokers, key=_broker_key)
        )


def _queues_key(queues: TopicQueues) -> tuple[str, int, int, int, int]:
    return (queues.broker, queues.read_queues, queues.write_queues, queues.permission, queues.flags)


def _broker_key(broker: BrokerAddresses) -> tuple[str, str, list[tuple[int, str]]]:
    return (broker.name, broker.cluster, sorted(broker.addresses.items()))

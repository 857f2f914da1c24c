"""The route table: which brokers are alive, and which queues of which topics they hold.

No I/O and no clock: times come in as seconds of a monotonic clock, connections as tokens that are only compared.

    topic ──▶ broker name ──▶ queue counts and permission
              broker name ──▶ cluster, {broker id: address}
                              address ──▶ last sign of life, version of its topic table, connection
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from kappamq.errors import Refused, TopicNotFound
from kappamq.model.config import READ_WRITE, DataVersion, Permission, TopicConfig
from kappamq.model.route import MASTER_ID, BrokerAddresses, TopicQueues, TopicRoute
from kappamq.wire.registration import BrokerTopics

BROKERS_MAX: Final = 10_000
"""Most live brokers."""
TOPICS_MAX: Final = 200_000
"""Most topics in the table."""
NAME_CHARACTERS_MAX: Final = 512
"""Longest name of a topic, broker or cluster that is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One broker process as it describes itself."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    replication_address: str = ""
    acting_master: bool | None = None
    """Whether the lowest follower may stand in for a lost master; `None` marks a broker before 5.0."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Where a follower finds its master; both empty for a master."""

    master_address: str | None = None
    replication_address: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A member that was removed, and the connection that carried its last registration."""

    member: Member
    connection: Hashable


@dataclass(slots=True)
class _Live:
    member: Member
    version: DataVersion
    seen_at: float
    timeout_seconds: float
    connection: Hashable


@dataclass(slots=True)
class _BrokerSet:
    cluster: str
    addresses: dict[int, str]


class RouteTable:
    """Brokers and topics of all clusters. One owner; every method leaves it consistent."""

    def __init__(self) -> None:
        self._brokers: dict[str, _BrokerSet] = {}
        self._live: dict[str, _Live] = {}
        self._topics: dict[str, dict[str, TopicQueues]] = {}

    # ── Brokers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def register(
        self, member: Member, table: BrokerTopics, *, connection: Hashable, now: float, timeout_seconds: float
    ) -> Registered:
        """Take a broker and its topics in, or refresh them. Raises `Refused` when it must register in full first."""
        self._check_room(member, table)
        if self._is_outranked(member, table.version):
            # RocketMQ: the newcomer is told that all is well and left out, so that it keeps trying.
            if member.address in self._live:
                self._remove(member.address)
            return Registered()
        brokers = self._brokers.get(member.broker)
        known = brokers.addresses.get(member.broker_id) if brokers is not None else None
        if known is None and len(table.topics) == 1:
            raise Refused(
                f"register broker failed: {member.broker} sent a single topic before its whole topic table: "
                "register with every topic first"
            )
        previous = self._live.get(member.address)
        is_new = known is None
        self._place(member)
        self._update_topics(member, table, is_new=is_new, known=previous.version if previous else None)
        self._live[member.address] = _Live(member, table.version, now, timeout_seconds, connection)
        return self._master_of(member)

    def _check_room(self, member: Member, table: BrokerTopics) -> None:
        longest = max((len(name) for name in (member.broker, member.cluster, member.address, *table.topics)), default=0)
        if longest > NAME_CHARACTERS_MAX:
            raise Refused(f"register broker failed: a name of {longest} characters is over {NAME_CHARACTERS_MAX}")
        if not member.broker or not member.cluster or not member.address:
            raise Refused("register broker failed: brokerName, clusterName and brokerAddr must not be empty")
        if member.address not in self._live and len(self._live) >= BROKERS_MAX:
            raise Refused(f"register broker failed: {BROKERS_MAX} brokers are registered, which is the limit")
        added = sum(1 for topic in table.topics if topic not in self._topics)
        if len(self._topics) + added > TOPICS_MAX:
            raise Refused(f"register broker failed: the table would hold more than {TOPICS_MAX} topics")

    def _is_outranked(self, member: Member, version: DataVersion) -> bool:
        """Whether another live address holds this broker id with a newer term."""
        brokers = self._brokers.get(member.broker)
        holder = brokers.addresses.get(member.broker_id) if brokers is not None else None
        if holder is None or holder == member.address:
            return False
        live = self._live.get(holder)
        return live is not None and live.version.state_version > version.state_version

    def _place(self, member: Member) -> None:
        """Give the address its place in its broker set, and nowhere else."""
        previous = self._live.get(member.address)
        if previous is not None and (previous.member.broker, previous.member.cluster) != (
            member.broker,
            member.cluster,
        ):
            self._remove(member.address)
        brokers = self._brokers.setdefault(member.broker, _BrokerSet(member.cluster, {}))
        brokers.cluster = member.cluster
        moved = [
            broker_id
            for broker_id, address in brokers.addresses.items()
            if address == member.address and broker_id != member.broker_id
        ]
        for broker_id in moved:
            del brokers.addresses[broker_id]
        holder = brokers.addresses.get(member.broker_id)
        if holder is not None and holder != member.address:
            self._live.pop(holder, None)
        brokers.addresses[member.broker_id] = member.address

    def _update_topics(self, member: Member, table: BrokerTopics, *, is_new: bool, known: DataVersion | None) -> None:
        """Take over the topics that changed; those that the table lacks stay, because it may hold only the changes."""
        is_master = member.broker_id == MASTER_ID
        addresses = self._brokers[member.broker].addresses
        is_first_follower = member.acting_master is not None and member.broker_id == min(addresses)
        if not is_master and not is_first_follower:
            return
        is_changed = is_new or known is None or known != table.version
        loses_write = not is_master and bool(member.acting_master)
        for name, config in table.topics.items():
            holders = self._topics.get(name)
            if is_changed or holders is None or member.broker not in holders:
                queues = _queues(member.broker, config, loses_write=loses_write)
                self._topics.setdefault(name, {})[member.broker] = queues

    def _master_of(self, member: Member) -> Registered:
        if member.broker_id == MASTER_ID:
            return Registered()
        address = self._brokers[member.broker].addresses.get(MASTER_ID)
        live = self._live.get(address) if address is not None else None
        if live is None:
            return Registered()
        return Registered(master_address=live.member.address, replication_address=live.member.replication_address)

    def version_of(self, address: str) -> DataVersion | None:
        """Version of the topic table that an address registered last."""
        live = self._live.get(address)
        return live.version if live is not None else None

    def touch(self, address: str, *, now: float) -> bool:
        """Note a sign of life; False for an address that is not registered."""
        live = self._live.get(address)
        if live is not None:
            live.seen_at = now
        return live is not None

    def unregister(self, address: str, *, broker: str) -> bool:
        """Remove a broker that says goodbye; False when it is not there (any more)."""
        live = self._live.get(address)
        if live is None or live.member.broker != broker:
            return False
        self._remove(address)
        return True

    def expire(self, *, now: float) -> list[Gone]:
        """Remove the brokers that were silent for longer than their timeout."""
        late = [live for live in self._live.values() if live.seen_at + live.timeout_seconds < now]
        return [self._remove(live.member.address) for live in late]

    def drop_connection(self, connection: Hashable) -> list[Gone]:
        """Remove the brokers whose last registration came over a connection that is gone."""
        lost = [live.member.address for live in self._live.values() if live.connection == connection]
        return [self._remove(address) for address in lost]

    def _remove(self, address: str) -> Gone:
        live = self._live.pop(address)
        brokers = self._brokers.get(live.member.broker)
        if brokers is not None:
            brokers.addresses = {key: value for key, value in brokers.addresses.items() if value != address}
            if not brokers.addresses:
                del self._brokers[live.member.broker]
                self._forget_queues(live.member.broker)
            elif MASTER_ID not in brokers.addresses and live.member.acting_master:
                self._take_write(live.member.broker)
        return Gone(live.member, live.connection)

    def _forget_queues(self, broker: str) -> None:
        for topic in [topic for topic, holders in self._topics.items() if broker in holders]:
            del self._topics[topic][broker]
            if not self._topics[topic]:
                del self._topics[topic]

    # ── Questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def route(self, topic: str) -> TopicRoute:
        """Where a topic lives. Raises `TopicNotFound` when no live broker holds it."""
        holders = self._topics.get(topic, {})
        names = sorted(name for name in holders if name in self._brokers)
        if not names:
            raise TopicNotFound(
                f"No topic route info in name server for the topic: {topic}. Create it or check its name"
            )
        return TopicRoute(
            brokers=tuple(self._addresses(name) for name in names), queues=tuple(holders[name] for name in names)
        )

    def brokers(self) -> list[BrokerAddresses]:
        """All broker sets, by name."""
        return [self._addresses(name) for name in sorted(self._brokers)]

    def members_of(self, broker: str) -> BrokerAddresses | None:
        """One broker set."""
        return self._addresses(broker) if broker in self._brokers else None

    def _addresses(self, name: str) -> BrokerAddresses:
        brokers = self._brokers[name]
        return BrokerAddresses(name=name, cluster=brokers.cluster, addresses=dict(brokers.addresses))

    def clusters(self) -> list[str]:
        return sorted({brokers.cluster for brokers in self._brokers.values()})

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics that at least one broker of a cluster holds."""
        names = {name for name, brokers in self._brokers.items() if brokers.cluster == cluster}
        return sorted(topic for topic, holders in self._topics.items() if not names.isdisjoint(holders))

    # ── Administration ──────────────────────────────────────────────────────────────────────────────────────────────

    def register_topic(self, topic: str, queues: Iterable[TopicQueues]) -> None:
        """Add the queues of one topic, for brokers that are known."""
        for each in queues:
            if each.broker not in self._brokers:
                continue
            if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
                raise Refused(f"{TOPICS_MAX} topics are registered, which is the limit: delete some first")
            self._topics.setdefault(topic, {})[each.broker] = each

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Forget a topic, or only its queues in one cluster. Brokers that still hold it may bring it back."""
        holders = self._topics.get(topic, {})
        if cluster is not None:
            names = {name for name, brokers in self._brokers.items() if brokers.cluster == cluster}
            holders = {name: queues for name, queues in holders.items() if name not in names}
        if cluster is None or not holders:
            self._topics.pop(topic, None)
        else:
            self._topics[topic] = holders

    def wipe_write_permission(self, broker: str) -> int:
        """Make all topics of a broker unwritable until it registers a change; returns how many there are."""
        return self._take_write(broker)

    def add_write_permission(self, broker: str) -> int:
        """Make all topics of a broker readable and writable; returns how many there are."""
        return self._change(broker, lambda queues: replace(queues, permission=READ_WRITE))

    def _take_write(self, broker: str) -> int:
        return self._change(
            broker, lambda queues: replace(queues, permission=queues.permission & ~int(Permission.WRITE))
        )

    def _change(self, broker: str, change: Callable[[TopicQueues], TopicQueues]) -> int:
        count = 0
        for holders in self._topics.values():
            if broker in holders:
                holders[broker] = change(holders[broker])
                count += 1
        return count


def _queues(broker: str, config: TopicConfig, *, loses_write: bool) -> TopicQueues:
    permission = config.perm & ~int(Permission.WRITE) if loses_write else config.perm
    return TopicQueues(
        broker=broker,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=permission,
        flags=config.topic_sys_flag,
    )

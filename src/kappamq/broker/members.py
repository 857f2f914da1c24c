"""Who is online: producers and consumers by group, each tied to the connection that sent its heartbeat."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kappamq.clock import Clock
from kappamq.errors import KappaError
from kappamq.model.config import GroupConfig
from kappamq.model.subscription import (
    ClientConnection,
    ConsumeFrom,
    ConsumerMembership,
    ConsumeType,
    MessageModel,
    Subscription,
)
from kappamq.net.connection import Connection
from kappamq.wire.headers import ConsumerIdsChanged


@dataclass(slots=True)
class Member:
    """One client of a group."""

    client: ClientConnection
    connection: Connection
    seen: float


@dataclass(slots=True)
class ConsumerGroup:
    """The online part of a consumer group: its members share subscriptions and the way they consume."""

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[Connection, Member] = field(default_factory=dict)
    fingerprint: int = 0


GroupListener = Callable[[ConsumerGroup], None]


class Members:
    """All online clients. Owned by the event loop; `on_change` hears of every group whose members changed."""

    def __init__(self, *, clock: Clock, timeout_seconds: float, on_change: GroupListener) -> None:
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._on_change = on_change
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Connection, Member]] = {}
        self._groups_of: dict[Connection, set[tuple[str, str]]] = {}
        self.version = 0
        """Grows whenever what a consumer group subscribes to, or how it consumes, may have changed."""

    # ── Joining and leaving ─────────────────────────────────────────────────────────────────────────────────────────

    def join_producer(self, group: str, client: ClientConnection, connection: Connection) -> None:
        self._producers.setdefault(group, {})[connection] = Member(client, connection, self._clock.monotonic())
        self._groups_of.setdefault(connection, set()).add(("producer", group))

    def join_consumer(
        self, membership: ConsumerMembership, client: ClientConnection, connection: Connection, *, keep: bool = False
    ) -> None:
        """Take note of a consumer; with `keep` its subscriptions are not in the heartbeat and stay as they are."""
        self.version += 1
        group = self._consumers.setdefault(membership.group, ConsumerGroup(membership.group))
        is_new = connection not in group.members
        group.members[connection] = Member(client, connection, self._clock.monotonic())
        self._groups_of.setdefault(connection, set()).add(("consumer", membership.group))
        group.consume_type = membership.consume_type
        group.message_model = membership.message_model
        group.consume_from = membership.consume_from
        has_changed = not keep and _update_subscriptions(group, membership.subscriptions)
        if is_new or has_changed:
            self._on_change(group)

    def leave(self, connection: Connection, *, producer_group: str | None, consumer_group: str | None) -> None:
        """One client says goodbye to its groups."""
        if producer_group:
            self._drop(connection, "producer", producer_group)
        if consumer_group:
            self._drop(connection, "consumer", consumer_group)

    def lost(self, connection: Connection) -> None:
        """A connection is gone, and its client with it."""
        for role, group in self._groups_of.pop(connection, set()):
            self._drop(connection, role, group)

    def expire(self) -> list[Connection]:
        """Connections whose client stopped its heartbeats; they are dropped and ought to be closed."""
        oldest = self._clock.monotonic() - self._timeout_seconds
        late = [
            connection
            for members in [*self._producers.values(), *(group.members for group in self._consumers.values())]
            for connection, member in members.items()
            if member.seen < oldest
        ]
        for connection in set(late):
            self.lost(connection)
        return list(set(late))

    def _drop(self, connection: Connection, role: str, name: str) -> None:
        self._groups_of.get(connection, set()).discard((role, name))
        if role == "producer":
            members = self._producers.get(name)
            if members is not None:
                members.pop(connection, None)
                if not members:
                    del self._producers[name]
            return
        group = self._consumers.get(name)
        if group is not None and group.members.pop(connection, None) is not None:
            self.version += 1
            if not group.members:
                del self._consumers[name]
            self._on_change(group)

    # ── Looking up ──────────────────────────────────────────────────────────────────────────────────────────────────

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def is_subscribed(self, group: str, topic: str) -> bool:
        """Whether a group reads a topic, as far as one can know: a group that says nothing may read anything."""
        online = self._consumers.get(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    def consumer_ids(self, group: str) -> list[str]:
        found = self._consumers.get(group)
        return (
            [] if found is None else list(dict.fromkeys(member.client.client_id for member in found.members.values()))
        )

    def consumer(self, group: str, client_id: str) -> Member | None:
        found = self._consumers.get(group)
        if found is None:
            return None
        return next((member for member in found.members.values() if member.client.client_id == client_id), None)

    def producers(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Member]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def producer_by_client_id(self, client_id: str) -> Member | None:
        for members in self._producers.values():
            for member in members.values():
                if member.client.client_id == client_id and member.connection.is_open:
                    return member
        return None


def _update_subscriptions(group: ConsumerGroup, subscriptions: tuple[Subscription, ...]) -> bool:
    """Apply a heartbeat's subscriptions: newer versions replace, topics no longer named go. Whether topics changed."""
    has_changed = False
    for subscription in subscriptions:
        known = group.subscriptions.get(subscription.topic)
        if known is None:
            has_changed = True
        if known is None or subscription.sub_version > known.sub_version:
            group.subscriptions[subscription.topic] = subscription
    named = {subscription.topic for subscription in subscriptions}
    for topic in [topic for topic in group.subscriptions if topic not in named]:
        del group.subscriptions[topic]
        has_changed = True
    return has_changed


def client_of(connection: Connection, client_id: str, language: str, version: int) -> ClientConnection:
    """Description of a client for lists of connections."""
    return ClientConnection(client_id=client_id, address=connection.peer, language=language, version=version)


def connections_of(members: list[Member]) -> tuple[ClientConnection, ...]:
    return tuple(member.client for member in members)


def notify_members(group: ConsumerGroup, config: GroupConfig | None) -> None:
    """Tell the members of a group that it changed, so that they share the queues anew."""
    if group.message_model is MessageModel.BROADCASTING:
        return
    if config is not None and not config.notify_consumer_ids_changed_enable:
        return
    for member in list(group.members.values()):
        try:
            member.connection.send(ConsumerIdsChanged(consumer_group=group.name).command())
        except KappaError:
            continue  # It is going away; its own loss will be noticed.

"""Who is online."""

from typing import cast

from kappamq.broker.members import ConsumerGroup, Members
from kappamq.clock import ManualClock
from kappamq.model.subscription import ClientConnection, ConsumerMembership, Subscription
from kappamq.net.connection import Connection


class _Peer:
    """Stands for a connection: members only use it as a key."""

    is_open = True


def peer() -> Connection:
    return cast(Connection, _Peer())


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes: list[str] = []
        self.members = Members(clock=self.clock, timeout_seconds=120, on_change=self._changed)

    def _changed(self, group: ConsumerGroup) -> None:
        self.changes.append(group.name)

    def join(self, connection: Connection, client_id: str, *topics: str, version: int = 1, group: str = "g") -> None:
        subscriptions = tuple(Subscription(topic=topic, sub_version=version) for topic in topics)
        membership = ConsumerMembership(group=group, subscriptions=subscriptions)
        client = ClientConnection(client_id=client_id, address="1.2.3.4:5")
        self.members.join_consumer(membership, client, connection)


def test_joining_leaving_and_losing_are_told_once_each() -> None:
    scene = Scene()
    one, two = peer(), peer()
    scene.join(one, "one", "t")
    scene.join(one, "one", "t")
    scene.join(two, "two", "t")
    assert scene.changes == ["g", "g"]
    assert scene.members.consumer_ids("g") == ["one", "two"]
    scene.members.leave(one, producer_group=None, consumer_group="g")
    scene.members.lost(two)
    scene.members.lost(two)
    assert scene.changes == ["g"] * 4
    assert scene.members.consumer_group("g") is None


def test_subscriptions_follow_their_version_and_topics_not_named_go() -> None:
    scene = Scene()
    one = peer()
    scene.join(one, "one", "a", "b", version=5)
    scene.join(one, "one", "a", "c", version=4)
    group = scene.members.consumer_group("g")
    assert group is not None
    assert {topic: s.sub_version for topic, s in group.subscriptions.items()} == {"a": 5, "c": 4}
    assert scene.changes == ["g", "g"]


def test_silent_clients_expire() -> None:
    scene = Scene()
    quiet, lively = peer(), peer()
    scene.join(quiet, "quiet", "t")
    scene.join(lively, "lively", "t")
    scene.clock.advance(ms=100_000)
    scene.join(lively, "lively", "t")
    scene.clock.advance(ms=30_000)
    assert scene.members.expire() == [quiet]
    assert scene.members.consumer_ids("g") == ["lively"]


def test_producers_are_found_by_group_and_client_id() -> None:
    scene = Scene()
    connection = peer()
    client = ClientConnection(client_id="p1", address="x")
    scene.members.join_producer("pg", client, connection)
    assert [member.client.client_id for member in scene.members.producers("pg")] == ["p1"]
    found = scene.members.producer_by_client_id("p1")
    assert found is not None
    assert found.connection is connection
    scene.members.lost(connection)
    assert scene.members.producers("pg") == []
    assert scene.members.producer_by_client_id("p1") is None

"""The worked examples of every allocation strategy."""

from collections.abc import Sequence

import pytest

from kappamq.client.core.balancing import (
    Average,
    AverageByCircle,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Strategy,
    hash_point,
)
from kappamq.errors import ConfigError, UsageError
from kappamq.model.message import Queue


def queues_on(*brokers: str, count: int) -> list[Queue]:
    return [Queue("T", broker, queue_id) for broker in brokers for queue_id in range(count)]


def shares(strategy: Strategy, queues: Sequence[Queue], members: Sequence[str]) -> list[list[int]]:
    """Queue ids of each member."""
    return [[queue.queue_id for queue in strategy.allocate("g", member, queues, members)] for member in members]


@pytest.mark.parametrize(
    ("queue_count", "expected"),
    [
        (8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, [[0, 1], [2], [3]]),
        (2, [[0], [1], []]),
        (3, [[0], [1], [2]]),
        (9, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
    ],
)
def test_average(queue_count: int, expected: list[list[int]]) -> None:
    assert shares(Average(), queues_on("a", count=queue_count), ["c1", "c2", "c3"]) == expected


def test_average_with_more_members_than_queues() -> None:
    assert shares(Average(), queues_on("a", count=3), ["c1", "c2", "c3", "c4"]) == [[0], [1], [2], []]


def test_average_of_sixteen_over_five() -> None:
    sizes = [len(share) for share in shares(Average(), queues_on("a", count=16), ["1", "2", "3", "4", "5"])]
    assert sizes == [4, 3, 3, 3, 3]


def test_circle() -> None:
    expected = [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert shares(AverageByCircle(), queues_on("a", count=8), ["c1", "c2", "c3"]) == expected


def test_order_of_the_lists_does_not_matter() -> None:
    queues = queues_on("b", "a", count=2)
    assert Average().allocate("g", "c1", queues, ["c2", "c1"]) == queues_on("a", count=2)


def test_configured_ignores_route_and_members() -> None:
    mine = queues_on("a", count=2)
    assert Configured(mine).allocate("g", "stranger", [], []) == mine


def test_machine_room() -> None:
    queues = queues_on("r1@a", count=8) + queues_on("r2@b", "plain", "r1@x@y", count=2)
    expected = [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert shares(MachineRoom({"r1"}), queues, ["c1", "c2", "c3"]) == expected


def test_machine_room_without_queues_in_it() -> None:
    assert MachineRoom({"r9"}).allocate("g", "c1", queues_on("r1@a", count=4), ["c1"]) == []


def room(name: str) -> str:
    return name.partition("-")[0]


NEARBY = MachineRoomNearby(Average(), room_of_broker=room, room_of_client=room)


def test_nearby_keeps_rooms_apart() -> None:
    queues = queues_on("r1-a", "r2-a", count=4)
    members = ["r1-c1", "r1-c2", "r2-c1"]
    assert NEARBY.name == "MACHINE_ROOM_NEARBY-AVG"
    assert shares(NEARBY, queues, members) == [[0, 1], [2, 3], [0, 1, 2, 3]]
    assert {queue.broker for queue in NEARBY.allocate("g", "r2-c1", queues, members)} == {"r2-a"}


def test_nearby_shares_rooms_without_members_among_all() -> None:
    queues = queues_on("r1-a", "r3-a", "r2-a", count=2)
    mine = NEARBY.allocate("g", "r1-c1", queues, ["r1-c1", "r9-c2"])
    assert mine == [*queues_on("r1-a", count=2), Queue("T", "r2-a", 0), Queue("T", "r3-a", 0)]
    assert NEARBY.allocate("g", "r9-c2", queues, ["r1-c1", "r9-c2"]) == [Queue("T", "r2-a", 1), Queue("T", "r3-a", 1)]


def test_nearby_needs_a_room_for_everything() -> None:
    nearby = MachineRoomNearby(Average(), room_of_broker=lambda _: "", room_of_client=room)
    with pytest.raises(ConfigError, match="no machine room"):
        nearby.allocate("g", "r1-c", queues_on("a", count=1), ["r1-c"])


FIRST, SECOND = "192.168.1.10@1001#1", "192.168.1.11@1002#2"


def test_consistent_hash_ring() -> None:
    ring = ConsistentHash().ring([FIRST, SECOND])
    points = sorted(ring)
    assert len(points) == 20
    assert points[:3] == [243268933, 627643460, 1017689918]
    assert points[-1] == 4020708867
    assert [ring[point] for point in (*points[:3], points[-1])] == [FIRST, FIRST, SECOND, SECOND]
    assert hash_point(f"{FIRST}-4") == 627643460


def test_consistent_hash_of_queues() -> None:
    queues = [Queue("TopicTest", "broker-a", queue_id) for queue_id in range(4)]
    assert [hash_point(str(queue)) for queue in queues] == [1987926524, 4291349817, 853506239, 3652785994]
    assert shares(ConsistentHash(), queues, [FIRST, SECOND]) == [[1, 3], [0, 2]]


def test_consistent_hash_needs_nodes() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        ConsistentHash(0)


ALL = [Average(), AverageByCircle(), MachineRoom({"r1"}), NEARBY, ConsistentHash()]


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
def test_a_stranger_gets_nothing(strategy: Strategy) -> None:
    assert strategy.allocate("g", "r1-x", queues_on("r1@a", count=4), ["r1-c"]) == []


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize(
    ("client_id", "queue_count", "members", "says"),
    [("", 1, ["c"], "client id"), ("c", 0, ["c"], "queues"), ("c", 1, [], "members")],
)
def test_empty_input(strategy: Strategy, client_id: str, queue_count: int, members: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=f"'g': {says} missing"):
        strategy.allocate("g", client_id, queues_on("a", count=queue_count), members)

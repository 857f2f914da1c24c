"""Laws of every allocation strategy: each queue has exactly one owner, whatever order the lists come in."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.core.balancing import (
    Average,
    AverageByCircle,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Strategy,
)
from kappamq.model.message import Queue

ROOMS = ("r1", "r2", "r3")


def room(name: str) -> str:
    return name[:2]


queue_sets = st.sets(
    st.builds(Queue, st.just("T"), st.sampled_from([f"{r}@b{n}" for r in ROOMS for n in range(3)]), st.integers(0, 40)),
    min_size=1,
)
member_sets = st.sets(st.builds("{}-{}".format, st.sampled_from(ROOMS), st.integers(0, 50)), min_size=1)

STRATEGIES: list[Strategy] = [
    Average(),
    AverageByCircle(),
    ConsistentHash(),
    MachineRoom(ROOMS),
    MachineRoomNearby(Average(), room_of_broker=room, room_of_client=room),
    MachineRoomNearby(AverageByCircle(), room_of_broker=room, room_of_client=room),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@given(queues=queue_sets, members=member_sets, shuffle=st.randoms(use_true_random=False))
def test_every_queue_has_one_owner(
    strategy: Strategy, queues: set[Queue], members: set[str], shuffle: random.Random
) -> None:
    owned: list[Queue] = []
    for member in members:
        shuffled_queues, shuffled_members = list(queues), list(members)
        shuffle.shuffle(shuffled_queues)
        shuffle.shuffle(shuffled_members)
        share = strategy.allocate("g", member, shuffled_queues, shuffled_members)
        assert share == strategy.allocate("g", member, sorted(queues), sorted(members))
        owned += share
    assert sorted(owned) == sorted(queues)


@pytest.mark.parametrize("strategy", [Average(), AverageByCircle(), MachineRoom(ROOMS)], ids=lambda s: s.name)
@given(queues=queue_sets, members=member_sets)
def test_shares_differ_by_at_most_one(strategy: Strategy, queues: set[Queue], members: set[str]) -> None:
    sizes = [len(strategy.allocate("g", member, sorted(queues), sorted(members))) for member in members]
    assert max(sizes) - min(sizes) <= 1


@given(queues=queue_sets, members=member_sets)
def test_consistent_hash_moves_only_to_the_newcomer(queues: set[Queue], members: set[str]) -> None:
    strategy = ConsistentHash()
    for member in members:
        before = set(strategy.allocate("g", member, sorted(queues), sorted(members)))
        after = set(strategy.allocate("g", member, sorted(queues), sorted(members | {"newcomer"})))
        assert after <= before

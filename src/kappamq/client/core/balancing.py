"""Which queues of a topic each member of a group consumes.

Every member computes this alone from the same two lists; nobody coordinates. So a strategy must be deterministic, and
all members of a group must use the same one. Lists may come in any order: strategies sort them as RocketMQ does.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from hashlib import md5
from typing import Final, Protocol, TypeVar

from kappamq.errors import ConfigError, UsageError
from kappamq.model.message import Queue

VIRTUAL_NODES: Final = 10
"""Points of each member on the ring of consistent hashing."""

ROOM_SEPARATOR: Final = "@"

Item = TypeVar("Item")


class Strategy(Protocol):
    """How queues are shared out. `name` is what servers that balance for their clients know it by."""

    @property
    def name(self) -> str: ...

    def allocate(self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        """Queues of `client_id`; none if it is not among `client_ids`. Raises `UsageError` on empty lists."""
        ...


class Average:
    """Contiguous runs of queues, the first members getting one more where it does not divide evenly."""

    name = "AVG"

    def allocate(self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        members, ordered = _prepare(group, client_id, queues, client_ids)
        if client_id not in members:
            return []
        index = members.index(client_id)
        share, rest = divmod(len(ordered), len(members))
        start = index * share + min(index, rest)
        return ordered[start : start + share + (index < rest)]


class AverageByCircle:
    """Queues dealt one by one, like cards."""

    name = "AVG_BY_CIRCLE"

    def allocate(self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        members, ordered = _prepare(group, client_id, queues, client_ids)
        return ordered[members.index(client_id) :: len(members)] if client_id in members else []


class Configured:
    """The fixed list that the user gave, whatever the route and the group look like."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._queues = list(queues)

    def allocate(
        self,
        group: str,  # noqa: ARG002
        client_id: str,  # noqa: ARG002
        queues: Sequence[Queue],  # noqa: ARG002
        client_ids: Sequence[str],  # noqa: ARG002
    ) -> list[Queue]:
        return list(self._queues)


class MachineRoom:
    """Even shares of the queues on brokers named `room@name` in the given rooms; queues elsewhere stay unread."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        members, ordered = _prepare(group, client_id, queues, client_ids)
        if client_id not in members:
            return []
        kept = [queue for queue in ordered if self._is_near(queue)]
        index = members.index(client_id)
        share, rest = divmod(len(kept), len(members))
        mine = kept[share * index : share * (index + 1)]
        if index < rest:
            mine.append(kept[share * len(members) + index])
        return mine

    def _is_near(self, queue: Queue) -> bool:
        parts = queue.broker.split(ROOM_SEPARATOR)
        return len(parts) == 2 and parts[0] in self._rooms


class MachineRoomNearby:
    """Queues go to members in their own room by an inner strategy; rooms without a member are shared by all members."""

    def __init__(
        self, inner: Strategy, *, room_of_broker: Callable[[str], str], room_of_client: Callable[[str], str]
    ) -> None:
        self._inner = inner
        self._room_of_broker = room_of_broker
        self._room_of_client = room_of_client

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        members, ordered = _prepare(group, client_id, queues, client_ids)
        if client_id not in members:
            return []
        members_by_room = _by_room(members, self._room_of_client)
        queues_by_room = _by_room(ordered, lambda queue: self._room_of_broker(queue.broker))
        my_room = self._room_of_client(client_id)
        mine: list[Queue] = []
        if near := queues_by_room.pop(my_room, None):
            mine += self._inner.allocate(group, client_id, near, members_by_room[my_room])
        for room in sorted(queues_by_room.keys() - members_by_room.keys()):
            mine += self._inner.allocate(group, client_id, queues_by_room[room], members)
        return mine


class ConsistentHash:
    """Each queue goes to the next member on a ring of hashes: few queues move when a member joins or leaves."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ConfigError(f"consistent hashing with {virtual_nodes} virtual nodes places nobody: use at least 1")
        self._virtual_nodes = virtual_nodes

    def allocate(self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]) -> list[Queue]:
        members, ordered = _prepare(group, client_id, queues, client_ids)
        if client_id not in members:
            return []
        ring = self.ring(members)
        points = sorted(ring)
        return [queue for queue in ordered if ring[_owner(points, hash_point(str(queue)))] == client_id]

    def ring(self, members: Sequence[str]) -> dict[int, str]:
        """Point → member; of two members on one point, the later one in `members` stands."""
        return {hash_point(f"{member}-{node}"): member for member in members for node in range(self._virtual_nodes)}


def hash_point(key: str) -> int:
    """Place of a key on the ring: the first four bytes of its MD5."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _owner(points: Sequence[int], point: int) -> int:
    index = bisect_left(points, point)
    return points[index if index < len(points) else 0]


def _prepare(
    group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
) -> tuple[list[str], list[Queue]]:
    for what, given in (("client id", client_id), ("queues", queues), ("members", client_ids)):
        if not given:
            raise UsageError(f"nothing to balance in group {group!r}: {what} missing; skip this round and ask again")
    return sorted(client_ids), sorted(queues)


def _by_room(items: Sequence[Item], room_of: Callable[[Item], str]) -> dict[str, list[Item]]:
    rooms: dict[str, list[Item]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ConfigError(f"no machine room for {item}: let the room function answer for every broker and client")
        rooms.setdefault(room, []).append(item)
    return rooms

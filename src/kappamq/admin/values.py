"""What administration asks about and gets back: frozen values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kappamq.model.config import GroupConfig, TopicConfig
from kappamq.model.message import Queue
from kappamq.model.route import TopicRoute
from kappamq.model.subscription import ClientConnection


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What one queue holds: offsets from `start` (inclusive) to `end` (exclusive)."""

    queue: Queue
    start: int
    end: int
    updated_at_ms: int
    """Store time of the last message; 0 when there is none."""

    @property
    def count(self) -> int:
        return max(self.end - self.start, 0)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic with everything its brokers say about it."""

    name: str
    route: TopicRoute
    configs: Mapping[str, TopicConfig]
    """By broker name; brokers that cannot tell are left out."""
    queues: tuple[QueueRange, ...]
    groups: tuple[str, ...]

    @property
    def message_count(self) -> int:
        return sum(queue.count for queue in self.queues)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is on one queue. `lag` counts messages it has not committed."""

    queue: Queue
    end: int
    committed_offset: int
    pulled_offset: int
    consumed_at_ms: int
    """Store time of the last committed message; 0 when not known."""
    client_id: str | None = None

    @property
    def lag(self) -> int:
        return max(self.end - max(self.committed_offset, 0), 0)

    @property
    def inflight(self) -> int:
        """Messages pulled and not committed yet."""
        return max(self.pulled_offset - self.committed_offset, 0)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is on all its queues."""

    group: str
    queues: tuple[QueueLag, ...]
    per_second: float = 0.0

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({queue.queue.topic for queue in self.queues}))


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The online consumers of a group, over all brokers."""

    connections: tuple[ClientConnection, ...] = ()
    consume_type: str | None = None
    message_model: str | None = None
    consume_from: str | None = None
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    """Topic → expression."""

    @property
    def is_online(self) -> bool:
        return bool(self.connections)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with everything its brokers say about it."""

    name: str
    configs: Mapping[str, GroupConfig]
    members: GroupMembers
    progress: Progress


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line about a group."""

    name: str
    members: int
    message_model: str | None
    lag: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueReset:
    """Where a group goes on, on one queue."""

    queue: Queue
    committed_offset: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages per second and by day, one direction."""

    per_second: float = 0.0
    today: int = 0
    yesterday: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """One broker process. `fault` says why it could not be asked; the figures are then empty."""

    cluster: str
    name: str
    broker_id: int
    address: str
    version: str = ""
    received: Traffic = Traffic()
    delivered: Traffic = Traffic()
    disk_ratio: float = -1.0
    """Used share of the disk, 0 to 1; -1 when not known."""
    earliest_at_ms: int = -1
    """Store time of the oldest message; -1 when there is none."""
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerConnection:
    """One client that sends in a group, as a broker sees it."""

    group: str
    client_id: str
    address: str
    language: str
    version: int

"""Topic table: configuration, permissions, creation. Owned by the event loop, kept in `config/topics.json`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from kappamq.clock import Clock
from kappamq.errors import InvalidName, NotPermitted, Refused, TopicNotFound, UsageError
from kappamq.model.config import QUEUES_MAX, READ_WRITE, DataVersion, Permission, TopicConfig
from kappamq.model.names import (
    BENCHMARK_TOPIC,
    FIXED_SYSTEM_TOPICS,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OPERATION_TOPIC,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    check_topic,
    is_retry_topic,
)
from kappamq.wire.codes import ResponseCode

TOPICS_MAX: Final = 1_000_000
_ATTRIBUTES_MAX: Final = 32
_READ: Final = int(Permission.READ)  # Plain numbers: flag enums are slow on the hot path.


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInTopics:
    """Which topics a broker has from the start."""

    cluster: str
    broker: str
    template_queues: int
    auto_create: bool
    delay_levels: int
    trace_topic: str | None = None

    def configs(self) -> list[TopicConfig]:
        inheritable = READ_WRITE | Permission.INHERIT
        topics = [
            _topic(SELF_TEST_TOPIC, 1),
            _topic(BENCHMARK_TOPIC, 1024),
            _topic(self.cluster, 16, inheritable),
            _topic(self.broker, 1, inheritable),
            _topic(OFFSET_MOVED_TOPIC, 1),
            _topic(SCHEDULE_TOPIC, self.delay_levels),
            _topic(self.cluster + REPLY_TOPIC_SUFFIX, 1),
            _topic(HALF_TOPIC, 1),
            _topic(OPERATION_TOPIC, 1),
            _topic(TIMER_TOPIC, 1),
        ]
        if self.auto_create:
            topics.append(_topic(TEMPLATE_TOPIC, self.template_queues, inheritable))
        if self.trace_topic is not None:
            topics.append(_topic(self.trace_topic, 1))
        return topics


class Topics:
    """All topics of this broker. `on_change` runs after every change: persist and tell the name servers."""

    def __init__(self, built_in: BuiltInTopics, *, clock: Clock, on_change: Callable[[], None]) -> None:
        self._built_in = built_in
        self._clock = clock
        self._on_change = on_change
        self._table: dict[str, TopicConfig] = {}
        self.version = DataVersion(timestamp=clock.now_ms())

    def load(self, value: dict[str, object] | None, stored: Iterable[tuple[str, int]]) -> None:
        """Fill the table at start: what the file says, what every broker has, what the store holds all the same.

        `stored` are the (topic, queue id) pairs with entries: a crash may have lost the topic file but never messages.
        """
        if value is not None:
            file = msgspec.convert(value, _TopicFile, strict=False)
            self.version = file.data_version
            self._table.update(file.topic_config_table)
        for topic in self._built_in.configs():
            kept = self._table.get(topic.topic_name)
            if kept is None or kept.queue_count < topic.queue_count:
                self._table[topic.topic_name] = topic
        if not self._built_in.auto_create:
            self._table.pop(TEMPLATE_TOPIC, None)
        queues: dict[str, int] = {}
        for name, queue_id in stored:
            queues[name] = max(queues.get(name, 0), queue_id + 1)
        for name, count in queues.items():
            if name not in self._table:
                self._table[name] = _topic(name, count)
        self.version = self.version.next(self._clock.now_ms())

    def as_file(self) -> dict[str, object]:
        """Content of `topics.json`."""
        return {"dataVersion": self.version, "topicConfigTable": dict(self._table)}

    def __len__(self) -> int:
        return len(self._table)

    def table(self) -> dict[str, TopicConfig]:
        """A copy of the table."""
        return dict(self._table)

    def find(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def get(self, name: str) -> TopicConfig:
        """Configuration of a topic that must exist."""
        topic = self._table.get(name)
        if topic is None:
            raise TopicNotFound(f"topic[{name}] not exist, apply first please! Create it, or check its name.")
        return topic

    def is_system(self, name: str) -> bool:
        """Whether a topic belongs to the broker rather than to users."""
        return (
            name in FIXED_SYSTEM_TOPICS
            or name in (self._built_in.cluster, self._built_in.broker)
            or name == self._built_in.cluster + REPLY_TOPIC_SUFFIX
            or name.startswith(SYSTEM_PREFIX)
        )

    def system_names(self) -> list[str]:
        return [name for name in self._table if self.is_system(name)]

    def for_send(self, name: str, *, template: str, queues: int) -> TopicConfig:
        """Topic of a send, created from its template when it is new."""
        topic = self._table.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        origin = self._table.get(template)
        if origin is not None and origin.perm & Permission.INHERIT:
            count = max(1, min(queues, origin.write_queue_nums))
            return self._add(
                _topic(name, count, origin.perm & ~Permission.INHERIT, filter_type=origin.topic_filter_type)
            )
        if is_retry_topic(name):
            return self._add(_topic(name, 1))
        raise TopicNotFound(
            f"topic[{name}] not exist, apply first please! It is not created on the first send here: create it."
        )

    def ensure(self, name: str, queues: int, permission: int = READ_WRITE) -> TopicConfig:
        """A topic the broker itself needs (retry, dead letters), created when missing."""
        topic = self._table.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        return self._add(_topic(name, queues, permission))

    def put(self, topic: TopicConfig) -> None:
        """Create or change a topic on an administrator's word."""
        check_topic(topic.topic_name)
        if self.is_system(topic.topic_name):
            raise UsageError(f"The topic[{topic.topic_name}] is conflict with system topic. Choose another name.")
        for kind, count in (("read", topic.read_queue_nums), ("write", topic.write_queue_nums)):
            if not 0 <= count <= QUEUES_MAX:
                raise UsageError(f"{count} {kind} queues are out of range: use 1 to {QUEUES_MAX}")
        if topic.queue_count < 1:
            raise UsageError("a topic needs at least one queue: ask for 1 or more read and write queues")
        if not 0 <= topic.perm <= 7:
            raise UsageError(f"permission {topic.perm} is unknown: use 2 (write), 4 (read) or 6 (both)")
        if len(topic.attributes) > _ATTRIBUTES_MAX:
            raise UsageError(f"{len(topic.attributes)} attributes are too many: use at most {_ATTRIBUTES_MAX}")
        if topic.attributes.get("queue.type") == "BatchCQ":
            raise UsageError("queue.type BatchCQ is not supported here: leave the attribute out")
        self._add(topic)

    def remove(self, name: str) -> bool:
        """Forget a topic; whether there was one."""
        if not name.strip():
            raise InvalidName("The specified topic is blank.")
        if self.is_system(name):
            raise UsageError(f"The topic[{name}] is conflict with system topic. It cannot be deleted.")
        if self._table.pop(name, None) is None:
            return False
        self._changed()
        return True

    def allow_creation(self, is_allowed: bool) -> None:
        """Let sends create topics from the template from now on, or no longer."""
        if is_allowed:
            self._table.setdefault(
                TEMPLATE_TOPIC,
                _topic(TEMPLATE_TOPIC, self._built_in.template_queues, READ_WRITE | Permission.INHERIT),
            )
        else:
            self._table.pop(TEMPLATE_TOPIC, None)
        self._changed()

    def set_orders(self, ordered: Iterable[str]) -> None:
        """Mark the topics that the name server's order configuration names."""
        for name in ordered:
            topic = self._table.get(name)
            if topic is not None and not topic.order:
                self._add(msgspec.structs.replace(topic, order=True))

    def check_queue(self, topic: TopicConfig, queue_id: int) -> None:
        """Raise unless a pull may read this queue."""
        if not topic.perm & _READ:
            raise NotPermitted(f"the topic[{topic.topic_name}] pulling message is forbidden")
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]: refresh the route",
                code=ResponseCode.INVALID_PARAMETER,
            )

    def _add(self, topic: TopicConfig) -> TopicConfig:
        if len(self._table) >= TOPICS_MAX:
            raise Refused(f"this broker has {TOPICS_MAX} topics, its limit: delete some", code=1)
        self._table[topic.topic_name] = topic
        self._changed()
        return topic

    def _changed(self) -> None:
        self.version = self.version.next(self._clock.now_ms())
        self._on_change()

    def bump(self) -> None:
        """Make name servers take the table as changed."""
        self._changed()


class _TopicFile(msgspec.Struct, rename="camel"):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)


def _topic(name: str, queues: int, permission: int = READ_WRITE, *, filter_type: str = "SINGLE_TAG") -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=int(permission),
        topic_filter_type=filter_type,
    )

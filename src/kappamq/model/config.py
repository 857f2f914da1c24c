"""Topic and group configuration: the same JSON on the wire and in the broker's config files."""

from enum import IntFlag
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

QUEUES_MAX: Final = 65536
"""Most queues a topic may have on one broker."""


class Permission(IntFlag):
    """What a topic on a broker allows."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


READ_WRITE: Final = int(Permission.READ | Permission.WRITE)


class DataVersion(Struct, frozen=True, rename="camel", kw_only=True):
    """Version of a table: any difference means that the table may have changed."""

    counter: I64 = 0
    state_version: I64 = 0
    timestamp: I64 = 0

    def next(self, now_ms: int) -> "DataVersion":
        return DataVersion(counter=self.counter + 1, state_version=self.state_version, timestamp=now_ms)


class TopicConfig(Struct, frozen=True, rename="camel", kw_only=True):
    """One topic on one broker. Field order is alphabetical on the wire, as RocketMQ writes it."""

    attributes: dict[str, str] = field(default_factory=dict)
    order: bool = False
    perm: I32 = READ_WRITE
    read_queue_nums: I32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: I32 = 0
    write_queue_nums: I32 = 16

    @property
    def queue_count(self) -> int:
        """Queues that can hold messages: the larger of both counts."""
        return max(self.read_queue_nums, self.write_queue_nums)


class GroupConfig(Struct, frozen=True, rename="camel", kw_only=True):
    """One consumer group on one broker."""

    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: I64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: I32 = 15
    group_name: str
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    group_sys_flag: I32 = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: I32 = 16
    retry_queue_nums: I32 = 1
    which_broker_when_consume_slowly: I64 = 1


def as_json_value(config: Struct) -> dict[str, Any]:
    """Plain JSON value of a configuration struct, ready for `wire.fastjson` or a config file."""
    value = msgspec.to_builtins(config)
    assert isinstance(value, dict)
    return value

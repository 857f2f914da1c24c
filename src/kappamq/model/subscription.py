"""What clients tell brokers about themselves: groups, subscriptions, how they consume."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from kappamq.model.config import I64


class ExpressionType(StrEnum):
    TAG = "TAG"
    SQL92 = "SQL92"


class ConsumeType(StrEnum):
    """How a consumer gets its messages. Order matters: some clients send the position instead of the name."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether the members of a group share the messages or each get all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFrom(StrEnum):
    """Where a group without a committed offset starts."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_OR_MIN_AT_BOOT = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Subscription(Struct, frozen=True, kw_only=True, rename="camel"):
    """One topic as a group subscribes to it (RocketMQ's SubscriptionData, fields in its order)."""

    class_filter_mode: bool = False
    code_set: tuple[int, ...] = ()
    expression_type: str = ExpressionType.TAG
    sub_string: str = "*"
    sub_version: I64 = 0
    tags_set: tuple[str, ...] = ()
    topic: str


class ConsumerMembership(Struct, frozen=True, kw_only=True):
    """One consumer group of a client."""

    group: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class Heartbeat(Struct, frozen=True, kw_only=True):
    """A client's periodic statement of who it is."""

    client_id: str
    consumers: tuple[ConsumerMembership, ...] = ()
    producer_groups: tuple[str, ...] = ()
    fingerprint: int = 0
    without_subscriptions: bool = False


class ClientConnection(Struct, frozen=True, kw_only=True):
    """One client as a broker sees it."""

    client_id: str
    address: str
    language: str = "OTHER"
    version: int = 0


class GroupConnections(Struct, frozen=True, kw_only=True):
    """The online members of a consumer group."""

    connections: tuple[ClientConnection, ...] = ()
    consume_from: str = ConsumeFrom.LAST_OFFSET
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    subscriptions: dict[str, Any] = field(default_factory=dict)

"""Bodies of commands: RocketMQ's JSON on one side, our values on the other.

Every pair here is `encode_x(value) -> bytes` and `decode_x(body) -> value`; a body that does not fit raises
`RemoteProtocolError`. Batches of messages live in `batch.py`, the registration of brokers in `registration.py`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from kappamq.errors import RemoteProtocolError
from kappamq.model import fastjson
from kappamq.model.config import DataVersion, GroupConfig, TopicConfig
from kappamq.model.message import Queue
from kappamq.model.route import BrokerAddresses, TopicQueues, TopicRoute
from kappamq.model.subscription import (
    ClientConnection,
    ConsumeFrom,
    ConsumerMembership,
    ConsumeType,
    GroupConnections,
    Heartbeat,
    MessageModel,
    Subscription,
)

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)


def decode_object(body: bytes) -> dict[Any, Any]:
    """JSON object of a body."""
    value = fastjson.loads(body) if body else None
    if not isinstance(value, dict):
        raise RemoteProtocolError("body is not a JSON object")
    return value


def encode_object(value: Any) -> bytes:
    """Body of a JSON value in RocketMQ's dialect, without blanks."""
    return fastjson.dumps(value).encode()


def convert(value: Any, kind: type[Value]) -> Value:
    """Typed value of parsed JSON, forgiving about numbers that arrive as text."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as fault:
        raise RemoteProtocolError(f"body is not a valid {kind.__name__}: {str(fault)[:200]}") from None


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return encode_object(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": consumer.consume_from,
                    "consumeType": consumer.consume_type,
                    "groupName": consumer.group,
                    "messageModel": consumer.message_model,
                    "subscriptionDataSet": list(consumer.subscriptions),
                    "unitMode": consumer.unit_mode,
                }
                for consumer in heartbeat.consumers
            ],
            "heartbeatFingerprint": heartbeat.fingerprint,
            "producerDataSet": [{"groupName": group} for group in heartbeat.producer_groups],
            "withoutSub": heartbeat.without_subscriptions,
        }
    )


def decode_heartbeat(body: bytes) -> Heartbeat:
    value = decode_object(body)
    consumers = tuple(_membership(consumer) for consumer in _objects(value, "consumerDataSet"))
    producers = tuple(str(producer.get("groupName", "")) for producer in _objects(value, "producerDataSet"))
    return Heartbeat(
        client_id=str(value.get("clientID") or ""),
        consumers=consumers,
        producer_groups=tuple(group for group in producers if group),
        fingerprint=int(value.get("heartbeatFingerprint") or 0),
        without_subscriptions=bool(value.get("withoutSub")),
    )


def _membership(value: Mapping[str, Any]) -> ConsumerMembership:
    return ConsumerMembership(
        group=str(value.get("groupName") or ""),
        consume_type=_choice(ConsumeType, value.get("consumeType"), ConsumeType.CONSUME_PASSIVELY),
        message_model=_choice(MessageModel, value.get("messageModel"), MessageModel.CLUSTERING),
        consume_from=_choice(ConsumeFrom, value.get("consumeFromWhere"), ConsumeFrom.LAST_OFFSET),
        subscriptions=tuple(decode_subscription(item) for item in _objects(value, "subscriptionDataSet")),
        unit_mode=bool(value.get("unitMode")),
    )


def decode_subscription(value: Mapping[str, Any]) -> Subscription:
    """Subscription of its JSON object; clients of other languages leave out fields or send numbers as text."""
    present = {name: member for name, member in value.items() if member is not None}
    return convert(present, Subscription)


def _choice(kind: type[Choice], value: Any, default: Choice) -> Choice:
    """Member of an enumeration given by its name or, from C++ clients, by its position."""
    members = list(kind)
    if isinstance(value, int) and 0 <= value < len(members):
        return members[value]
    try:
        return kind(value)
    except ValueError:
        return default


def _objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    items = value.get(name) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RemoteProtocolError(f"field {name} of the body is not a list of objects")
    return items


def encode_queue_set(*, group: str, client_id: str, queues: Iterable[Queue]) -> bytes:
    """Body of a lock or unlock request."""
    return encode_object(
        {"clientId": client_id, "consumerGroup": group, "mqSet": [fastjson.queue_value(queue) for queue in queues]}
    )


def decode_queue_set(body: bytes) -> tuple[str, str, list[Queue]]:
    """Group, client id and queues of a lock or unlock request."""
    value = decode_object(body)
    return (
        str(value.get("consumerGroup") or ""),
        str(value.get("clientId") or ""),
        [fastjson.queue_of(item) for item in value.get("mqSet") or []],
    )


def encode_locked_queues(queues: Iterable[Queue]) -> bytes:
    return encode_object({"lockOKMQSet": [fastjson.queue_value(queue) for queue in queues]})


def decode_locked_queues(body: bytes) -> set[Queue]:
    return {fastjson.queue_of(item) for item in decode_object(body).get("lockOKMQSet") or []}


def encode_consumer_ids(ids: Iterable[str]) -> bytes:
    return encode_object({"consumerIdList": list(ids)})


def decode_consumer_ids(body: bytes) -> list[str]:
    return [str(item) for item in decode_object(body).get("consumerIdList") or []]


def encode_group_connections(group: GroupConnections) -> bytes:
    return encode_object(
        {
            "connectionSet": [_connection_value(connection) for connection in group.connections],
            "consumeFromWhere": group.consume_from,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": group.subscriptions,
        }
    )


def decode_group_connections(body: bytes) -> GroupConnections:
    value = decode_object(body)
    return GroupConnections(
        connections=tuple(_connection(item) for item in _objects(value, "connectionSet")),
        consume_from=str(value.get("consumeFromWhere") or ConsumeFrom.LAST_OFFSET),
        consume_type=str(value.get("consumeType") or ConsumeType.CONSUME_PASSIVELY),
        message_model=str(value.get("messageModel") or MessageModel.CLUSTERING),
        subscriptions=value.get("subscriptionTable") or {},
    )


def encode_connections(connections: Iterable[ClientConnection]) -> bytes:
    return encode_object({"connectionSet": [_connection_value(connection) for connection in connections]})


def decode_connections(body: bytes) -> tuple[ClientConnection, ...]:
    return tuple(_connection(item) for item in _objects(decode_object(body), "connectionSet"))


def _connection_value(connection: ClientConnection) -> dict[str, Any]:
    return {
        "clientAddr": connection.address,
        "clientId": connection.client_id,
        "language": connection.language,
        "version": connection.version,
    }


def _connection(value: Mapping[str, Any]) -> ClientConnection:
    return ClientConnection(
        client_id=str(value.get("clientId") or ""),
        address=str(value.get("clientAddr") or ""),
        language=str(value.get("language") or "OTHER"),
        version=int(value.get("version") or 0),
    )


# ── Routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_route(route: TopicRoute, *, standard: bool) -> bytes:
    """Route body. Without `standard`, broker ids are unquoted keys: old clients split that text by hand."""
    value: dict[str, Any] = {
        "brokerDatas": [broker_value(broker) for broker in route.brokers],
        "filterServerTable": {},
        "orderTopicConf": route.order_conf,
        "queueDatas": [
            {
                "brokerName": queues.broker,
                "perm": queues.permission,
                "readQueueNums": queues.read_queues,
                "topicSysFlag": queues.flags,
                "writeQueueNums": queues.write_queues,
            }
            for queues in route.queues
        ],
    }
    return fastjson.dumps(value, standard=standard).encode()


def decode_route(body: bytes) -> TopicRoute:
    value = decode_object(body)
    return TopicRoute(
        brokers=tuple(broker_of(item) for item in _objects(value, "brokerDatas")),
        queues=tuple(
            TopicQueues(
                broker=str(item.get("brokerName") or ""),
                read_queues=int(item.get("readQueueNums") or 0),
                write_queues=int(item.get("writeQueueNums") or 0),
                permission=int(item.get("perm") or 0),
                flags=int(item.get("topicSysFlag") or item.get("topicSynFlag") or 0),
            )
            for item in _objects(value, "queueDatas")
        ),
        order_conf=value.get("orderTopicConf") or None,
    )


def broker_value(broker: BrokerAddresses) -> dict[str, Any]:
    """`BrokerData` object."""
    return {
        "brokerAddrs": dict(sorted(broker.addresses.items())),
        "brokerName": broker.name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }


def broker_of(value: Mapping[str, Any]) -> BrokerAddresses:
    addresses = value.get("brokerAddrs") or {}
    return BrokerAddresses(
        name=str(value.get("brokerName") or ""),
        cluster=str(value.get("cluster") or ""),
        addresses={int(broker_id): str(address) for broker_id, address in addresses.items()},
    )


def encode_cluster(brokers: Iterable[BrokerAddresses]) -> bytes:
    """Body of the answer to "which brokers are there"."""
    by_name: dict[str, Any] = {}
    clusters: dict[str, list[str]] = {}
    for broker in brokers:
        by_name[broker.name] = broker_value(broker)
        clusters.setdefault(broker.cluster, []).append(broker.name)
    return encode_object({"brokerAddrTable": by_name, "clusterAddrTable": clusters})


def decode_cluster(body: bytes) -> tuple[BrokerAddresses, ...]:
    table = decode_object(body).get("brokerAddrTable") or {}
    return tuple(broker_of(item) for item in table.values())


def encode_topic_list(topics: Iterable[str], *, broker_address: str | None = None) -> bytes:
    return encode_object({"brokerAddr": broker_address, "topicList": list(topics)})


def decode_topic_list(body: bytes) -> list[str]:
    return [str(topic) for topic in decode_object(body).get("topicList") or []]


def encode_table(table: Mapping[Any, Any]) -> bytes:
    """Body of a plain table: KV lists, runtime figures."""
    return encode_object({"table": table})


def decode_table(body: bytes) -> dict[str, str]:
    return {str(key): str(value) for key, value in (decode_object(body).get("table") or {}).items()}


# ── Topics, groups, offsets ─────────────────────────────────────────────────────────────────────────────────────────


def encode_topic_configs(topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
    return encode_object({"dataVersion": version, "topicConfigTable": {topic.topic_name: topic for topic in topics}})


def decode_topic_configs(body: bytes) -> tuple[dict[str, TopicConfig], DataVersion]:
    value = decode_object(body)
    table = value.get("topicConfigTable") or {}
    return (
        {str(name): convert(config, TopicConfig) for name, config in table.items()},
        convert(value.get("dataVersion") or {}, DataVersion),
    )


def encode_group_configs(groups: Iterable[GroupConfig], version: DataVersion) -> bytes:
    return encode_object(
        {
            "dataVersion": version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {group.group_name: group for group in groups},
        }
    )


def decode_group_configs(body: bytes) -> tuple[dict[str, GroupConfig], DataVersion]:
    value = decode_object(body)
    table = value.get("subscriptionGroupTable") or {}
    return (
        {str(name): decode_group_config(config) for name, config in table.items()},
        convert(value.get("dataVersion") or {}, DataVersion),
    )


def decode_group_config(value: Mapping[str, Any]) -> GroupConfig:
    return convert({name: member for name, member in value.items() if member is not None}, GroupConfig)


def encode_offset_table(offsets: Mapping[Queue, int]) -> bytes:
    """Queues and an offset for each, with whole queues as keys."""
    return encode_object({"offsetTable": offsets})


def decode_offset_table(body: bytes) -> dict[Queue, int]:
    """Reads the object-key layout and the list layout of C++ clients."""
    table = decode_object(body).get("offsetTable") or {}
    if isinstance(table, list):
        return {fastjson.queue_of(item): int(item.get("offset", 0)) for item in table}
    return {fastjson.queue_of(key): int(offset) for key, offset in table.items()}


def decode_queue_table(body: bytes, name: str = "offsetTable") -> dict[Queue, dict[str, Any]]:
    """Queues and an object of figures for each (topic and consume statistics)."""
    table = decode_object(body).get(name) or {}
    return {fastjson.queue_of(key): value for key, value in table.items()}

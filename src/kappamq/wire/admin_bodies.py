"""Bodies of a broker's answers to administrators: figures of queues, groups, clients and the broker itself.

Field names and their order are RocketMQ's; who reads them uses the decoders of `bodies.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from kappamq.errors import RemoteProtocolError
from kappamq.model import fastjson
from kappamq.model.config import DataVersion, GroupConfig, TopicConfig
from kappamq.model.message import Queue
from kappamq.model.subscription import Subscription
from kappamq.wire.bodies import convert, decode_group_config, decode_object, encode_object

LIST_MAX = 10_000
"""Most topics or groups that one request may create."""


# ── Topics and groups ───────────────────────────────────────────────────────────────────────────────────────────────


def encode_topic_table(topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
    """All topics of a broker, as slaves and tools take them."""
    return encode_object(
        {
            "dataVersion": version,
            "mappingDataVersion": DataVersion(),
            "topicConfigTable": topics,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
    )


def decode_topic_list_to_create(body: bytes) -> list[TopicConfig]:
    return [convert(item, TopicConfig) for item in _list_of(body, "topicConfigList")]


def decode_group_list_to_create(body: bytes) -> list[GroupConfig]:
    return [decode_group_config(item) for item in _list_of(body, "groupConfigList")]


def _list_of(body: bytes, name: str) -> list[dict[str, Any]]:
    items = decode_object(body).get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RemoteProtocolError(f"field {name} of the body is not a list of objects")
    if len(items) > LIST_MAX:
        raise RemoteProtocolError(f"{len(items)} items in one request are too many: send at most {LIST_MAX}")
    return items


# ── Figures of queues and groups ────────────────────────────────────────────────────────────────────────────────────


class QueueBounds(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one queue holds."""

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class QueueProgress(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a group is in one queue."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int


class ConsumeStats(Struct, frozen=True, kw_only=True):
    """How far a group is in some queues."""

    progress: dict[Queue, QueueProgress]
    tps: float = 0.0

    @property
    def behind(self) -> int:
        return sum(queue.broker_offset - queue.consumer_offset for queue in self.progress.values())

    @property
    def inflight(self) -> int:
        return sum(queue.pull_offset - queue.consumer_offset for queue in self.progress.values())


class QueueTimes(Struct, frozen=True, kw_only=True, rename="camel"):
    """Store times of the oldest, the newest and the last consumed message of a queue."""

    consume_time_stamp: int
    delay_time: int
    max_time_stamp: int
    min_time_stamp: int


def encode_topic_stats(bounds: Mapping[Queue, QueueBounds], *, put_tps: float) -> bytes:
    return encode_object({"offsetTable": bounds, "topicPutTps": put_tps})


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    return encode_object(_consume_stats_value(stats))


def _consume_stats_value(stats: ConsumeStats) -> dict[str, Any]:
    return {"consumeTps": stats.tps, "offsetTable": stats.progress}


def encode_broker_consume_stats(groups: Mapping[str, Sequence[ConsumeStats]], *, broker_address: str) -> bytes:
    """Progress of every group, one entry for each of its topics."""
    every = [stats for topics in groups.values() for stats in topics]
    return encode_object(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": [
                {group: [_consume_stats_value(stats) for stats in topics]} for group, topics in groups.items()
            ],
            "totalDiff": sum(stats.behind for stats in every),
            "totalInflightDiff": sum(stats.inflight for stats in every),
        }
    )


def encode_consume_times(times: Mapping[Queue, QueueTimes]) -> bytes:
    return encode_object(
        {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consume_time_stamp,
                    "delayTime": span.delay_time,
                    "maxTimeStamp": span.max_time_stamp,
                    "messageQueue": queue,
                    "minTimeStamp": span.min_time_stamp,
                }
                for queue, span in times.items()
            ]
        }
    )


def encode_group_names(groups: Iterable[str]) -> bytes:
    return encode_object({"groupList": list(groups)})


def encode_subscription(group: str, topic: str, subscription: Subscription | None) -> bytes:
    return encode_object({"group": group, "subscriptionData": subscription, "topic": topic})


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    return encode_object({"correctionOffsets": offsets})


class EntryView(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of a consume queue and whether a group's filter would take it by its tag."""

    eval: bool
    physic_offset: int
    physic_size: int
    tags_code: int


def encode_queue_entries(
    entries: Iterable[EntryView],
    *,
    bounds: tuple[int, int],
    subscription: Subscription | None,
    filter_text: str | None,
) -> bytes:
    """Entries of a queue that goes from the first to before the second of `bounds`."""
    return encode_object(
        {
            "filterData": filter_text,
            "maxQueueIndex": bounds[1],
            "minQueueIndex": bounds[0],
            "queueData": list(entries),
            "subscriptionData": subscription,
        }
    )


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ProducerView(Struct, frozen=True, kw_only=True):
    """One online producer."""

    client_id: str
    language: str
    last_seen_ms: int
    address: str
    version: int


def encode_producers(groups: Mapping[str, Iterable[ProducerView]]) -> bytes:
    return encode_object(
        {
            "data": {
                group: [
                    {
                        "clientId": producer.client_id,
                        "language": producer.language,
                        "lastUpdateTimestamp": producer.last_seen_ms,
                        "remoteIP": f"/{producer.address}",  # RocketMQ: an address without a name begins so.
                        "version": producer.version,
                    }
                    for producer in producers
                ]
                for group, producers in groups.items()
            }
        }
    )


def encode_consumer_status(clients: Mapping[str, Mapping[Queue, int]]) -> bytes:
    """Offsets that each client of a group works at."""
    return encode_object({"consumerTable": clients, "messageQueueTable": {}})


def decode_client_status(body: bytes) -> dict[Queue, int]:
    """Offsets that one client says it works at."""
    table = decode_object(body).get("messageQueueTable") or {}
    return {fastjson.queue_of(key): int(offset) for key, offset in table.items()}


def encode_offset_list(offsets: Mapping[Queue, int]) -> bytes:
    """Offsets in the layout that C++ clients read."""
    return encode_object(
        {"offsetTable": [fastjson.queue_value(queue) | {"offset": offsets[queue]} for queue in offsets]}
    )


# ── The broker ──────────────────────────────────────────────────────────────────────────────────────────────────────


class WindowFigures(Struct, frozen=True, kw_only=True):
    """One counter over one span of time."""

    avgpt: float
    sum: int
    tps: float


def encode_counter(*, day: WindowFigures, hour: WindowFigures, minute: WindowFigures) -> bytes:
    return encode_object({"statsDay": day, "statsHour": hour, "statsMinute": minute})


def encode_replication_status(*, log_end: int) -> bytes:
    """Replication of a master that nobody follows."""
    return encode_object(
        {
            "haClientRuntimeInfo": {
                "activated": False,
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "maxOffset": 0,
                "transferredByteInSecond": 0,
            },
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": log_end,
        }
    )


def encode_property_text(values: Mapping[str, str]) -> bytes:
    """`key=value` lines."""
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()

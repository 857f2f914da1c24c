"""Header fields of requests and replies: one declaration each, used to encode, to decode and to document.

On the wire every field is text. `decode_fields` turns text into typed values, `encode_fields` back.
"""

from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from kappamq.errors import RemoteProtocolError
from kappamq.model.config import I32, I64
from kappamq.model.names import TEMPLATE_TOPIC
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import ONE_WAY_FLAG, Command


class Fields(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all header declarations; carries no fields of its own."""


FieldsType = TypeVar("FieldsType", bound=Fields)


def decode_fields(fields: dict[str, str], kind: type[FieldsType]) -> FieldsType:
    """Typed fields of a command. Raises `RemoteProtocolError` naming the field that is missing or malformed."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as fault:
        raise RemoteProtocolError(f"header of {kind.__name__} is not valid: {str(fault)[:200]}") from None


def encode_fields(header: Fields) -> dict[str, str]:
    """Text of the fields that have a value."""
    values: dict[str, Any] = msgspec.to_builtins(header)
    return {
        name: value
        if isinstance(value, str)
        else ("true" if value else "false")
        if isinstance(value, bool)
        else str(value)
        for name, value in values.items()
        if value is not None
    }


class Request(Fields, frozen=True, kw_only=True):
    """A request that has one request code."""

    code: ClassVar[RequestCode]

    def command(self, *, body: bytes = b"", one_way: bool = False) -> Command:
        """Command to send; the connection fills in the request id."""
        return Command(code=self.code, fields=encode_fields(self), body=body, flag=ONE_WAY_FLAG if one_way else 0)


# ── Sending ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class SendRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename=dict(
        zip(
            (
                "producer_group",
                "topic",
                "default_topic",
                "default_topic_queues",
                "queue_id",
                "flags",
                "born_at_ms",
                "flag",
                "properties",
                "retry_count",
                "unit_mode",
                "retry_count_max",
                "batch",
                "broker",
            ),
            "abcdefghijklmn",
        )
    ),
):
    """Append one message, or a batch, to a queue; single-letter names on the wire."""

    code = RequestCode.SEND_MESSAGE_V2

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queues: I32 = 4
    queue_id: I32
    flags: I32 = 0
    born_at_ms: I64
    flag: I32 = 0
    properties: str = ""
    retry_count: I32 = 0
    unit_mode: bool = False
    retry_count_max: I32 | None = None
    batch: bool = False
    broker: str | None = None


class SendRequestV1(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "default_topic_queues": "defaultTopicQueueNums",
        "flags": "sysFlag",
        "born_at_ms": "bornTimestamp",
        "retry_count": "reconsumeTimes",
        "retry_count_max": "maxReconsumeTimes",
        "broker": "bname",
        "producer_group": "producerGroup",
        "default_topic": "defaultTopic",
        "queue_id": "queueId",
        "unit_mode": "unitMode",
    },
):
    """The same with long names (Go, and Java with short names switched off)."""

    code = RequestCode.SEND_MESSAGE

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queues: I32 = 4
    queue_id: I32
    flags: I32 = 0
    born_at_ms: I64
    flag: I32 = 0
    properties: str = ""
    retry_count: I32 = 0
    unit_mode: bool = False
    retry_count_max: I32 | None = None
    batch: bool = False
    broker: str | None = None


class SendReply(
    Fields,
    frozen=True,
    kw_only=True,
    rename={
        "offset_id": "msgId",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "transaction_id": "transactionId",
        "region": "MSG_REGION",
        "trace_on": "TRACE_ON",
        "recall_handle": "recallHandle",
    },
):
    offset_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    region: str | None = None
    trace_on: str | None = None
    recall_handle: str | None = None


def decode_send_reply(fields: dict[str, str]) -> SendReply:
    """`decode_fields` for the reply that a client gets most often, in a third of the time."""
    get = fields.get
    try:
        return SendReply(
            offset_id=fields["msgId"],
            queue_id=int(fields["queueId"]),
            queue_offset=int(fields["queueOffset"]),
            transaction_id=get("transactionId"),
            region=get("MSG_REGION"),
            trace_on=get("TRACE_ON"),
            recall_handle=get("recallHandle"),
        )
    except (KeyError, ValueError):
        return decode_fields(fields, SendReply)  # It says what is wrong.


class SendBackRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "log_offset": "offset",
        "delay_level": "delayLevel",
        "origin_message_id": "originMsgId",
        "origin_topic": "originTopic",
        "unit_mode": "unitMode",
        "retry_count_max": "maxReconsumeTimes",
        "broker": "bname",
    },
):
    """Return a message that could not be consumed."""

    code = RequestCode.CONSUMER_SEND_MSG_BACK

    log_offset: I64
    group: str
    delay_level: I32 = 0
    origin_message_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    retry_count_max: I32 | None = None
    broker: str | None = None
    cause: str | None = None
    """What the consumer says went wrong; RocketMQ's brokers ignore it."""


class EndTransactionRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "producer_group": "producerGroup",
        "half_queue_offset": "tranStateTableOffset",
        "half_log_offset": "commitLogOffset",
        "decision": "commitOrRollback",
        "from_check": "fromTransactionCheck",
        "message_id": "msgId",
        "transaction_id": "transactionId",
        "broker": "bname",
    },
):
    """Decide a transaction: 8 commit, 12 roll back, 0 unknown."""

    code = RequestCode.END_TRANSACTION

    topic: str | None = None
    producer_group: str
    half_queue_offset: I64
    half_log_offset: I64
    decision: I32
    from_check: bool = False
    message_id: str
    transaction_id: str | None = None
    broker: str | None = None


class CheckTransactionRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "half_queue_offset": "tranStateTableOffset",
        "half_log_offset": "commitLogOffset",
        "message_id": "msgId",
        "transaction_id": "transactionId",
        "offset_id": "offsetMsgId",
        "broker": "bname",
    },
):
    """Broker asks a producer how a transaction ended; the body is the half message."""

    code = RequestCode.CHECK_TRANSACTION_STATE

    half_queue_offset: I64
    half_log_offset: I64
    message_id: str | None = None
    transaction_id: str | None = None
    offset_id: str | None = None
    topic: str | None = None
    broker: str | None = None


# ── Pulling and looking up ──────────────────────────────────────────────────────────────────────────────────────────


class PullRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "start": "queueOffset",
        "count_max": "maxMsgNums",
        "flags": "sysFlag",
        "committed_offset": "commitOffset",
        "suspend_ms": "suspendTimeoutMillis",
        "subscription_version": "subVersion",
        "expression_type": "expressionType",
        "bytes_max": "maxMsgBytes",
        "broker": "bname",
    },
):
    """Read the next messages of one queue, waiting for them when `flags` allow it."""

    code = RequestCode.PULL_MESSAGE

    COMMIT_OFFSET: ClassVar = 0x1
    SUSPEND: ClassVar = 0x2
    SUBSCRIPTION: ClassVar = 0x4
    CLASS_FILTER: ClassVar = 0x8
    LITE: ClassVar = 0x10

    group: str
    topic: str
    queue_id: I32
    start: I64
    count_max: I32
    flags: I32 = 0
    committed_offset: I64 = 0
    suspend_ms: I64 = 0
    subscription: str | None = None
    subscription_version: I64 = 0
    expression_type: str | None = None
    bytes_max: I32 | None = None
    broker: str | None = None


class PullReply(
    Fields,
    frozen=True,
    kw_only=True,
    rename={
        "suggested_broker_id": "suggestWhichBrokerId",
        "next_offset": "nextBeginOffset",
        "min_offset": "minOffset",
        "max_offset": "maxOffset",
        "topic_flags": "topicSysFlag",
        "group_flags": "groupSysFlag",
        "forbidden_type": "forbiddenType",
    },
):
    suggested_broker_id: I64 = 0
    next_offset: I64
    min_offset: I64
    max_offset: I64
    topic_flags: I32 | None = None
    group_flags: I32 | None = None
    forbidden_type: I32 | None = None


class QueryMessageRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "count_max": "maxNum",
        "begin_ms": "beginTimestamp",
        "end_ms": "endTimestamp",
        "by_unique_id": "_UNIQUE_KEY_QUERY",
    },
):
    """Messages of a topic that carry a key."""

    code = RequestCode.QUERY_MESSAGE

    topic: str
    key: str
    count_max: I32
    begin_ms: I64
    end_ms: I64
    by_unique_id: bool = False


class QueryMessageReply(
    Fields,
    frozen=True,
    kw_only=True,
    rename={
        "indexed_until_ms": "indexLastUpdateTimestamp",
        "indexed_until": "indexLastUpdatePhyoffset",
    },
):
    indexed_until_ms: I64
    indexed_until: I64


class ViewMessageRequest(Request, frozen=True, kw_only=True, rename={"log_offset": "offset"}):
    """The message at a log offset."""

    code = RequestCode.VIEW_MESSAGE_BY_ID

    log_offset: I64
    topic: str | None = None


class QueryOffsetRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "zero_if_missing": "setZeroIfNotFound",
    },
):
    """Committed offset of a group."""

    code = RequestCode.QUERY_CONSUMER_OFFSET

    group: str
    topic: str
    queue_id: I32
    zero_if_missing: bool | None = None


class UpdateOffsetRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "committed_offset": "commitOffset",
    },
):
    """Commit the progress of a group."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET

    group: str
    topic: str
    queue_id: I32
    committed_offset: I64


class MaxOffsetRequest(Request, frozen=True, kw_only=True):
    """Offset that the next message of a queue will get."""

    code = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: I32
    committed: bool | None = None


class MinOffsetRequest(Request, frozen=True, kw_only=True):
    """Offset of the oldest message that a queue still has."""

    code = RequestCode.GET_MIN_OFFSET

    topic: str
    queue_id: I32


class OffsetReply(Fields, frozen=True, kw_only=True):
    """Answer to every question about one offset."""

    offset: I64


class SearchOffsetRequest(Request, frozen=True, kw_only=True):
    """Offset of the first message stored at or after a time (`UPPER`: the last one at or before it)."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class EarliestTimeRequest(Request, frozen=True, kw_only=True):
    """Store time of the oldest message of a queue."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queue_id: I32


class TimestampReply(Fields, frozen=True, kw_only=True):
    timestamp: I64


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class HeartbeatRequest(Request, frozen=True, kw_only=True):
    """A client tells a broker of its groups; they are in the body."""

    code = RequestCode.HEART_BEAT


class UnregisterClientRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "client_id": "clientID",
        "producer_group": "producerGroup",
        "consumer_group": "consumerGroup",
    },
):
    code = RequestCode.UNREGISTER_CLIENT

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListRequest(Request, frozen=True, kw_only=True):
    """Ids of the clients that consume in a group."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


class ConsumerIdsChanged(Request, frozen=True, kw_only=True):
    """Broker tells the members of a group to balance again."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


class LockQueuesRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.LOCK_BATCH_MQ


class UnlockQueuesRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.UNLOCK_BATCH_MQ


class CheckClientRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.CHECK_CLIENT_CONFIG


class ResetClientOffsetRequest(Request, frozen=True, kw_only=True):
    """Broker moves a consumer to other offsets; they are in the body."""

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    topic: str
    group: str
    timestamp: I64
    is_force: bool = True


class ClientStatusRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class PushReplyRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "producer_group": "producerGroup",
        "default_topic": "defaultTopic",
        "default_topic_queues": "defaultTopicQueueNums",
        "queue_id": "queueId",
        "flags": "sysFlag",
        "born_at_ms": "bornTimestamp",
        "retry_count": "reconsumeTimes",
        "unit_mode": "unitMode",
        "born_host": "bornHost",
        "store_host": "storeHost",
        "stored_at_ms": "storeTimestamp",
    },
):
    """Broker hands the answer of a request-reply exchange to the client that waits for it."""

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queues: I32 = 4
    queue_id: I32
    flags: I32 = 0
    born_at_ms: I64
    flag: I32 = 0
    properties: str = ""
    retry_count: I32 = 0
    unit_mode: bool = False
    born_host: str = ""
    store_host: str = ""
    stored_at_ms: I64 = 0


# ── Topics and groups ───────────────────────────────────────────────────────────────────────────────────────────────


class CreateTopicRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    default_topic: str = TEMPLATE_TOPIC
    read_queue_nums: I32 = 8
    write_queue_nums: I32 = 8
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None


class DeleteTopicRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class TopicConfigRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_TOPIC_CONFIG

    topic: str


class TopicStatsRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


class GroupConfigRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


class DeleteGroupRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class ConsumeStatsRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ConsumerConnectionsRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


class ProducerConnectionsRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


class TopicConsumersRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


class TopicsOfGroupRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


class SubscriptionRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str


class ConsumeTimeSpanRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str
    group: str


class CorrectionOffsetRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.QUERY_CORRECTION_OFFSET

    filter_groups: str | None = None
    compare_group: str
    topic: str


class QueryQueueRequest(Request, frozen=True, kw_only=True):
    """Entries of a consume queue."""

    code = RequestCode.QUERY_CONSUME_QUEUE

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class BrokerStatsRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.VIEW_BROKER_STATS_DATA

    stats_name: str
    stats_key: str


class ResetOffsetRequest(Request, frozen=True, kw_only=True):
    """Move a group to a time (-1: the end) or an offset."""

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    topic: str
    group: str
    timestamp: I64 = -1
    is_force: bool = True
    queue_id: I32 = -1
    offset: I64 | None = None


class ConsumerStatusRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    topic: str
    group: str
    client_addr: str | None = None


class CloneOffsetRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.CLONE_GROUP_OFFSET

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ResumeCheckRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.RESUME_CHECK_HALF_MESSAGE

    msg_id: str | None = None
    topic: str | None = None


class RecallRequest(Request, frozen=True, kw_only=True):
    """Take back a message whose delivery time has not come."""

    code = RequestCode.RECALL_MESSAGE

    producer_group: str
    topic: str
    recall_handle: str


# ── Name server ─────────────────────────────────────────────────────────────────────────────────────────────────────


class RouteRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "broker": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "replication_address": "haServerAddr",
        "broker_id": "brokerId",
        "body_crc": "bodyCrc32",
        "timeout_ms": "heartbeatTimeoutMillis",
        "acting_master": "enableActingMaster",
    },
):
    code = RequestCode.REGISTER_BROKER

    broker: str
    address: str
    cluster: str
    replication_address: str = ""
    broker_id: I64
    compressed: bool = False
    body_crc: I32 = 0
    timeout_ms: I64 | None = None
    acting_master: bool | None = None


class RegisterBrokerReply(
    Fields,
    frozen=True,
    kw_only=True,
    rename={
        "replication_address": "haServerAddr",
        "master_address": "masterAddr",
    },
):
    replication_address: str | None = None
    master_address: str | None = None


class UnregisterBrokerRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "broker": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "broker_id": "brokerId",
    },
):
    code = RequestCode.UNREGISTER_BROKER

    broker: str
    address: str
    cluster: str
    broker_id: I64


class DataVersionRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "broker": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "broker_id": "brokerId",
    },
):
    code = RequestCode.QUERY_DATA_VERSION

    broker: str
    address: str
    cluster: str
    broker_id: I64 = 0


class DataVersionReply(Fields, frozen=True, kw_only=True):
    changed: bool


class BrokerHeartbeatRequest(
    Request,
    frozen=True,
    kw_only=True,
    rename={
        "broker": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
    },
):
    code = RequestCode.BROKER_HEARTBEAT

    broker: str
    address: str
    cluster: str


class BrokerMembersRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_BROKER_MEMBER_GROUP

    cluster_name: str
    broker_name: str


class ClusterRequest(Request, frozen=True, kw_only=True):
    """All brokers of all clusters."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO


class TopicListRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


class TopicsOfClusterRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


class DeleteTopicRouteRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str


class PutKvRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


class GetKvRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


class GetKvReply(Fields, frozen=True, kw_only=True):
    value: str | None = None


class DeleteKvRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


class ListKvRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str


class WipeWriteRequest(Request, frozen=True, kw_only=True):
    """Take the write permission of all topics of a broker."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str


class WipeWriteReply(Fields, frozen=True, kw_only=True):
    wipe_topic_count: I32


class AddWriteRequest(Request, frozen=True, kw_only=True):
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER

    broker_name: str


class AddWriteReply(Fields, frozen=True, kw_only=True):
    add_topic_count: I32

"""Message properties: their text form, their reserved names, the tag code derived from them.

name 0x01 value 0x02 name 0x01 value 0x02 …      the last 0x02 may be missing
"""

from collections.abc import Mapping
from typing import Final

from kappamq.kernel import decode_properties, java_hash, java_hash_extend

__all__ = [
    "PROPERTIES_BYTES_MAX",
    "RESERVED",
    "Name",
    "decode_properties",
    "encode_properties",
    "java_hash",
    "java_hash_extend",
    "property_of",
    "tags_code",
]

PROPERTIES_BYTES_MAX: Final = 32767


class Name:
    """Property names with a meaning in the protocol."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    TRANSACTION: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    RETRY_COUNT: Final = "RECONSUME_TIME"
    RETRY_COUNT_MAX: Final = "MAX_RECONSUME_TIMES"
    REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    UNIQUE_ID: Final = "UNIQ_KEY"
    CONSUME_START: Final = "CONSUME_START_TIME"
    CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_ID: Final = "__transactionId__"
    TRANSACTION_CHECKS: Final = "TRANSACTION_CHECK_TIMES"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_DELETE_ID: Final = "TIMER_DEL_UNIQKEY"
    POP_CHECKPOINT: Final = "POP_CK"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    PRIORITY: Final = "_SYS_MSG_PRIORITY_"
    DEAD_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DEAD_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
    RECORD_CRC: Final = "__CRC32#"
    CAUSE: Final = "KAPPA_CAUSE"
    """Why a message was given up, in the consumer's words; RocketMQ has nothing like it."""


RESERVED: Final = frozenset(
    value for attribute, value in vars(Name).items() if not attribute.startswith("_") and isinstance(value, str)
) | {
    "BUYER_ID",
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INNER_NUM",
    "INNER_BASE",
    "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID",
    "REDIRECT",
    "TRACE_CONTEXT",
    "__BORNHOST",
    "BORN_TIMESTAMP",
}
"""Names a user property may not take."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Text form of `properties`, with a separator after the last one."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def property_of(text: str, name: str) -> str | None:
    """One property without decoding the others; `None` when absent or empty."""
    mark = name + "\x01"
    if text.startswith(mark) and text.find("\x02" + mark) < 0:
        start = len(mark)
    else:
        found = text.rfind("\x02" + mark)
        if found < 0:
            return None
        start = found + len(mark) + 1
    end = text.find("\x02", start)
    return (text[start:end] if end >= 0 else text[start:]) or None


def tags_code(tags: str | None) -> int:
    """What a consume queue keeps of the tag: its Java hash, 0 for none."""
    return java_hash(tags) if tags else 0

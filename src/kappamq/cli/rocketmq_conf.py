"""What the keys of a RocketMQ `broker.conf` mean to our broker; keys that are not here are ignored, and said so."""

from collections.abc import Callable, Mapping
from typing import Final

from kappamq.settings import PropertyRule


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _ratio(text: str) -> float:
    """RocketMQ: percentages."""
    return float(text) / 100


def _seconds(text: str) -> float:
    """RocketMQ: milliseconds."""
    return int(text) / 1000


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.replace(";", ",").split(",") if word.strip())


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";") if word.strip())


def _one_of(table: Mapping[str, str]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in table:
            raise ValueError(f"write one of {', '.join(table)}")
        return table[text]

    return convert


BROKER_KEYS: Final[Mapping[str, PropertyRule]] = {
    "brokerName": PropertyRule("name"),
    "brokerClusterName": PropertyRule("cluster"),
    "brokerId": PropertyRule("broker_id", int),
    "bindAddress": PropertyRule("listen_host"),
    "listenPort": PropertyRule("listen_port", int),
    "brokerIP1": PropertyRule("advertised_host"),
    "namesrvAddr": PropertyRule("nameservers", _addresses),
    "storePathRootDir": PropertyRule("data"),
    "flushDiskType": PropertyRule("flush", _one_of({"SYNC_FLUSH": "durable", "ASYNC_FLUSH": "async"})),
    "brokerPermission": PropertyRule("permission", int),
    "autoCreateTopicEnable": PropertyRule("auto_create_topics", _boolean),
    "autoCreateSubscriptionGroup": PropertyRule("auto_create_groups", _boolean),
    "defaultTopicQueueNums": PropertyRule("template_queues", int),
    "maxMessageSize": PropertyRule("message_bytes_max", int),
    "regionId": PropertyRule("region"),
    "traceOn": PropertyRule("trace_on", _boolean),
    "traceTopicEnable": PropertyRule("trace_topic_enabled", _boolean),
    "msgTraceTopicName": PropertyRule("trace_topic"),
    "enablePropertyFilter": PropertyRule("sql_filter", _boolean),
    "filterSupportRetry": PropertyRule("filter_retries", _boolean),
    "longPollingEnable": PropertyRule("long_polling", _boolean),
    "shortPollingTimeMills": PropertyRule("short_polling_ms", int),
    "maxTransferCountOnMessageInMemory": PropertyRule("pull_count_max", int),
    "maxTransferBytesOnMessageInMemory": PropertyRule("pull_bytes_max", int),
    "maxTransferBytesOnMessageInDisk": PropertyRule("cold_pull_bytes_max", int),
    "notifyConsumerIdsChangedEnable": PropertyRule("notify_members", _boolean),
    "useServerSideResetOffset": PropertyRule("server_side_reset", _boolean),
    "registerNameServerPeriod": PropertyRule("register_seconds", _seconds),
    "flushConsumerOffsetInterval": PropertyRule("save_offsets_seconds", _seconds),
    "messageDelayLevel": PropertyRule("delay_levels"),
    "timerWheelEnable": PropertyRule("timer_enabled", _boolean),
    "timerMaxDelaySec": PropertyRule("timer_max_delay_seconds", int),
    "rejectTransactionMessage": PropertyRule("reject_transactions", _boolean),
    "transactionTimeOut": PropertyRule("transaction_timeout_ms", int),
    "transactionCheckMax": PropertyRule("transaction_check_max", int),
    "transactionCheckInterval": PropertyRule("transaction_check_interval_ms", int),
    "mappedFileSizeCommitLog": PropertyRule("store.segment_bytes", int),
    "mappedFileSizeConsumeQueue": PropertyRule("store.queue_segment_bytes", int),
    "maxHashSlotNum": PropertyRule("store.index_slots", int),
    "maxIndexNum": PropertyRule("store.index_entries", int),
    "messageIndexEnable": PropertyRule("store.is_indexed", _boolean),
    "fileReservedTime": PropertyRule("store.retention_hours", float),
    "deleteWhen": PropertyRule("store.delete_hours", _numbers),
    "diskMaxUsedSpaceRatio": PropertyRule("store.disk_delete_ratio", _ratio),
    "diskSpaceCleanForciblyRatio": PropertyRule("store.disk_force_ratio", _ratio),
    "diskSpaceWarningLevelRatio": PropertyRule("store.disk_full_ratio", _ratio),
}

"""What an operator sees of a running consumer (RocketMQ's ConsumerRunningInfo)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kappamq.client.aio.cluster import Cluster
from kappamq.model.message import Queue
from kappamq.model.subscription import ConsumeType, Subscription
from kappamq.wire.codes import PROTOCOL_VERSION_TEXT

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningQueue:
    """One assigned queue."""

    committed_offset: int
    cached_messages: int = 0
    cached_bytes: int = 0
    cached_from: int = 0
    cached_until: int = 0
    is_locked: bool = False
    is_dropped: bool = False
    last_lock_ms: int = 0
    last_pull_ms: int = 0
    last_consume_ms: int = 0


def running_info(
    cluster: Cluster,
    *,
    consume_type: ConsumeType,
    is_orderly: bool,
    concurrency: int,
    subscriptions: Iterable[Subscription],
    queues: Mapping[Queue, RunningQueue],
    started_at_ms: int = 0,
    settings: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """The JSON value that operators' tools read. Rates are not kept: they read as 0."""
    topics = {queue.topic for queue in queues}
    return {
        "mqPopTable": {},
        "mqTable": {queue: _queue_value(state) for queue, state in sorted(queues.items())},
        "properties": {
            **{name: _text(value) for name, value in (settings or {}).items()},
            "PROP_CLIENT_VERSION": PROTOCOL_VERSION_TEXT,
            "PROP_CONSUMEORDERLY": "true" if is_orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(started_at_ms),
            "PROP_CONSUME_TYPE": str(consume_type),
            "PROP_NAMESERVER_ADDR": ";".join(cluster.name_servers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
        },
        "statusTable": {topic: dict(_NO_RATES) for topic in sorted(topics)},
        "subscriptionSet": list(subscriptions),
        "userConsumerInfo": {},
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_NO_RATES = {
    "consumeFailedMsgs": 0,
    "consumeFailedTPS": 0.0,
    "consumeOKTPS": 0.0,
    "consumeRT": 0.0,
    "pullRT": 0.0,
    "pullTPS": 0.0,
}


def _queue_value(state: RunningQueue) -> dict[str, Any]:
    return {
        "cachedMsgCount": state.cached_messages,
        "cachedMsgMaxOffset": max(0, state.cached_until - 1),
        "cachedMsgMinOffset": state.cached_from,
        "cachedMsgSizeInMiB": state.cached_bytes // _MIB,
        "commitOffset": state.committed_offset,
        "droped": state.is_dropped,
        "lastConsumeTimestamp": state.last_consume_ms,
        "lastLockTimestamp": state.last_lock_ms,
        "lastPullTimestamp": state.last_pull_ms,
        "locked": state.is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }

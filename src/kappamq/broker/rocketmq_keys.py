"""RocketMQ's names of broker settings: what each means here, for its `broker.conf` files and for remote changes.

The one table of them. `settings_from_conf` reads a file; `shown_settings` and `parse_changes` serve the requests that
read and change settings over the network. Paths and secrets have no name there: they are never told nor taken.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from kappamq.broker.settings import BrokerSettings
from kappamq.errors import ConfigError, NotPermitted
from kappamq.settings import PropertyRule, load_properties, parse_properties
from kappamq.store.settings import StoreSettings

CHANGES_BYTES_MAX: Final = 64 * 1024
"""Longest text of changes that is taken."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its field here (`store.` in front for those of the store) and how its text is read and written."""

    field: str
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str
    is_changeable: bool = False
    is_shown: bool = True


def settings_from_conf(path: Path) -> tuple[dict[str, object], list[str]]:
    """Values of a RocketMQ `broker.conf` under the names of `BrokerSettings`, and the keys that have no meaning here.

    The store's values are a mapping under `store`. Raises `ConfigError` for a value that is not valid, and for a
    commit log outside of the root directory: a broker that looked elsewhere for it would seem to have lost it.
    """
    rules = {name: PropertyRule(key.field, key.read) for name, key in KEYS.items()}
    rules[_LOG_PATH] = PropertyRule("log_path", Path)
    values, ignored = load_properties(path, rules)
    _check_log_path(values, path)
    store = values.get("store")
    if isinstance(store, dict):
        _spread_ratios(store)
    return values, ignored


def shown_settings(settings: BrokerSettings, *, port: int) -> dict[str, str]:
    """Current values under RocketMQ's names, sorted; with the constants that its tools look for.

    `port` is the one that the broker listens on.
    """
    shown = {name: _text_of(settings, key) for name, key in KEYS.items() if key.is_shown}
    shown |= CONSTANTS
    shown["brokerRole"] = "ASYNC_MASTER" if settings.broker_id == 0 else "SLAVE"
    shown |= {"brokerIP1": settings.address_host, "listenPort": str(port), "haListenPort": str(port + 1)}
    return dict(sorted(shown.items()))


def parse_changes(text: str) -> dict[str, object]:
    """New values, by field, of properties text that an administrator sent.

    Raises `NotPermitted` for a key that cannot be changed while the broker runs, `ConfigError` for a bad value.
    """
    changes: dict[str, object] = {}
    for name, value in parse_properties(text).items():
        key = KEYS.get(name)
        if key is None or not key.is_changeable:
            raise NotPermitted(
                f"{name} cannot be changed while the broker runs: change it in the settings and restart; "
                f"changeable are {', '.join(sorted(CHANGEABLE))}"
            )
        try:
            changes[key.field] = key.read(value)
        except (ValueError, KeyError) as fault:
            raise ConfigError(f"{name} has the value {value[:80]!r}, which is not valid: {fault}") from None
    return changes


def _text_of(settings: BrokerSettings, key: Key) -> str:
    holder: Any = settings
    *parents, leaf = key.field.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    value = getattr(holder, leaf)
    return "" if value is None else key.write(value)


def _check_log_path(values: dict[str, object], path: Path) -> None:
    log_path = values.pop("log_path", None)
    root = values.get("data")
    if isinstance(log_path, Path) and (not isinstance(root, Path) or log_path != root / "commitlog"):
        raise ConfigError(
            f"{_LOG_PATH} in {path} is {log_path}, which is not commitlog/ in storePathRootDir: "
            "a log elsewhere is not supported, link it there and leave the key out"
        )


def _spread_ratios(store: dict[str, Any]) -> None:
    """RocketMQ: one ratio may be set above the defaults of the next; ours must grow, so the next ones follow."""
    defaults = {field.name: field.default for field in fields(StoreSettings)}
    lowest = 0.0
    for name in ("disk_delete_ratio", "disk_force_ratio", "disk_full_ratio"):
        ratio = max(store.get(name, defaults[name]), lowest)
        if ratio != defaults[name]:
            store[name] = ratio
        lowest = ratio


# ── Texts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("write true or false")
    return word == "true"


def _boolean_text(value: bool) -> str:
    return "true" if value else "false"


def _whole(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("write a whole number") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"use {minimum} to {maximum}")
        return value

    return read


def _seconds(text: str) -> float:
    """RocketMQ counts milliseconds where we count seconds."""
    return _whole(1)(text) / 1000


def _seconds_text(value: float) -> str:
    return str(round(value * 1000))


def _ratio(text: str) -> float:
    return _whole(1, 100)(text) / 100


def _ratio_text(value: float) -> str:
    return str(round(value * 100))


def _hours(text: str) -> tuple[int, ...]:
    return tuple(_whole(0, 23)(word) for word in text.replace(",", ";").split(";") if word.strip())


def _hours_text(value: tuple[int, ...]) -> str:
    return ";".join(f"{hour:02d}" for hour in value)


def _hours_kept_text(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";") if word.strip())


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text.strip()


_FLUSH_BY_NAME: Final = {"SYNC_FLUSH": "durable", "ASYNC_FLUSH": "async"}
_NAME_BY_FLUSH: Final = {ours: theirs for theirs, ours in _FLUSH_BY_NAME.items()}


def _flush(text: str) -> str:
    flush = _FLUSH_BY_NAME.get(text.strip().upper())
    if flush is None:
        raise ValueError(f"choose one of {', '.join(_FLUSH_BY_NAME)}")
    return flush


def _switch(field: str, *, is_changeable: bool = False) -> Key:
    return Key(field, _boolean, _boolean_text, is_changeable)


def _count(field: str, minimum: int = 1, maximum: int = 2**31 - 1, *, is_changeable: bool = False) -> Key:
    return Key(field, _whole(minimum, maximum), is_changeable=is_changeable)


def _duration(field: str) -> Key:
    return Key(field, _seconds, _seconds_text)


# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────────────

_LOG_PATH: Final = "storePathCommitLog"

KEYS: Final[Mapping[str, Key]] = {
    # Identity and addresses
    "brokerClusterName": Key("cluster", _name),
    "brokerName": Key("name", _name),
    "brokerId": _count("broker_id", 0),
    "brokerIP1": Key("advertised_host", _name),
    "bindAddress": Key("listen_host", str.strip),
    "listenPort": _count("listen_port", 0, 65535),
    "namesrvAddr": Key("nameservers", _addresses, ";".join),
    "storePathRootDir": Key("data", lambda text: Path(_name(text)), is_shown=False),
    "flushDiskType": Key("flush", _flush, _NAME_BY_FLUSH.__getitem__),
    # Topics and groups
    "brokerPermission": _count("permission", 0, 7, is_changeable=True),
    "autoCreateTopicEnable": _switch("auto_create_topics", is_changeable=True),
    "autoCreateSubscriptionGroup": _switch("auto_create_groups", is_changeable=True),
    "defaultTopicQueueNums": _count("template_queues"),
    "traceTopicEnable": _switch("trace_topic_enabled"),
    "msgTraceTopicName": Key("trace_topic", _name),
    # Messages
    "maxMessageSize": _count("message_bytes_max", is_changeable=True),
    "regionId": Key("region", _name),
    "traceOn": _switch("trace_on", is_changeable=True),
    "messageDelayLevel": Key("delay_levels", _name),
    "timerWheelEnable": _switch("timer_enabled"),
    "timerMaxDelaySec": _count("timer_max_delay_seconds"),
    "recallMessageEnable": _switch("recall_enabled"),
    "rejectTransactionMessage": _switch("reject_transactions"),
    "transactionTimeOut": _count("transaction_timeout_ms", 0, is_changeable=True),
    "transactionCheckMax": _count("transaction_check_max", 0, is_changeable=True),
    "transactionCheckInterval": _count("transaction_check_interval_ms", is_changeable=True),
    # Pulling
    "enablePropertyFilter": _switch("sql_filter", is_changeable=True),
    "filterSupportRetry": _switch("filter_retries"),
    "slaveReadEnable": _switch("slave_read", is_changeable=True),
    "longPollingEnable": _switch("long_polling", is_changeable=True),
    "shortPollingTimeMills": _count("short_polling_ms", is_changeable=True),
    "maxTransferCountOnMessageInMemory": _count("pull_count_max", is_changeable=True),
    "maxTransferBytesOnMessageInMemory": _count("pull_bytes_max"),
    "maxTransferBytesOnMessageInDisk": _count("cold_pull_bytes_max"),
    "notifyConsumerIdsChangedEnable": _switch("notify_members"),
    "useServerSideResetOffset": _switch("server_side_reset", is_changeable=True),
    # Pace and patience
    "registerNameServerPeriod": _duration("register_seconds"),
    "flushConsumerOffsetInterval": _duration("save_offsets_seconds"),
    "cleanResourceInterval": _duration("retention_seconds"),
    "channelExpiredTimeout": _duration("client_timeout_seconds"),
    "syncFlushTimeout": _duration("flush_timeout_seconds"),
    # Files
    "mappedFileSizeCommitLog": _count("store.segment_bytes"),
    "mappedFileSizeConsumeQueue": _count("store.queue_segment_bytes"),
    "maxHashSlotNum": _count("store.index_slots"),
    "maxIndexNum": _count("store.index_entries", 2),
    "messageIndexEnable": _switch("store.is_indexed"),
    "enabledAppendPropCRC": _switch("store.append_crc"),
    "fileReservedTime": Key("store.retention_hours", _whole(0), _hours_kept_text, is_changeable=True),
    "deleteWhen": Key("store.delete_hours", _hours, _hours_text),
    "diskMaxUsedSpaceRatio": Key("store.disk_delete_ratio", _ratio, _ratio_text),
    "diskSpaceCleanForciblyRatio": Key("store.disk_force_ratio", _ratio, _ratio_text),
    "cleanFileForciblyEnable": _switch("store.disk_force_delete"),
    "diskSpaceWarningLevelRatio": Key("store.disk_full_ratio", _ratio, _ratio_text),
    "deleteFileBatchMax": _count("store.segments_deleted_max"),
}

CHANGEABLE: Final = frozenset(name for name, key in KEYS.items() if key.is_changeable)
"""Keys that may be changed while a broker runs."""

CONSTANTS: Final[Mapping[str, str]] = {
    "aclEnable": "false",
    "brokerTopicEnable": "true",
    "clusterTopicEnable": "true",
    "filterServerNums": "0",
    "useTLS": "false",
}
"""Settings that exist in RocketMQ only, with the value that describes this broker."""

"""What a broker can be told, and RocketMQ's names for it."""

import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kappamq.errors import ConfigError
from kappamq.model.config import QUEUES_MAX, READ_WRITE
from kappamq.model.message import BODY_BYTES_MAX
from kappamq.model.names import TRACE_TOPIC, check_topic
from kappamq.net.server import ServerLimits
from kappamq.settings import check_listen_host
from kappamq.store.settings import StoreSettings


def default_name(host: str) -> str:
    """A broker's name made of its host's, with what names may not hold replaced."""
    return "broker-" + re.sub(r"[^a-zA-Z0-9_-]", "-", host)[:100]


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Settings of one broker."""

    name: str = field(default_factory=lambda: default_name(socket.gethostname()))
    cluster: str = "DefaultCluster"
    broker_id: int = 0
    listen_host: str = "127.0.0.1"
    listen_port: int = 10911
    advertised_host: str | None = None
    """Address that clients are told to dial; the listen address unless set."""
    nameservers: tuple[str, ...] = ()
    data: Path = Path("kappamq-data")
    flush: Literal["durable", "async"] = "durable"
    """When a send is answered: after fdatasync, or after the write reached the page cache."""
    insecure: bool = False
    """Allow a listen address beyond loopback without authentication."""
    second_port: bool = True
    """Also listen two ports below (RocketMQ's VIP port: its slaves and some clients dial it)."""

    permission: int = READ_WRITE
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    template_queues: int = 8
    """Most queues that a topic gets when the first send creates it."""
    message_bytes_max: int = BODY_BYTES_MAX
    region: str = "DefaultRegion"
    trace_on: bool = True
    trace_topic_enabled: bool = False
    trace_topic: str = TRACE_TOPIC
    sql_filter: bool = True
    """Evaluate SQL92 filters (RocketMQ's default is off)."""
    filter_retries: bool = False
    """Hold messages that come again against the SQL filter of their first topic, too."""
    slave_read: bool = False
    """Tell readers that are further behind than what fits in memory to read from a slave."""
    long_polling: bool = True
    short_polling_ms: int = 1000
    pull_count_max: int = 1024
    """Most messages of one pull reply (RocketMQ: maxTransferCountOnMessageInMemory, 32 there)."""
    pull_bytes_max: int = 256 * 1024
    cold_pull_bytes_max: int = 64 * 1024
    notify_members: bool = True
    server_side_reset: bool = True

    register_seconds: float = 30.0
    save_offsets_seconds: float = 5.0
    retention_seconds: float = 10.0
    client_timeout_seconds: float = 120.0
    lock_lease_seconds: float = 60.0
    flush_timeout_seconds: float = 5.0
    unacknowledged_max: int = 262_144
    """Records that may wait for the disk before sends are answered *busy*."""
    parked_pulls_max: int = 100_000

    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    timer_enabled: bool = True
    timer_max_delay_seconds: int = 366 * 86400
    recall_enabled: bool = True
    reject_transactions: bool = False
    transaction_timeout_ms: int = 6000
    transaction_check_max: int = 15
    transaction_check_interval_ms: int = 30_000

    store: StoreSettings = field(default_factory=StoreSettings)
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        check_topic(self.name)
        check_topic(self.cluster)
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listen_port is {self.listen_port}: use 0 to 65535")
        if self.broker_id < 0:
            raise ConfigError(f"broker_id is {self.broker_id}: use 0 for a master, 1 or more for a slave")
        if self.flush not in ("durable", "async"):
            raise ConfigError(f"flush is {self.flush!r}: use 'durable' (on disk) or 'async' (in the page cache)")
        if not 1 <= self.template_queues <= QUEUES_MAX:
            raise ConfigError(f"template_queues is {self.template_queues}: use 1 to {QUEUES_MAX}")
        check_listen_host(self.listen_host, insecure=self.insecure)
        parse_delay_levels(self.delay_levels)

    @property
    def address_host(self) -> str:
        """Host that goes into routes and message ids."""
        if self.advertised_host:
            return self.advertised_host
        return "127.0.0.1" if self.listen_host in ("", "0.0.0.0", "::", "localhost") else self.listen_host

    @property
    def hot_bytes(self) -> int:
        """Tail of the log that counts as being in memory: 40 % of RAM, as RocketMQ reckons."""
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.4)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delays in milliseconds of a list such as `1s 5m 2h`."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    delays = []
    for word in text.split():
        unit = units.get(word[-1:])
        if unit is None or not word[:-1].isdigit():
            raise ConfigError(f"delay level {word!r} is not a number and a unit: write for example '10s', '5m' or '2h'")
        delays.append(int(word[:-1]) * unit)
    if not delays:
        raise ConfigError("delay_levels is empty: give at least one level, for example '1s'")
    return tuple(delays)

"""Settings of clients, and the forms in which users may give times."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

from kappamq.client.compression import LEVEL, Compression, check_available
from kappamq.client.core.balancing import Average, Strategy
from kappamq.client.core.process_queue import LOCK_LIFE_MS, CacheLimits
from kappamq.client.core.starting import StartFrom
from kappamq.errors import ConfigError
from kappamq.model.message import BODY_BYTES_MAX
from kappamq.model.names import TRACE_TOPIC
from kappamq.model.subscription import MessageModel

Duration: TypeAlias = timedelta | float | int
"""A `timedelta`, or seconds."""

Moment: TypeAlias = datetime | int
"""A `datetime` (naive ones are local time), or milliseconds since the Unix epoch."""

StartPlace: TypeAlias = StartFrom | Literal["first", "last"] | datetime
"""Where a group without committed offsets begins; a `datetime` means the first message stored then or later."""

BATCH_MAX: Final = 1024
CONCURRENCY_MAX: Final = 1000


def duration_ms(duration: Duration) -> int:
    """Milliseconds of a duration."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return round(seconds * 1000)


def moment_ms(moment: Moment) -> int:
    """Milliseconds since the Unix epoch of a moment."""
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    return moment


def start_place(place: StartPlace) -> tuple[StartFrom, int | None]:
    """The setting, and the time that belongs to it."""
    if isinstance(place, StartFrom):
        return place, None
    if isinstance(place, datetime):
        return StartFrom.TIME, moment_ms(place)
    if place not in ("first", "last"):
        raise ConfigError(f"start_from is {place!r}: use 'first', 'last' or a datetime")
    return StartFrom[place.upper()], None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What every client has in common."""

    instance: str | None = None
    """Second half of the client id; by default one of its own for every client."""
    client_ip: str | None = None
    unit: str | None = None
    route_interval_ms: int = 30_000
    missing_route_interval_ms: int = 1_000
    """How soon a topic without a route is asked for again."""
    heartbeat_interval_ms: int = 30_000
    call_timeout_ms: int = 3_000
    close_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        _check_positive(
            self, "route_interval_ms", "missing_route_interval_ms", "heartbeat_interval_ms", "call_timeout_ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How messages are sent."""

    send_timeout_ms: int = 3_000
    """For the whole send, all attempts together."""
    attempts_max: int = 3
    retry_degraded: bool = False
    """Whether an answer "stored, but less safely than asked" is tried on another broker."""
    attempt_timeout_max_ms: int | None = None
    compression: Compression = Compression.ZLIB
    compression_level: int = LEVEL
    compress_from_bytes: int = 4096
    body_bytes_max: int = BODY_BYTES_MAX
    new_topic_queues: int = 4
    inflight_max: int = 1024
    """Sends that wait for their receipt, over all brokers. RocketMQ's broker refuses what waits for 200 ms there."""
    busy_pause_ms: int = 50
    """Pause before the next attempt after a broker said that it is overloaded."""
    latency_faults: bool = False
    """Whether slow and failing brokers are avoided for a while; not for ordered sending."""
    probe_interval_ms: int = 3_000
    probe_timeout_ms: int = 200
    transaction_checks_max: int = 2_000
    """Questions about undecided transactions that wait for their answer."""
    trace: bool = False
    """Whether every send leaves a record in the trace topic: see `kappamq trace`."""
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        _check_positive(self, "send_timeout_ms", "attempts_max", "body_bytes_max", "new_topic_queues", "inflight_max")
        check_available(self.compression)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """What consumers that share a group have in common."""

    model: MessageModel = MessageModel.CLUSTERING
    strategy: Strategy = field(default_factory=Average)
    start_from: StartFrom = StartFrom.LAST
    start_at_ms: int | None = None
    limits: CacheLimits = field(default_factory=CacheLimits)
    """Of each queue."""
    pull_batch: int = 32
    pull_bytes_max: int = 256 * 1024
    suspend_ms: int = 15_000
    """How long a broker may keep a pull that finds nothing."""
    pull_timeout_ms: int = 30_000
    retry_pull_ms: int = 1_000
    """Pause after a pull that failed."""
    balance_interval_ms: int = 20_000
    commit_interval_ms: int = 5_000
    offsets_directory: Path | None = None
    """Where broadcasting consumers keep their progress; by default `.rocketmq_offsets` in the home directory."""
    trace: bool = False
    """Whether every delivery leaves records in the trace topic: see `kappamq trace`."""
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        _check_positive(self, "suspend_ms", "retry_pull_ms", "balance_interval_ms", "commit_interval_ms")
        _check_range(self, "pull_batch", 1, BATCH_MAX)
        if self.pull_timeout_ms <= self.suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms ({self.pull_timeout_ms}) must be longer than suspend_ms ({self.suspend_ms}): "
                "else a pull that waits at the broker always fails"
            )
        if self.start_from is StartFrom.TIME and self.start_at_ms is None:
            raise ConfigError("start_from TIME needs the time: set start_at_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """How a push consumer runs its handlers."""

    concurrency: int = 20
    """Handlers that run at once: tasks for `async def`, threads for plain functions."""
    retries_max: int | None = None
    """Deliveries after the first, then the dead-letter topic; by default 16, and unlimited when orderly."""
    consume_timeout_ms: int = 15 * 60 * 1000
    """A message whose handler runs longer is sent back for another consumer."""
    suspend_queue_ms: int = 1_000
    """Pause of an orderly queue after a failure."""
    run_continuously_ms: int = 60_000
    """How long one orderly queue may keep a worker before others get a turn."""
    lock_interval_ms: int = 20_000
    """How often the locks of an orderly consumer are renewed."""
    lock_life_ms: int = LOCK_LIFE_MS
    """How long a lock is trusted after a broker confirmed it; must be shorter than the lease that brokers give."""
    local_retry_ms: int = 5_000
    """Pause before a message that could not be sent back is handled here again."""
    close_timeout_ms: int = 30_000
    """How long handlers that run may take to finish at the end."""
    cached_messages_max: int = 20_000
    """Over all queues: each queue gets its share of it, if that is less than its own limit."""

    def __post_init__(self) -> None:
        _check_range(self, "concurrency", 1, CONCURRENCY_MAX)
        _check_positive(self, "consume_timeout_ms", "lock_interval_ms", "local_retry_ms", "cached_messages_max")
        _check_range(self, "suspend_queue_ms", 10, 30_000)
        if self.lock_life_ms <= self.lock_interval_ms:
            raise ConfigError(
                f"lock_life_ms ({self.lock_life_ms}) must be longer than lock_interval_ms ({self.lock_interval_ms}): "
                "else every lock lapses before it is renewed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullSettings:
    """What is special to a lite pull consumer."""

    auto_commit: bool = True
    cached_messages_max: int = 10_000
    """Over all queues."""

    def __post_init__(self) -> None:
        _check_positive(self, "cached_messages_max")


def _check_positive(settings: object, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} is {getattr(settings, name)}: use at least 1")


def _check_range(settings: object, name: str, least: int, most: int) -> None:
    if not least <= getattr(settings, name) <= most:
        raise ConfigError(f"{name} is {getattr(settings, name)}: use {least} to {most}")

"""When a failed send is tried again, for how long, and which brokers to leave alone for a while.

A retry may store a message twice: both copies carry the same unique id.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kappamq.client.core.routing import QueueRotation
from kappamq.errors import CallTimeout, ConfigError, KappaError, Refused, TooManyInFlight, TransportError
from kappamq.model.message import Queue
from kappamq.wire.codes import ResponseCode

RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals of one broker that another may not share."""

DEGRADED_CODES: Final = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
"""Answers that mean "stored, but less safely than asked": a result, not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """How stubborn a send is. Validated when built: raises `ConfigError`."""

    attempts_max: int = 3
    retried_codes: frozenset[int] = RETRIED_CODES
    retries_when_crowded: bool = True
    """Whether our own limit of requests in flight counts as a reason to try again."""
    retries_degraded: bool = False
    attempt_timeout_max_ms: int | None = None
    """Cap of every attempt but the last, which may use all the time that is left."""

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise ConfigError(f"attempts_max is {self.attempts_max}: a send needs at least 1 attempt")
        if self.attempt_timeout_max_ms is not None and self.attempt_timeout_max_ms < 1:
            raise ConfigError(f"attempt_timeout_max_ms is {self.attempt_timeout_max_ms}: use at least 1, or None")

    def retries(self, error: KappaError) -> bool:
        """Whether this error is worth another attempt at all."""
        if isinstance(error, Refused):
            return error.code in self.retried_codes
        if isinstance(error, TooManyInFlight):
            return self.retries_when_crowded
        return isinstance(error, TransportError)


WAITING_SEND: Final = SendPolicy()
"""The caller waits for the outcome: brokers' refusals are tried elsewhere, too."""

BACKGROUND_SEND: Final = SendPolicy(retried_codes=frozenset(), retries_when_crowded=False)
"""RocketMQ's asynchronous send: only what did not get through is tried again."""

SINGLE_SEND: Final = SendPolicy(attempts_max=1)
"""Sends to a queue that the caller chose."""


class SendAttempts:
    """The attempts of one send: `begin` each, then ask `again_after` its error (or `again_after_degraded`)."""

    def __init__(self, policy: SendPolicy, *, topic: str, started_at_ms: int, timeout_ms: int) -> None:
        self._policy = policy
        self._topic = topic
        self._started_at_ms = started_at_ms
        self._deadline_ms = started_at_ms + timeout_ms
        self.brokers: list[str] = []

    @property
    def last_broker(self) -> str | None:
        """The broker tried last, which the next attempt avoids."""
        return self.brokers[-1] if self.brokers else None

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left."""
        return len(self.brokers) >= self._policy.attempts_max

    def begin(self, broker: str, now_ms: int) -> int:
        """Count an attempt and return its timeout in ms; raise `CallTimeout` when the time is used up."""
        left_ms = self._deadline_ms - now_ms
        if left_ms <= 0:
            raise CallTimeout(
                f"sendDefaultImpl call timeout: {now_ms - self._started_at_ms} ms used for topic {self._topic!r} after "
                f"{len(self.brokers)} attempts ({', '.join(self.brokers) or 'no broker reached'}): allow more time"
            )
        self.brokers.append(broker)
        cap_ms = self._policy.attempt_timeout_max_ms
        return left_ms if cap_ms is None or self.is_last else min(left_ms, cap_ms)

    def again_after(self, error: KappaError, now_ms: int) -> bool:
        """Whether to try again after `error`; if not, raise `failure`, or return an earlier degraded result."""
        return self._has_another(now_ms) and self._policy.retries(error)

    def again_after_degraded(self, now_ms: int) -> bool:
        """Whether to try again after an answer of `DEGRADED_CODES`; if not, it is the result."""
        return self._has_another(now_ms) and self._policy.retries_degraded

    def failure(self, error: KappaError, now_ms: int) -> KappaError:
        """What to raise from `error` at the end: the same class, with the history in its text."""
        text = (
            f"Send [{len(self.brokers)}] times, still failed, cost [{now_ms - self._started_at_ms}]ms, "
            f"topic: {self._topic}, brokers: {', '.join(self.brokers) or 'none'}: {error}"
        )
        if isinstance(error, Refused):
            return type(error)(text, code=error.code, address=error.address)
        return type(error)(text) if isinstance(error, TransportError) else error

    def _has_another(self, now_ms: int) -> bool:
        return not self.is_last and now_ms < self._deadline_ms


@dataclass(frozen=True, slots=True)
class FaultTable:
    """From a latency to how long its broker is avoided: the last row that the latency reaches counts."""

    rows: tuple[tuple[int, int], ...]
    isolation_latency_ms: int
    """Latency that stands for a failure."""

    def unavailable_ms(self, latency_ms: int) -> int:
        return next((pause_ms for least_ms, pause_ms in reversed(self.rows) if latency_ms >= least_ms), 0)


FAULTS_5X: Final = FaultTable(
    ((50, 0), (100, 0), (550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (15_000, 30_000)), 10_000
)
FAULTS_4X: Final = FaultTable(
    ((50, 0), (100, 0), (550, 30_000), (1_000, 60_000), (2_000, 120_000), (3_000, 180_000), (15_000, 600_000)), 30_000
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt says about its broker."""

    isolate: bool
    reachable: bool


def judge(error: KappaError | None, *, has_detector: bool, in_background: bool = False) -> Verdict:
    """Verdict on the broker of an attempt that ended with `error`, or well.

    With a detector, an unreachable broker waits until the detector finds it again. Without, time alone must heal it.
    """
    if isinstance(error, TransportError | Refused):
        if in_background:
            return Verdict(isolate=True, reachable=True)
        return Verdict(isolate=True, reachable=isinstance(error, TransportError) and not has_detector)
    return Verdict(isolate=False, reachable=True)


@dataclass(slots=True)
class _Fault:
    latency_ms: int
    available_at_ms: int
    reachable: bool
    check_at_ms: int


class LatencyFaults:
    """Brokers that were slow or failed, and how long to avoid them. Not for ordered sending: it moves messages."""

    def __init__(self, table: FaultTable = FAULTS_5X, *, check_interval_ms: int = 2_000) -> None:
        self._table = table
        self._check_interval_ms = check_interval_ms
        self._faults: dict[str, _Fault] = {}

    def record(self, broker: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        """Note how an attempt went; the end of a pause only moves forward."""
        counted_ms = self._table.isolation_latency_ms if isolate else latency_ms
        available_at_ms = now_ms + self._table.unavailable_ms(counted_ms)
        fault = self._faults.get(broker)
        if fault is None:
            self._faults[broker] = _Fault(latency_ms, available_at_ms, reachable, now_ms)
        else:
            fault.latency_ms = latency_ms
            fault.available_at_ms = max(fault.available_at_ms, available_at_ms)
            fault.reachable = reachable

    def is_available(self, broker: str, now_ms: int) -> bool:
        """Whether the broker's pause is over, or it never had one."""
        fault = self._faults.get(broker)
        return fault is None or now_ms >= fault.available_at_ms

    def is_reachable(self, broker: str) -> bool:
        fault = self._faults.get(broker)
        return fault is None or fault.reachable

    def choose(
        self, rotation: QueueRotation, *, last_broker: str | None, now_ms: int, reseed: int | None = None
    ) -> Queue:
        """Next queue: on an available broker, else on a reachable one, else any; twice the same broker only at last.

        Pass a random `reseed` on a retry, so that producers which failed together spread out.
        """
        if reseed is not None:
            rotation.reseed(reseed)
        return (
            rotation.next_where(lambda queue: queue.broker != last_broker and self.is_available(queue.broker, now_ms))
            or rotation.next_where(lambda queue: queue.broker != last_broker and self.is_reachable(queue.broker))
            or rotation.next()
        )

    def due_for_check(self, now_ms: int) -> Iterator[str]:
        """Recorded brokers that a detector should probe now; each comes again after the interval."""
        for broker, fault in list(self._faults.items()):
            if now_ms >= fault.check_at_ms:
                fault.check_at_ms = now_ms + self._check_interval_ms
                yield broker

    def mark_reachable(self, broker: str) -> None:
        """A probe came back."""
        if broker in self._faults:
            self._faults[broker].reachable = True

    def forget(self, broker: str) -> None:
        """The broker has no address any more."""
        self._faults.pop(broker, None)

"""Retry decisions and the two tables of latency fault tolerance."""

import pytest

from kappamq.client.core.retrying import (
    BACKGROUND_SEND,
    DEGRADED_CODES,
    FAULTS_4X,
    FAULTS_5X,
    SINGLE_SEND,
    WAITING_SEND,
    LatencyFaults,
    SendAttempts,
    SendPolicy,
    Verdict,
    judge,
)
from kappamq.client.core.routing import QueueRotation
from kappamq.errors import (
    Busy,
    CallTimeout,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    KappaError,
    NotPermitted,
    Refused,
    RemoteProtocolError,
    TooManyInFlight,
)
from kappamq.model.message import Queue


def attempts(policy: SendPolicy = WAITING_SEND, timeout_ms: int = 3000) -> SendAttempts:
    return SendAttempts(policy, topic="T", started_at_ms=1000, timeout_ms=timeout_ms)


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_waiting_sends_try_these_refusals_elsewhere(code: int) -> None:
    assert WAITING_SEND.retries(Refused("no", code=code))
    assert not BACKGROUND_SEND.retries(Refused("no", code=code))


@pytest.mark.parametrize("code", [3, 13, 15, 24, 29, 215, 604])
def test_other_refusals_are_final(code: int) -> None:
    assert not WAITING_SEND.retries(Refused("no", code=code))


@pytest.mark.parametrize("error", [ConnectFailed("x"), ConnectionLost("x"), CallTimeout("x")])
def test_what_did_not_get_through_is_tried_again(error: KappaError) -> None:
    assert WAITING_SEND.retries(error)
    assert BACKGROUND_SEND.retries(error)


def test_our_own_limit_is_tried_again_only_when_the_caller_waits() -> None:
    assert WAITING_SEND.retries(TooManyInFlight("x"))
    assert not BACKGROUND_SEND.retries(TooManyInFlight("x"))


@pytest.mark.parametrize("error", [InvalidMessage("x"), RemoteProtocolError("x")])
def test_mistakes_are_final(error: KappaError) -> None:
    assert not WAITING_SEND.retries(error)


def test_three_attempts_then_the_error_with_its_history() -> None:
    sending = attempts()
    error = NotPermitted("read only", code=16, address="a:1")
    for broker, expected in (("a", True), ("b", True), ("a", False)):
        assert sending.begin(broker, 1100) == 2900
        assert sending.last_broker == broker
        assert sending.again_after(error, 1200) is expected
    failure = sending.failure(error, 1200)
    assert isinstance(failure, NotPermitted)
    assert (failure.code, failure.address) == (16, "a:1")
    assert str(failure) == "Send [3] times, still failed, cost [200]ms, topic: T, brokers: a, b, a: read only"


def test_one_attempt_to_a_chosen_queue() -> None:
    sending = attempts(SINGLE_SEND)
    sending.begin("a", 1000)
    assert not sending.again_after(ConnectionLost("x"), 1000)


def test_failure_keeps_the_class_of_transport_errors_and_leaves_mistakes_alone() -> None:
    sending = attempts()
    assert sending.last_broker is None
    assert type(sending.failure(ConnectFailed("refused"), 1000)) is ConnectFailed
    mistake = InvalidMessage("x")
    assert sending.failure(mistake, 1000) is mistake


def test_no_attempt_after_the_deadline() -> None:
    sending = attempts()
    sending.begin("a", 3999)
    assert sending.again_after(ConnectionLost("x"), 3999)
    assert not sending.again_after(ConnectionLost("x"), 4000)
    with pytest.raises(CallTimeout, match="3000 ms used for topic 'T' after 1 attempts \\(a\\)"):
        sending.begin("b", 4000)


def test_cap_of_every_attempt_but_the_last() -> None:
    sending = attempts(SendPolicy(attempts_max=2, attempt_timeout_max_ms=500))
    assert sending.begin("a", 1000) == 500
    assert sending.begin("b", 1500) == 2500
    assert attempts(SendPolicy(attempt_timeout_max_ms=5000)).begin("a", 1000) == 3000


def test_degraded_answers_are_results_unless_asked_otherwise() -> None:
    assert {10, 11, 12} == DEGRADED_CODES
    sending = attempts()
    sending.begin("a", 1000)
    assert not sending.again_after_degraded(1000)
    stubborn = attempts(SendPolicy(retries_degraded=True, attempts_max=2))
    stubborn.begin("a", 1000)
    assert stubborn.again_after_degraded(1000)
    stubborn.begin("b", 1000)
    assert not stubborn.again_after_degraded(1000)


def test_policy_is_validated() -> None:
    with pytest.raises(ConfigError, match="at least 1 attempt"):
        SendPolicy(attempts_max=0)
    with pytest.raises(ConfigError, match="at least 1, or None"):
        SendPolicy(attempt_timeout_max_ms=0)


@pytest.mark.parametrize(
    ("latency_ms", "pause_5x", "pause_4x"),
    [
        (0, 0, 0),
        (50, 0, 0),
        (549, 0, 0),
        (550, 2_000, 30_000),
        (1_000, 2_000, 60_000),
        (1_799, 2_000, 60_000),
        (1_800, 5_000, 60_000),
        (2_000, 5_000, 120_000),
        (3_000, 6_000, 180_000),
        (5_000, 10_000, 180_000),
        (14_999, 10_000, 180_000),
        (15_000, 30_000, 600_000),
    ],
)
def test_pause_by_latency(latency_ms: int, pause_5x: int, pause_4x: int) -> None:
    assert FAULTS_5X.unavailable_ms(latency_ms) == pause_5x
    assert FAULTS_4X.unavailable_ms(latency_ms) == pause_4x


def test_isolation_lasts_ten_seconds() -> None:
    faults = LatencyFaults()
    faults.record("a", 3, isolate=True, reachable=False, now_ms=1000)
    assert not faults.is_available("a", 10_999)
    assert faults.is_available("a", 11_000)
    assert not faults.is_reachable("a")
    assert faults.is_available("b", 0)
    assert faults.is_reachable("b")


def test_a_pause_only_moves_forward() -> None:
    faults = LatencyFaults()
    faults.record("a", 3, isolate=True, reachable=False, now_ms=1000)
    faults.record("a", 600, isolate=False, reachable=True, now_ms=2000)
    assert not faults.is_available("a", 10_999)
    assert faults.is_reachable("a")
    faults.record("a", 20_000, isolate=False, reachable=True, now_ms=2000)
    assert not faults.is_available("a", 31_999)


@pytest.mark.parametrize(
    ("error", "has_detector", "in_background", "expected"),
    [
        (None, True, False, Verdict(isolate=False, reachable=True)),
        (InvalidMessage("x"), True, False, Verdict(isolate=False, reachable=True)),
        (ConnectionLost("x"), False, False, Verdict(isolate=True, reachable=True)),
        (ConnectionLost("x"), True, False, Verdict(isolate=True, reachable=False)),
        (Busy("x", code=2), False, False, Verdict(isolate=True, reachable=False)),
        (Busy("x", code=2), True, True, Verdict(isolate=True, reachable=True)),
        (CallTimeout("x"), True, True, Verdict(isolate=True, reachable=True)),
    ],
)
def test_verdicts(error: KappaError | None, has_detector: bool, in_background: bool, expected: Verdict) -> None:
    assert judge(error, has_detector=has_detector, in_background=in_background) == expected


QUEUES = [Queue("T", broker, 0) for broker in ("a", "b", "c")]


def chosen(faults: LatencyFaults, *, last_broker: str | None, reseed: int | None = None) -> str:
    return faults.choose(QueueRotation(QUEUES, seed=-1), last_broker=last_broker, now_ms=0, reseed=reseed).broker


def test_choice_prefers_available_then_reachable_then_any() -> None:
    faults = LatencyFaults()
    assert chosen(faults, last_broker=None) == "a"
    assert chosen(faults, last_broker="a") == "b"
    faults.record("b", 0, isolate=True, reachable=False, now_ms=0)
    assert chosen(faults, last_broker="a") == "c"
    faults.record("c", 0, isolate=True, reachable=True, now_ms=0)
    assert chosen(faults, last_broker="a") == "c"
    faults.record("c", 0, isolate=True, reachable=False, now_ms=0)
    assert chosen(faults, last_broker="a") == "a"


def test_choice_of_a_retry_starts_elsewhere() -> None:
    assert chosen(LatencyFaults(), last_broker=None, reseed=1) == "c"


def test_detector_rounds() -> None:
    faults = LatencyFaults(check_interval_ms=2000)
    faults.record("a", 0, isolate=True, reachable=False, now_ms=0)
    assert list(faults.due_for_check(0)) == ["a"]
    assert list(faults.due_for_check(1999)) == []
    assert list(faults.due_for_check(2000)) == ["a"]
    faults.mark_reachable("a")
    assert faults.is_reachable("a")
    faults.mark_reachable("unknown")
    faults.forget("a")
    assert list(faults.due_for_check(9000)) == []
    assert faults.is_available("a", 0)

"""Settings are checked when they are built, and times come in several forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kappamq.client.core.starting import StartFrom
from kappamq.client.settings import (
    ClusterSettings,
    ConsumerSettings,
    ProducerSettings,
    PushSettings,
    duration_ms,
    moment_ms,
    start_place,
)
from kappamq.errors import ConfigError


def test_durations_and_moments() -> None:
    assert duration_ms(timedelta(seconds=1.5)) == duration_ms(1.5) == 1500
    assert duration_ms(2) == 2000
    assert moment_ms(datetime(1970, 1, 2, tzinfo=UTC)) == 86_400_000
    assert moment_ms(5) == 5


def test_start_places() -> None:
    assert start_place("first") == (StartFrom.FIRST, None)
    assert start_place("last") == (StartFrom.LAST, None)
    assert start_place(StartFrom.FIRST) == (StartFrom.FIRST, None)
    assert start_place(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == (StartFrom.TIME, 1000)
    with pytest.raises(ConfigError, match="'first', 'last' or a datetime"):
        start_place("middle")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "values", "complaint"),
    [
        (ClusterSettings, {"heartbeat_interval_ms": 0}, "heartbeat_interval_ms is 0"),
        (ProducerSettings, {"attempts_max": 0}, "attempts_max is 0"),
        (ConsumerSettings, {"pull_batch": 1025}, "use 1 to 1024"),
        (ConsumerSettings, {"suspend_ms": 30_000}, "must be longer"),
        (ConsumerSettings, {"start_from": StartFrom.TIME}, "set start_at_ms"),
        (PushSettings, {"concurrency": 0}, "use 1 to 1000"),
        (PushSettings, {"suspend_queue_ms": 5}, "use 10 to 30000"),
    ],
)
def test_bad_values_are_refused(kind: type, values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        kind(**values)

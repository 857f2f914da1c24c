"""Texts of options: addresses, pairs, durations, times."""

from datetime import UTC, datetime, timedelta

import pytest

from kappamq.cli.options import parse_duration, parse_moment, parse_pairs, split_listen
from kappamq.errors import UsageError

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("9876", ("127.0.0.1", 9876)),
        ("0", ("127.0.0.1", 0)),
        ("[::1]:5", ("::1", 5)),
        (":5", ("", 5)),
    ],
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_listen(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:port", "70000", "a:70000"])
def test_wrong_listen_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        split_listen(text)


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="], option="-p") == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("novalue", "=x"):
        with pytest.raises(UsageError, match="name=value"):
            parse_pairs([wrong], option="-p")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("10", 10), ("5m", 300), ("2h", 7200), ("1d", 86400), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "5 parsecs", "5w", "abc"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


def test_moments() -> None:
    assert parse_moment("-2h", now=NOW) == NOW - timedelta(hours=2)
    assert parse_moment("1767225600000", now=NOW) == datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_moment("2026-01-31T12:00", now=NOW) == datetime(2026, 1, 31, 12, 0)
    assert parse_moment("2026-01-31T12:00+00:00", now=NOW) == NOW


@pytest.mark.parametrize("text", ["", "someday", "2026-13-01", "9" * 40])
def test_wrong_moments(text: str) -> None:
    with pytest.raises(UsageError, match="time"):
        parse_moment(text, now=NOW)

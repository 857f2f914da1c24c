"""Options that several commands share, and the ways to run what they ask for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from kappamq.errors import UsageError
from kappamq.model.ids import split_address

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin

T = TypeVar("T")

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

NameServers = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar=["KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"],
        help="Name servers, host:port with ';' between them.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Which cluster, when there are several.")]
SettingsFile = Annotated[Path | None, typer.Option("--config", help="Settings file: TOML, or RocketMQ's .conf.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond loopback although nobody is authenticated.")]


class LogLevel(StrEnum):
    """How much a server says on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Flush(StrEnum):
    """When a send is acknowledged."""

    DURABLE = "durable"
    ASYNC = "async"


LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="How much to say on standard error.")]
FlushOption = Annotated[
    Flush | None,
    typer.Option("--flush", help="Acknowledge sends when they are on disk (durable) or in the page cache (async)."),
]


def administer(nameservers: str, action: "Callable[[Admin], Awaitable[T]]") -> T:
    """Run one administrative action on a cluster."""
    from kappamq.admin.admin import Admin

    async def work() -> T:
        async with Admin(nameservers) as admin:
            return await action(admin)

    return asyncio.run(work())


def run_client(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a client command."""
    return asyncio.run(work)


def split_listen(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `:port` or `port`."""
    if text.isdigit():
        return "127.0.0.1", split_address(f"127.0.0.1:{text}")[1]
    host, port = split_address(text)
    return host, port


def parse_pairs(pairs: list[str], *, option: str) -> dict[str, str]:
    """Names and values of repeated `name=value` options."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {pair!r} is not of the form name=value")
        values[name] = value
    return values


def parse_duration(text: str) -> timedelta:
    """Duration of a text such as `500ms`, `10s`, `5m`, `2h` or `1d`; a bare number counts seconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        return timedelta(seconds=float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        raise UsageError(f"duration {text!r} is not valid: write for example 500ms, 10s, 5m or 2h") from None


def parse_moment(text: str, *, now: datetime) -> datetime:
    """Time of an ISO text (`2026-01-31T12:00`), of milliseconds since the epoch, or so long ago (`-2h`)."""
    try:
        if text.startswith("-"):
            return now - parse_duration(text[1:])
        if text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"time {text!r} is not valid: write 2026-01-31T12:00, milliseconds since 1970, or -2h for two hours ago"
        ) from None

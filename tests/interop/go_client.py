"""The official Go client, as a second opinion: an independent reading of the same protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.interop.artifacts import COMPILE_SECONDS_MAX, FETCH_SECONDS_MAX, cached, run_tool
from tests.interop.processes import ChildFailed

GO_SOURCE: Final = Path(__file__).parent / "go"
RUN_SECONDS_MAX: Final = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoReport:
    """What the Go program saw, by its own names."""

    sent: Sequence[Mapping[str, Any]]
    received: Sequence[Mapping[str, Any]]


def build_go_client() -> Path:
    """Return the built program; raise Unreachable if Go or its module proxy is out of reach."""
    sources = ("go.mod", "go.sum", "main.go", "kinds.go")
    digest = hashlib.sha256(b"".join((GO_SOURCE / name).read_bytes() for name in sources)).hexdigest()[:12]

    def fill(directory: Path) -> None:
        run_tool(
            ["go", "mod", "download"],
            seconds_max=FETCH_SECONDS_MAX,
            advice="install Go and check that its module proxy can be reached",
            directory=GO_SOURCE,
        )
        run_tool(
            ["go", "build", "-buildvcs=false", "-trimpath", "-o", str(directory / "goclient"), "."],
            seconds_max=COMPILE_SECONDS_MAX,
            advice="see tests/interop/go",
            failure=ChildFailed,
            directory=GO_SOURCE,
        )

    return cached(f"goclient-{digest}", fill) / "goclient"


def run_go_client(program: Path, nameserver: str, topic: str, group: str, *, count: int) -> GoReport:
    """Let the Go client send and consume `count` messages."""
    printed = run_tool(
        [str(program), nameserver, topic, group, str(count)],
        seconds_max=RUN_SECONDS_MAX,
        advice="the Go client on this cluster",
        failure=ChildFailed,
    )
    report = json.loads(printed.splitlines()[-1])
    return GoReport(sent=report["sent"], received=report["received"])


def run_go_kinds(program: Path, nameserver: str, suffix: str) -> Mapping[str, Mapping[str, Any]]:
    """Let the Go client send and consume messages of every kind; by kind, what `kinds.go` says of it."""
    printed = run_tool(
        [str(program), "kinds", nameserver, suffix],
        seconds_max=RUN_SECONDS_MAX,
        advice="the Go client on this cluster",
        failure=ChildFailed,
    )
    reports: Mapping[str, Mapping[str, Any]] = json.loads(printed.splitlines()[-1])
    return reports

"""Where results go, what machine they come from, and how many measurements become one figure."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = CHECKOUT / ".cache" / "benchmarks"
RESULTS: Final = CACHE / "results"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some measurements, with the lowest and the highest of them."""

    median: float
    low: float
    high: float

    @property
    def percent(self) -> float:
        """Half the distance between lowest and highest, as a share of the median."""
        return 100 * (self.high - self.low) / 2 / self.median if self.median else 0.0


def spread(values: Iterable[float]) -> Spread:
    """Reduce one or more measurements of the same thing."""
    kept = sorted(values)
    return Spread(statistics.median(kept), kept[0], kept[-1])


def machine() -> Json:
    """What the figures depend on: processor, cores, memory, kernel, Python, load at the start."""
    return {
        "processor": _first_field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "file_system": file_system_of(CACHE),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def save(name: str, report: Mapping[str, Any], *, directory: Path = RESULTS) -> Path:
    """Write one benchmark's report, with machine, revision and time added, and return its place."""
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / f"{name}.json"
    whole = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "machine": machine(),
        **report,
    }
    place.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return place


def load(name: str, *, directory: Path = RESULTS) -> Json | None:
    """Read a report back; None when there is none."""
    place = directory / f"{name}.json"
    if not place.is_file():
        return None
    report: Json = json.loads(place.read_text(encoding="utf-8"))
    return report


def revision() -> str:
    """The commit that is checked out, with a `+` when files differ from it; `unknown` outside a checkout."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded so that it also reads well in a terminal; all but the first column to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def file_system_of(path: Path) -> str:
    """The type of the file system that holds `path`, or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def _first_field(path: str, name: str) -> str | None:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()

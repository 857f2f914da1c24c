"""Write the measured tables into `docs/performance.md`: `python -m benchmarks.report [--results DIRECTORY]`.

The page is written by hand but for what stands between the two markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import results
from benchmarks.brokers import FLUSHES, OURS
from benchmarks.load import load_table
from benchmarks.peer import peer_table
from benchmarks.results import CHECKOUT, Json, table

PAGE: Final = CHECKOUT / "docs" / "performance.md"
BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"
CLASS_TITLES: Final = {
    "durable": "Durable: answered after the record is on disk (RocketMQ: SYNC_FLUSH)",
    "async": "Page cache: answered before the record is on disk (RocketMQ: ASYNC_FLUSH)",
}


class PageError(Exception):
    """The page lacks its markers, or there is nothing to write into it."""


def main(arguments: list[str]) -> int:
    """Replace the measured part of the page by what the last runs have found."""
    parser = argparse.ArgumentParser(prog="benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    chosen = parser.parse_args(arguments)
    reports = {name: results.load(name, directory=chosen.results) for name in ("floor", "load", "peer")}
    text = chosen.page.read_text(encoding="utf-8")
    chosen.page.write_text(replace_measured(text, measured({k: r for k, r in reports.items() if r})), encoding="utf-8")
    print(chosen.page)
    return 0


def replace_measured(page: str, text: str) -> str:
    """The page with `text` between its markers. Raises PageError when they are not there once each, in order."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail:
        raise PageError(f"the page needs {BEGIN} and, after it, {END}, once each")
    return f"{head}{BEGIN}\n\n{text.strip()}\n\n{END}{tail}"


def measured(reports: dict[str, Json]) -> str:
    """The tables of all reports, each with the machine it comes from."""
    if not reports:
        raise PageError("there are no results yet: run `python -m benchmarks floor load peer`")
    parts = []
    if floor := reports.get("floor"):
        parts += ["### What the machine can do", _provenance(floor), _floor_table(floor)]
    if load := reports.get("load"):
        plan = load["plan"]
        how = f"Medians of {plan['rounds']} rounds of {plan['seconds']:g} s each; ± is half of highest minus lowest."
        parts += ["### Under load", _provenance(load), how, *_classes(load, load_table)]
    if peer := reports.get("peer"):
        how = f"Medians of {peer['rounds']} rounds of 10 s each."
        parts += ["### RocketMQ's own benchmark programs", _provenance(peer), how, *_classes(peer, peer_table)]
    return "\n\n".join(parts)


def _classes(report: Json, to_table: Callable[[list[Json], str], str]) -> list[str]:
    measurements: list[Json] = report["measurements"]
    parts = []
    for flush in FLUSHES:
        if any(m["flush"] == flush for m in measurements):
            parts += [f"#### {CLASS_TITLES[flush]}", to_table(measurements, flush)]
    if not any(m["broker"] == OURS for m in measurements):
        parts.append("Only RocketMQ was measured in this run.")
    return parts


def _floor_table(report: Json) -> str:
    rows = [
        (name, *(f"{figures[key]:,.0f}" for key in ("p50", "p99", "max")))
        for name, figures in report["latency_us"].items()
    ]
    return table(("one after the other", "p50 us", "p99 us", "max us"), rows)


def _provenance(report: Json) -> str:
    m = report["machine"]
    quick = " **A quick run: it shows that things work, not how fast they are.**" if report["quick"] else ""
    return (
        f"{m['cores']} cores of {m['processor']}, {m['memory_gb']} GB, Linux {m['kernel']}, {m['file_system']}, "
        f"Python {m['python']}; load average {m['load_average']} at the end; {report['at']}, "
        f"revision {report['revision']}.{quick}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PageError as error:
        sys.exit(f"benchmarks.report: {error}")

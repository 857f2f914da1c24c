"""Write the measured tables and charts into `docs/performance.md`: `python -m benchmarks.report [--results DIRECTORY]`.

The page is written by hand but for what stands between the two markers. Charts go to `charts/` beside the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import load as load_benchmark
from benchmarks import results
from benchmarks.backlog import backlog_table
from benchmarks.brokers import FLUSHES, OURS, ROCKETMQ
from benchmarks.charts import bars
from benchmarks.floor import echo_table
from benchmarks.growth import DIMENSIONS, growth_table
from benchmarks.latency import latency_table
from benchmarks.load import load_table
from benchmarks.loop_lag import lag_table
from benchmarks.peer import peer_table
from benchmarks.results import CHECKOUT, Json, table

PAGE: Final = CHECKOUT / "docs" / "performance.md"
BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"
CHARTS: Final = "charts"
REPORTS: Final = ("floor", "load", "latency", "peer", "growth", "loop_lag", "backlog")
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
    found = {name: results.load(name, directory=chosen.results) for name in REPORTS}
    reports = {name: report for name, report in found.items() if report}
    text = chosen.page.read_text(encoding="utf-8")
    chosen.page.write_text(replace_measured(text, measured(reports)), encoding="utf-8")
    print(chosen.page)
    for name, drawing in charts(reports).items():
        place = chosen.page.parent / CHARTS / f"{name}.svg"
        place.parent.mkdir(exist_ok=True)
        place.write_text(drawing, encoding="utf-8")
        print(place)
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
        if floor.get("echo"):
            parts.append(echo_table(floor["echo"]))
    if load := reports.get("load"):
        plan = load["plan"]
        how = f"Medians of {plan['rounds']} rounds of {plan['seconds']:g} s each; ± is half of highest minus lowest."
        parts += ["### Under load", _provenance(load), how, *_classes(load, load_table)]
    if latency := reports.get("latency"):
        how = f"Medians of {latency['rounds']} rounds; a request counts from when it was due."
        parts += ["### At fixed rates", _provenance(latency), how, *_classes(latency, latency_table)]
    if peer := reports.get("peer"):
        how = f"Medians of {peer['rounds']} rounds of 10 s each."
        parts += ["### RocketMQ's own benchmark programs", _provenance(peer), how, *_classes(peer, peer_table)]
    if growth := reports.get("growth"):
        how = f"Medians of {growth['rounds']} rounds of {growth['seconds']:g} s each, `{growth['flush']}`."
        parts += ["### Growth", _provenance(growth), how]
        parts += [growth_table(dimension, growth[dimension]) for dimension in DIMENSIONS if dimension in growth]
    if lag := reports.get("loop_lag"):
        how = "Half of what the broker can take, for a minute: how late its event loop is."
        parts += ["### Pauses", _provenance(lag), how, lag_table(lag["measurements"])]
    if backlog := reports.get("backlog"):
        read = backlog["read"]
        how = (
            f"{backlog['rate']:,.0f} sends a second, `{backlog['flush']}`, while a consumer reads {read['messages']:,} "
            f"messages from the disk at {read['rate']:,.0f} a second."
        )
        parts += ["### Catching up", _provenance(backlog), how, backlog_table(backlog["alone"], backlog["during"])]
    return "\n\n".join(parts)


def charts(reports: dict[str, Json]) -> dict[str, str]:
    """Throughput of both brokers, one drawing for each durability class."""
    drawings: dict[str, str] = {}
    for flush in FLUSHES if "load" in reports else ():
        measurements = reports["load"]["measurements"]
        titles = dict.fromkeys(m["load"] for m in measurements if m["flush"] == flush)
        rows = []
        for title in titles:
            sides = [load_benchmark.summary(measurements, flush, title, kind) for kind in (OURS, ROCKETMQ)]
            rows.append((title, [side["rate"] if side else None for side in sides]))
        if rows:
            drawings[f"load-{flush}"] = bars(f"Messages per second, {flush}", ("KappaMQ", "RocketMQ"), rows, unit="/s")
    return drawings


def _classes(report: Json, to_table: Callable[[list[Json], str], str]) -> list[str]:
    measurements: list[Json] = report["measurements"]
    parts = []
    for flush in FLUSHES:
        if any(m["flush"] == flush for m in measurements):
            parts += [f"#### {CLASS_TITLES[flush]}", to_table(measurements, flush)]
            if to_table is load_table:
                parts.append(f"![Messages per second, {flush}]({CHARTS}/load-{flush}.svg)")
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

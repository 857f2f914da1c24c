"""How long does the broker's event loop pause while it takes half of what it could?"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import FLUSHES, OURS, Unavailable, ask, available, running
from benchmarks.generator import Load
from benchmarks.results import CACHE, Json, save, table

CONNECTIONS: Final = 8
IN_FLIGHT: Final = 32
SECONDS: Final = 60.0
QUICK_SECONDS: Final = 5.0
CAPACITY_SECONDS: Final = 4.0
LOAD_SHARE: Final = 0.5
REQUEST_RUNTIME: Final = 28
KEYS: Final = ("P50", "P99", "P999", "Max")


def main(arguments: list[str]) -> int:
    """Measure each durability class on a fresh broker, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks loop_lag", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some seconds instead of a minute")
    parser.add_argument("--flush", choices=FLUSHES, help="one durability class instead of both")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the stores go")
    chosen = parser.parse_args(arguments)
    available([OURS])
    chosen.directory.mkdir(parents=True, exist_ok=True)
    seconds = QUICK_SECONDS if chosen.quick else SECONDS
    flushes = [chosen.flush] if chosen.flush else FLUSHES
    measurements = [measure(flush, seconds=seconds, parent=chosen.directory) for flush in flushes]
    print(lag_table(measurements))
    print(save("loop_lag", {"quick": chosen.quick, "measurements": measurements}))
    return 0


def lag_table(measurements: Sequence[Json]) -> str:
    """One row for each durability class."""
    rows = [
        (m["flush"], f"{m['offered']:,.0f}", f"{m['answered']:,.0f}", *(f"{m['lag_ms'][key]:.2f}" for key in KEYS))
        for m in measurements
    ]
    return table(("flush", "offered/s", "answered/s", "lag p50 ms", "p99", "p99.9", "max"), rows)


def measure(flush: str, *, seconds: float, parent: Path) -> Json:
    """What one broker can take, then how late the loop of another is at a share of that."""
    capacity = _run(flush, Load(connections=CONNECTIONS, in_flight=IN_FLIGHT), CAPACITY_SECONDS, parent)["rate"]
    offered = round(capacity * LOAD_SHARE)
    outcome = _run(flush, Load(connections=CONNECTIONS, in_flight=IN_FLIGHT, rate=offered), seconds, parent)
    print(f"{flush}: {capacity:,.0f}/s at most, {outcome['lag_ms']} at half of it", file=sys.stderr, flush=True)
    return {"flush": flush, "offered": offered, "answered": outcome["rate"], "lag_ms": outcome["lag_ms"]}


def _run(flush: str, load: Load, seconds: float, parent: Path) -> Json:
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix=f"lag-{flush}-") as place,
        running(OURS, flush, Path(place)) as broker,
    ):
        outcome = generator.run(load, broker.address, "lag", seconds=seconds, create=True)
        generator.check(outcome)
        return outcome | {"lag_ms": lag_of(broker.address)}


def lag_of(address: str) -> dict[str, float]:
    """What a broker says about its loop."""
    code, body = ask(address, REQUEST_RUNTIME, {})
    if code != 0:
        raise Unavailable(f"the broker at {address} shows no figures: code {code}")
    figures = json.loads(body)["table"]
    return {key: float(figures[f"loopLag{key}Millis"]) for key in KEYS}

"""What happens to throughput, latency and start-up when topics, connections or the log grow?

One broker of ours. Within each dimension the sizes are measured in turns, so that each stands beside the smallest one
of the same minute. The log is the exception: it only grows, and each size is measured when it is reached, with the
start after a `kill -9` at that size.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import FLUSHES, OURS, RunningBroker, available, check_disk, running
from benchmarks.generator import Load
from benchmarks.results import CACHE, Json, save, spread, table

DIMENSIONS: Final = ("topics", "connections", "log")
TOPICS: Final = (1, 100, 10_000)
CONNECTIONS: Final = (1, 10, 100, 1000)
IN_FLIGHT: Final = 1000
LOG_GIGABYTES: Final = (0.001, 1.0, 10.0, 20.0)
ROUNDS: Final = 5
SECONDS: Final = 4.0
FILLING: Final = Load(connections=4, in_flight=4, body_bytes=16_384, batch=32)
FILLING_BYTES: Final = FILLING.body_bytes * FILLING.batch


def main(arguments: list[str]) -> int:
    """Measure each dimension, print its table, save the report."""
    chosen = _parser().parse_args(arguments)
    chosen.dimensions = chosen.dimensions or list(DIMENSIONS)
    available([OURS])
    rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    seconds = 1.0 if chosen.quick else SECONDS
    sizes = (0.001, 0.1) if chosen.quick else tuple(s for s in LOG_GIGABYTES if s <= chosen.gigabytes)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    report: Json = {"quick": chosen.quick, "rounds": rounds, "seconds": seconds, "flush": chosen.flush}
    with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="growth-") as place:
        if "topics" in chosen.dimensions:
            report["topics"] = _in_turns(topic_loads(), chosen.flush, Path(place) / "topics", rounds, seconds)
        if "connections" in chosen.dimensions:
            loads = connection_loads()
            report["connections"] = _in_turns(loads, chosen.flush, Path(place) / "connections", rounds, seconds)
        if "log" in chosen.dimensions:
            report["log"] = _log(chosen.flush, Path(place) / "log", sizes, seconds)
    for dimension in chosen.dimensions:
        print(f"\n{growth_table(dimension, report[dimension])}", flush=True)
    print(save("growth", report))
    return 0


def topic_loads() -> dict[str, Load]:
    """The same traffic to ever more topics."""
    return {f"{n:,} topics": Load(connections=8, in_flight=32, topics=n, queues=8 if n == 1 else 1) for n in TOPICS}


def connection_loads() -> dict[str, Load]:
    """The same number of requests in flight over ever more connections."""
    return {f"{n:,} connections": Load(connections=n, in_flight=IN_FLIGHT // n) for n in CONNECTIONS}


def growth_table(dimension: str, rows: Sequence[Json]) -> str:
    """One row per size, with the ratio to the first."""
    header = [dimension, "msg/s", "of the first", "p50 us", "p99 us", "p99.9 us", "MB private"]
    if any("start_seconds" in row for row in rows):
        header += ["start after kill -9, s"]
    lines = []
    for row in rows:
        cells = [row["size"], f"{row['rate']:,.0f}", f"{row['rate'] / rows[0]['rate']:.2f}"]
        cells += [f"{row[key]:,.0f}" for key in ("p50", "p99", "p99_9", "private_mb")]
        cells += [f"{row['start_seconds']:.2f}"] if "start_seconds" in row else []
        lines.append(cells)
    return table(header, lines)


def _in_turns(loads: dict[str, Load], flush: str, place: Path, rounds: int, seconds: float) -> list[Json]:
    place.mkdir()
    found: dict[str, list[Json]] = {size: [] for size in loads}
    with running(OURS, flush, place) as broker:
        for number in range(rounds):
            turns = list(loads.items())
            for size, load in turns if number % 2 == 0 else turns[::-1]:
                check_disk(place)
                found[size].append(_measure(broker, load, f"growth-{load.topics}-{load.connections}", seconds))
                _say(f"{size}: {found[size][-1]['rate']:,.0f}/s")
    return [
        {
            "size": size,
            **{key: spread(m[key] for m in measured).median for key in ("rate", "p50", "p99", "p99_9")},
            "rate_spread_percent": spread(m["rate"] for m in measured).percent,
            "private_mb": max(m["private_mb"] for m in measured),
        }
        for size, measured in found.items()
    ]


def _log(flush: str, place: Path, sizes: Sequence[float], seconds: float) -> list[Json]:
    place.mkdir()
    rows: list[Json] = []
    written = 0
    for size in sizes:
        check_disk(place)
        with running(OURS, flush, place) as broker:
            while written < size * 1e9:
                written += _fill(broker, seconds=min(5.0, max(0.02, (size * 1e9 - written) / 1e9)))
            row = _measure(broker, Load(connections=8, in_flight=32), "growth-log", seconds)
            os.kill(broker.pid, signal.SIGKILL)
        with running(OURS, flush, place) as broker:
            rows.append({"size": f"{size:g} GB", **row, "start_seconds": broker.start_seconds})
        _say(f"{size:g} GB: {row['rate']:,.0f}/s, ready {rows[-1]['start_seconds']:.2f} s after kill -9")
    return rows


def _fill(broker: RunningBroker, *, seconds: float) -> int:
    outcome = generator.run(FILLING, broker.address, "growth-fill", seconds=seconds, warmup_seconds=0, create=True)
    generator.check(outcome)
    return int(outcome["total_requests"]) * FILLING_BYTES


def _measure(broker: RunningBroker, load: Load, topic: str, seconds: float) -> Json:
    os.sync()
    outcome = generator.run(load, broker.address, topic, seconds=seconds, warmup_seconds=1.0, create=True)
    generator.check(outcome)
    latency = outcome["latency_us"]
    return {
        "rate": outcome["rate"],
        **{key: latency[key] for key in ("p50", "p99", "p99_9")},
        "private_mb": broker.usage().private_mb,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks growth", description=__doc__)
    parser.add_argument("--only", choices=DIMENSIONS, action="append", dest="dimensions", help="one of the three (all)")
    parser.add_argument("--quick", action="store_true", help="one short round and a small log: does it run")
    parser.add_argument("--flush", choices=FLUSHES, default="async", help="durability class (async)")
    parser.add_argument("--rounds", type=int, help=f"rounds per size ({ROUNDS})")
    parser.add_argument("--gigabytes", type=float, default=LOG_GIGABYTES[-1], help="largest log (20)")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the stores go")
    return parser

"""How long does a send take at a given rate, stalls included?

Requests start when they are due, whatever became of those before (no coordinated omission): a stall of a second is seen
by everything that was due in that second. Both brokers, alternating rounds, both durability classes apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import FLUSHES, OURS, ROCKETMQ, available, chosen_kinds, running
from benchmarks.generator import Load
from benchmarks.results import CACHE, Json, save, spread, table

RATES: Final = (1000, 5000, 20_000, 50_000)
CONNECTIONS: Final = 16
IN_FLIGHT: Final = 256
ROUNDS: Final = 3
SECONDS: Final = 8.0
HEAT_SECONDS: Final = 20.0
PERCENTILES: Final = ("p50", "p99", "p99_9", "max")


def main(arguments: list[str]) -> int:
    """Measure each rate on each broker, print the tables, save the report."""
    chosen = _parser().parse_args(arguments)
    kinds = available(chosen_kinds(chosen.only))
    rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    measurements: list[Json] = []
    for flush in [chosen.flush] if chosen.flush else FLUSHES:
        measurements += _measure_class(flush, kinds, rounds, quick=chosen.quick, parent=chosen.directory)
        print(f"\n{flush}\n{latency_table(measurements, flush)}", flush=True)
    print(save("latency", {"quick": chosen.quick, "rounds": rounds, "measurements": measurements}))
    return 0


def latency_table(measurements: Sequence[Json], flush: str) -> str:
    """One row per offered rate and broker: what was answered, and how late."""
    rows = []
    for rate in RATES:
        for kind in (OURS, ROCKETMQ):
            found = [m for m in measurements if (m["flush"], m["rate"], m["broker"]) == (flush, rate, kind)]
            if found:
                cells = [f"{rate:,}/s", kind, f"{spread(m['answered'] for m in found).median:,.0f}"]
                cells += [f"{spread(m[key] for m in found).median:,.0f}" for key in PERCENTILES]
                rows.append([*cells, f"{sum(m['unanswered'] for m in found):,}"])
    names = ("offered", "broker", "answered/s", "p50 us", "p99 us", "p99.9 us", "max us", "unanswered")
    return table(names, rows)


def _measure_class(flush: str, kinds: Sequence[str], rounds: int, *, quick: bool, parent: Path) -> list[Json]:
    parent.mkdir(parents=True, exist_ok=True)
    measurements: list[Json] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix=f"latency-{flush}-")))
        brokers = []
        for kind in kinds:
            (place / kind).mkdir()
            broker = stack.enter_context(running(kind, flush, place / kind))
            heat = Load(connections=8, in_flight=32)
            seconds = 4.0 if quick else HEAT_SECONDS
            generator.run(heat, broker.address, "latency", seconds=seconds, warmup_seconds=0, create=True)
            broker.freeze()
            brokers.append(broker)
        for number in range(rounds):
            for rate in RATES:
                for broker in brokers if number % 2 == 0 else brokers[::-1]:
                    os.sync()
                    load = Load(connections=CONNECTIONS, in_flight=IN_FLIGHT, rate=rate)
                    seconds = 1.0 if quick else SECONDS
                    with broker.awake():
                        outcome = generator.run(load, broker.address, "latency", seconds=seconds, warmup_seconds=1.0)
                    measurements.append(
                        {
                            "broker": broker.kind,
                            "flush": flush,
                            "rate": rate,
                            "round": number,
                            "answered": outcome["rate"],
                            "unanswered": outcome["unanswered"],
                            **{key: outcome["latency_us"][key] for key in PERCENTILES},
                        }
                    )
                    print(f"{broker.kind} {flush}: {rate:,}/s: {outcome['latency_us']}", file=sys.stderr, flush=True)
    return measurements


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks latency", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run")
    parser.add_argument("--only", choices=("ours", ROCKETMQ), help="one broker instead of both")
    parser.add_argument("--flush", choices=FLUSHES, help="one durability class instead of both")
    parser.add_argument("--rounds", type=int, help=f"rounds per rate ({ROUNDS})")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the stores go")
    return parser

"""How do RocketMQ's own Java benchmark programs see the two brokers?

The programs are those in RocketMQ's example jar, unchanged: the same client, the same threads, the same printed
figures. They speak the binary header. Both brokers are measured in alternating rounds, as in `load`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import (
    FLUSHES,
    OURS,
    ROCKETMQ,
    RunningBroker,
    available,
    check_disk,
    chosen_kinds,
    java_command,
    java_home,
    running,
    wait_for_route,
)
from benchmarks.generator import Load
from benchmarks.results import CACHE, Json, save, spread, table
from tests.interop.processes import Child

PACKAGE: Final = "org.apache.rocketmq.example.benchmark"
CLIENT_JVM_FLAGS: Final = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
# The programs print a sliding average over this many seconds, and the first line when they have that many.
WINDOW_SECONDS: Final = 10.0
ROUNDS: Final = 5
WARMUP_SECONDS: Final = 8.0
QUICK_WARMUP_SECONDS: Final = 3.0
HEAT_SECONDS: Final = 15.0
QUICK_HEAT_SECONDS: Final = 4.0
QUEUES: Final = 8
THREADS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Which program runs with which options; `counts` is the printed figure that counts messages."""

    name: str
    program: str
    options: tuple[str, ...]
    counts: str
    latency: str
    is_quick: bool = False
    beside: tuple[str, ...] = ()  # A second program with its options: it makes the messages that are consumed.


SCENARIOS: Final = (
    Scenario(
        name=f"Producer, {THREADS} threads, 128 B",
        program="Producer",
        options=("-w", str(THREADS), "-s", "128"),
        counts="Send TPS",
        latency="Average RT(ms)",
        is_quick=True,
    ),
    Scenario(
        name=f"Producer, {THREADS} threads, 1 KiB",
        program="Producer",
        options=("-w", str(THREADS), "-s", "1024"),
        counts="Send TPS",
        latency="Average RT(ms)",
    ),
    Scenario(
        name="BatchProducer, 16 threads, batches of 16, 128 B",
        program="BatchProducer",
        options=("-w", "16", "-s", "128", "-b", "16"),
        counts="Send MPS",
        latency="Average RT(ms)",
    ),
    Scenario(
        name="Consumer, 20 threads, beside a Producer of 32",
        program="Consumer",
        options=("-w", "20", "-p", "true"),
        counts="Consume TPS",
        latency="AVG(B2C) RT(ms)",
        beside=("Producer", "-w", "32", "-s", "128"),
    ),
)


def main(arguments: list[str]) -> int:
    """Measure what can be measured here, print the tables, save the report."""
    chosen = _parser().parse_args(arguments)
    kinds = available(chosen_kinds(chosen.only))
    scenarios = [s for s in SCENARIOS if chosen.match in s.name and (s.is_quick or not chosen.quick)]
    rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    measurements: list[Json] = []
    for flush in [chosen.flush] if chosen.flush else FLUSHES:
        measurements += measure_class(
            flush, kinds, scenarios, rounds=rounds, quick=chosen.quick, parent=chosen.directory
        )
        print(f"\n{flush}\n{peer_table(measurements, flush)}", flush=True)
    print(save("peer", {"quick": chosen.quick, "rounds": rounds, "measurements": measurements}))
    return 1 if any(m["failed"] for m in measurements) else 0


def measure_class(
    flush: str, kinds: Sequence[str], scenarios: Sequence[Scenario], *, rounds: int, quick: bool, parent: Path
) -> list[Json]:
    """Measure all scenarios on all brokers of one durability class."""
    parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix=f"{flush}-")))
        brokers = []
        for kind in kinds:
            (place / kind).mkdir()
            broker = stack.enter_context(running(kind, flush, place / kind))
            heat = Load(connections=8, in_flight=32, header="binary", queues=QUEUES)
            seconds = QUICK_HEAT_SECONDS if quick else HEAT_SECONDS
            generator.run(heat, broker.address, "peer-heat", seconds=seconds, warmup_seconds=0, create=True)
            broker.freeze()
            brokers.append(broker)
        measurements = []
        for number in range(rounds):
            order = brokers if number % 2 == 0 else brokers[::-1]
            for scenario in scenarios:
                for broker in order:
                    check_disk(place)
                    measurement = _measure(broker, scenario, number=number, quick=quick)
                    measurements.append(measurement | {"round": number})
        return measurements


def parse_line(line: str) -> dict[str, float]:
    """The figures of one line that a benchmark program prints: `Name: value | Name: value`, names as printed."""
    figures = {}
    for part in line.split("|"):
        name, _, value = part.rpartition(":")
        if re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", value):
            figures[name.strip()] = float(value)
    return figures


def summary(measurements: Iterable[Json], flush: str, scenario: str, broker: str) -> Json | None:
    """Medians and spread of one scenario on one broker; None when it was not measured."""
    found = [m for m in measurements if (m["flush"], m["scenario"], m["broker"]) == (flush, scenario, broker)]
    if not found:
        return None
    rate = spread(m["rate"] for m in found)
    return {
        "rate": rate.median,
        "rate_spread_percent": rate.percent,
        **{key: spread(m[key] for m in found).median for key in ("latency_ms", "cpu_per_million", "start_seconds")},
        "private_mb": max(m["private_mb"] for m in found),
        "failed": sum(m["failed"] for m in found),
    }


def peer_table(measurements: Sequence[Json], flush: str) -> str:
    """One row per scenario: both brokers side by side where both were measured."""
    header = (
        *("program", "kappamq msg/s", "RocketMQ msg/s", "ratio", "average ms", "RocketMQ", "CPU s/M msg", "RocketMQ"),
        *("MB private", "RocketMQ", "start s", "RocketMQ", "failed"),
    )
    rows = []
    for name in dict.fromkeys(m["scenario"] for m in measurements if m["flush"] == flush):
        sides = [summary(measurements, flush, name, kind) for kind in (OURS, ROCKETMQ)]
        cells = [name, *(f"{s['rate']:,.0f} ±{s['rate_spread_percent']:.0f} %" if s else "-" for s in sides)]
        ours, theirs = sides
        cells.append(f"{ours['rate'] / theirs['rate']:.2f}" if ours and theirs and theirs["rate"] else "-")
        for key, form in (
            ("latency_ms", ".2f"),
            ("cpu_per_million", ".2f"),
            ("private_mb", ",.0f"),
            ("start_seconds", ".1f"),
        ):
            cells += [format(side[key], form) if side else "-" for side in sides]
        cells.append(f"{sum(side['failed'] for side in sides if side):.0f}")
        rows.append(cells)
    return table(header, rows)


def _measure(broker: RunningBroker, scenario: Scenario, *, number: int, quick: bool) -> Json:
    os.sync()
    topic = f"peer-{SCENARIOS.index(scenario)}-{number}"
    with broker.awake(), ExitStack() as stack:
        # One message creates the topic, with as many queues on either broker.
        generator.run(Load(queues=QUEUES), broker.address, topic, seconds=0.05, warmup_seconds=0, create=True)
        wait_for_route(broker.nameserver, topic)
        program = _start(stack, broker, topic, (scenario.program, *scenario.options))
        if scenario.beside:
            _start(stack, broker, topic, scenario.beside)
        program.wait_for(f"{scenario.counts}:", seconds_max=WINDOW_SECONDS + 30)
        time.sleep(QUICK_WARMUP_SECONDS if quick else WARMUP_SECONDS)
        earlier = _last_figures(program, scenario)
        before, started = broker.usage(), time.monotonic()
        time.sleep(WINDOW_SECONDS)
        after, elapsed = broker.usage(), time.monotonic() - started
        figures = _last_figures(program, scenario)
    # The programs count failures from their start on, when a busy machine makes even their first request time out.
    failed = sum(max(0.0, figures[name] - earlier[name]) for name in figures if "Fail" in name)
    rate = figures[scenario.counts]
    print(f"{broker.kind} {broker.flush}: {scenario.name}: {rate:,.0f}/s", file=sys.stderr, flush=True)
    return {
        "broker": broker.kind,
        "flush": broker.flush,
        "scenario": scenario.name,
        "rate": rate,
        "latency_ms": figures[scenario.latency],
        "failed": failed,
        "cpu_per_million": round((after.cpu_seconds - before.cpu_seconds) / max(rate * elapsed / 1e6, 1e-6), 3),
        "resident_mb": after.resident_mb,
        "private_mb": after.private_mb,
        "start_seconds": broker.start_seconds,
        "printed": figures,
    }


def _last_figures(program: Child, scenario: Scenario) -> dict[str, float]:
    lines = [line for line in program.log_tail().splitlines() if f"{scenario.counts}:" in line]
    return parse_line(lines[-1])


def _start(stack: ExitStack, broker: RunningBroker, topic: str, program: Sequence[str]) -> Child:
    home = stack.enter_context(java_home())
    name, *options = program
    arguments = ("-n", broker.nameserver, "-t", topic, "-ri", "1000", *options)
    command = java_command(f"{PACKAGE}.{name}", *arguments, home=home, flags=CLIENT_JVM_FLAGS)
    child = Child(name, command, environment={"ROCKETMQ_HOME": str(home)}, directory=home)
    stack.callback(child.stop)
    return child


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks peer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of the main scenario")
    parser.add_argument("--only", choices=("ours", ROCKETMQ), help="one broker instead of both")
    parser.add_argument("--flush", choices=FLUSHES, help="one durability class instead of both")
    parser.add_argument("--match", default="", help="only scenarios with this in their name")
    parser.add_argument("--rounds", type=int, help=f"rounds per scenario ({ROUNDS})")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the stores go")
    return parser

"""How many messages does each broker take and give, how fast does it answer, and what does that cost?

Both brokers run on the same cores with the same generator, one after the other in alternating rounds; while one is
measured the other is frozen. The two durability classes are never compared with each other.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import FLUSHES, OURS, ROCKETMQ, RunningBroker, available, check_disk, chosen_kinds, running
from benchmarks.generator import Load
from benchmarks.results import CACHE, Json, save, spread, table

SHAPES: Final = ((1, 1), (1, 64), (64, 1), (8, 32))
BODIES: Final = (128, 1024)
LOADS: Final = (
    *(
        Load(connections=connections, in_flight=in_flight, body_bytes=body)
        for body in BODIES
        for connections, in_flight in SHAPES
    ),
    Load(connections=8, in_flight=32, header="binary"),
    Load(connections=8, in_flight=4, batch=32),
    Load(mode="pull", connections=8, in_flight=4),
)
# Sent before the first round: what pulls read. A fixed rate for a fixed time is a fixed number of messages.
PRELOAD: Final = Load(connections=2, in_flight=16, batch=32, rate=1000)
PRELOAD_SECONDS: Final = 4.0
PULL_TOPIC: Final = "benchmark-pull"
# A JIT compiler needs to have seen the work before it is fast; interpreters and page caches do not mind.
HEAT: Final = Load(connections=8, in_flight=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often to measure."""

    rounds: int
    seconds: float
    warmup_seconds: float
    heat_seconds: float


FULL: Final = Plan(rounds=5, seconds=5.0, warmup_seconds=1.0, heat_seconds=20.0)
QUICK: Final = Plan(rounds=1, seconds=1.0, warmup_seconds=0.3, heat_seconds=4.0)


def main(arguments: list[str]) -> int:
    """Measure what can be measured here, print the tables, save the report."""
    chosen = _parser().parse_args(arguments)
    plan = QUICK if chosen.quick else FULL
    plan = Plan(**{**asdict(plan), **{key: value for key in ("rounds", "seconds") if (value := getattr(chosen, key))}})
    if chosen.cores:
        os.sched_setaffinity(0, {int(core) for core in chosen.cores.split(",")})  # Children inherit it.
    kinds = available(chosen_kinds(chosen.only))
    loads = [load for load in LOADS if chosen.match in load.title]
    measurements: list[Json] = []
    for flush in [chosen.flush] if chosen.flush else FLUSHES:
        measurements += measure_class(flush, kinds, loads, plan=plan, parent=chosen.directory)
        print(f"\n{flush}\n{load_table(measurements, flush)}", flush=True)
    report = {"quick": chosen.quick, "plan": asdict(plan), "measurements": measurements}
    print(save("load", report))
    for m in measurements:
        if m["faults"] or m["refusals"]:
            words = "; ".join([*m["faults"], *filter(None, [m["refusals"]])])
            _say(f"! {m['broker']}, {m['flush']}, {m['load']}, round {m['round']}: {words}")
    # A busy broker may refuse, and the figure is marked; ours must not at these loads, and no broker may do worse.
    return 1 if any(m["faults"] or (m["refusals"] and m["broker"] == OURS) for m in measurements) else 0


def measure_class(flush: str, kinds: Sequence[str], loads: Sequence[Load], *, plan: Plan, parent: Path) -> list[Json]:
    """Measure all loads on all brokers of one durability class."""
    parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix=f"{flush}-")))
        brokers = []
        for kind in kinds:
            (place / kind).mkdir()
            broker = stack.enter_context(running(kind, flush, place / kind))
            _say(f"{kind} {flush}: ready after {broker.start_seconds:.1f} s")
            _prepare(broker, plan, has_pulls=any(load.mode == "pull" for load in loads))
            broker.freeze()
            brokers.append(broker)
        measurements = []
        for number in range(plan.rounds):
            # Whoever comes first finds the machine as the other has left it: take turns in that, too.
            order = brokers if number % 2 == 0 else brokers[::-1]
            for load in loads:
                for broker in order:
                    check_disk(place)
                    measurements.append(_measure(broker, load, plan) | {"round": number})
        return measurements


def summary(measurements: Iterable[Json], flush: str, load: str, broker: str) -> Json | None:
    """Medians and spread of one load on one broker; None when it was not measured."""
    found = [m for m in measurements if (m["flush"], m["load"], m["broker"]) == (flush, load, broker)]
    if not found:
        return None
    rate = spread(m["result"]["rate"] for m in found)
    return {
        "rate": rate.median,
        "rate_low": rate.low,
        "rate_high": rate.high,
        "rate_spread_percent": rate.percent,
        **{key: spread(m["result"]["latency_us"][key] for m in found).median for key in ("p50", "p99", "p99_9")},
        "cpu_per_million": spread(m["cpu_per_million"] for m in found).median,
        "resident_mb": max(m["resident_mb"] for m in found),
        "private_mb": max(m["private_mb"] for m in found),
        "is_clean": not any(m["faults"] or m["refusals"] for m in found),
    }


def load_table(measurements: Sequence[Json], flush: str) -> str:
    """One row per load: both brokers side by side where both were measured."""
    header = (
        *("load", "kappamq msg/s", "RocketMQ msg/s", "ratio", "p50 us", "RocketMQ", "p99 us", "RocketMQ"),
        *("p99.9 us", "RocketMQ", "CPU s/M msg", "RocketMQ", "MB private", "RocketMQ"),
    )
    titles = dict.fromkeys(m["load"] for m in measurements if m["flush"] == flush)
    rows = []
    for title in titles:
        ours, theirs = (summary(measurements, flush, title, kind) for kind in (OURS, ROCKETMQ))
        ratio = f"{ours['rate'] / theirs['rate']:.2f}" if ours and theirs and theirs["rate"] else "-"
        cells = [title, _rate(ours), _rate(theirs), ratio]
        for key in ("p50", "p99", "p99_9", "cpu_per_million", "private_mb"):
            form = ".2f" if key == "cpu_per_million" else ",.0f"
            cells += [format(side[key], form) if side else "-" for side in (ours, theirs)]
        rows.append(cells)
    return table(header, rows)


def _rate(side: Json | None) -> str:
    if side is None:
        return "-"
    return f"{side['rate']:,.0f} ±{side['rate_spread_percent']:.0f} %" + ("" if side["is_clean"] else " !")


def _prepare(broker: RunningBroker, plan: Plan, *, has_pulls: bool) -> None:
    heating = generator.run(
        HEAT, broker.address, "benchmark-heat", seconds=plan.heat_seconds, warmup_seconds=0, create=True
    )
    _say(f"{broker.kind} {broker.flush}: heated with {heating['total_count']:,} messages")
    if has_pulls:
        seconds = PRELOAD_SECONDS
        generator.check(
            generator.run(PRELOAD, broker.address, PULL_TOPIC, seconds=seconds, warmup_seconds=0, create=True)
        )


def _measure(broker: RunningBroker, load: Load, plan: Plan) -> Json:
    # The dirty pages of the last measurement must not be written during this one.
    os.sync()
    topic = PULL_TOPIC if load.mode == "pull" else f"benchmark-{load.body_bytes}-{load.batch}"
    with broker.awake():
        before = broker.usage()
        result = generator.run(
            load,
            broker.address,
            topic,
            seconds=plan.seconds,
            warmup_seconds=plan.warmup_seconds,
            create=load.mode == "send",
        )
        after = broker.usage()
    faults, refusals = generator.faults(result), generator.refusals(result)
    mark = " !" if faults or refusals else ""
    _say(f"{broker.kind} {broker.flush}: {load.title}: {result['rate']:,.0f}/s{mark}")
    # Warm-up and drain cost as much per message as the window does: all messages share all of the time.
    million = max(result["total_count"], 1) / 1e6
    return {
        "broker": broker.kind,
        "flush": broker.flush,
        "load": load.title,
        "start_seconds": broker.start_seconds,
        "cpu_per_million": round((after.cpu_seconds - before.cpu_seconds) / million, 3),
        "resident_mb": after.resident_mb,
        "private_mb": after.private_mb,
        "faults": faults,
        "refusals": refusals,
        "result": result,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks load", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run, not how fast is it")
    parser.add_argument("--only", choices=("ours", ROCKETMQ), help="one broker instead of both")
    parser.add_argument("--flush", choices=FLUSHES, help="one durability class instead of both")
    parser.add_argument("--match", default="", help="only loads with this in their title, such as '8 x 32'")
    parser.add_argument("--rounds", type=int, help=f"rounds per load ({FULL.rounds})")
    parser.add_argument("--seconds", type=float, help=f"measured seconds per load and round ({FULL.seconds:g})")
    parser.add_argument("--cores", help="cores for everything, such as 0,1 (all)")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the stores go")
    return parser

"""Does a consumer that has much to catch up on disturb those who send?

A topic is filled, the broker starts again and the page cache of its files is dropped, so that the backlog is read from
the disk. Then a producer sends at a fixed rate: alone, and while a consumer reads everything from the first message on.
With a rate of 0 nobody sends: how fast can a consumer catch up at all?
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.brokers import FLUSHES, OURS, check_disk, running
from benchmarks.generator import Load
from benchmarks.results import CACHE, Json, save, spread, table

MESSAGES: Final = 10_000_000
QUICK_MESSAGES: Final = 200_000
TOPIC: Final = "backlog"
LIVE_TOPIC: Final = "live"
FILL: Final = Load(connections=8, in_flight=4, batch=32)
FILL_SECONDS: Final = 4.0
READ: Final = Load(mode="pull", connections=2, in_flight=4, once=True)
READ_SECONDS_MAX: Final = 1800.0
WINDOW_SECONDS: Final = 2.0
QUIET_WINDOWS: Final = 4
RATE: Final = 5000.0


def main(arguments: list[str]) -> int:
    """Fill, restart, measure, print the table, save the report."""
    chosen = _parser().parse_args(arguments)
    wanted = chosen.messages or (QUICK_MESSAGES if chosen.quick else MESSAGES)
    live = Load(connections=4, in_flight=64, rate=chosen.rate)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="backlog-") as name:
        place = Path(name)
        with running(OURS, "async", place) as broker:
            stored = _fill(broker.address, wanted, place)
        _forget_pages(place)
        with running(OURS, chosen.flush, place) as broker:
            alone: list[Json] = []
            if chosen.rate:
                alone = _send(broker.address, live, windows=1 if chosen.quick else QUIET_WINDOWS, create=True)
            read, during, usage = _read_and_send(broker.address, live, broker.pid)
    report = {
        "quick": chosen.quick,
        "messages": stored,
        "flush": chosen.flush,
        "rate": chosen.rate,
        "alone": alone,
        "during": during,
        "read": read,
        "resident_mb": usage,
    }
    if chosen.rate:
        print(backlog_table(alone, during))
    print(f"{read['messages']:,} messages read in {read['seconds']:.1f} s: {read['rate']:,.0f} messages/s, ", end="")
    print(f"{read['processor_seconds'] / read['messages'] * 1e6:.2f} us of the broker's processor time for each")
    print(save("backlog", report))
    return 0 if read["messages"] >= stored else 1


def _fill(address: str, wanted: int, place: Path) -> int:
    stored = 0
    while stored < wanted:
        check_disk(place)
        outcome = generator.run(FILL, address, TOPIC, seconds=FILL_SECONDS, warmup_seconds=0, create=stored == 0)
        generator.check(outcome)
        stored = outcome["stored_after"]
        print(f"{stored:,} of {wanted:,} messages stored", file=sys.stderr, flush=True)
    return stored


def _forget_pages(place: Path) -> None:
    """Let the kernel drop what it has in memory of the files; nobody may have them mapped."""
    os.sync()
    for path in place.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _send(address: str, live: Load, *, windows: int, create: bool = False) -> list[Json]:
    found = []
    for number in range(windows):
        outcome = generator.run(
            live,
            address,
            LIVE_TOPIC,
            seconds=WINDOW_SECONDS,
            warmup_seconds=0.5,
            drain_seconds=2,
            create=create and number == 0,
        )
        found.append({"answered": outcome["rate"], "unanswered": outcome["unanswered"], **outcome["latency_us"]})
    return found


def _read_and_send(address: str, live: Load, pid: int) -> tuple[Json, list[Json], float]:
    """Read the backlog in a thread while the producer goes on; only windows within the reading count."""
    read: Json = {}
    busy_before = _processor_seconds(pid)
    failure: list[BaseException] = []

    def catch_up() -> None:
        started = time.monotonic()
        try:
            outcome = generator.run(READ, address, TOPIC, seconds=READ_SECONDS_MAX, warmup_seconds=0)
        except BaseException as fault:
            failure.append(fault)
            raise
        seconds = time.monotonic() - started
        read.update(messages=outcome["total_count"], seconds=seconds, rate=outcome["total_count"] / seconds)

    thread = threading.Thread(target=catch_up, name="catch-up")
    thread.start()
    during: list[Json] = []
    while live.rate and thread.is_alive():
        [window] = _send(address, live, windows=1)
        if thread.is_alive() or not during:
            during.append(window)
    thread.join()
    if failure:
        raise failure[0]
    read["processor_seconds"] = _processor_seconds(pid) - busy_before
    return read, during, _resident_mb(pid)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def backlog_table(alone: list[Json], during: list[Json]) -> str:
    rows = []
    for name, windows in (("alone", alone), ("while a consumer catches up", during)):
        cells = [name, str(len(windows)), f"{spread(window['answered'] for window in windows).median:,.0f}"]
        cells += [f"{spread(window[key] for window in windows).median:,.0f}" for key in ("p50", "p99", "p99_9")]
        rows.append([*cells, f"{max(window['max'] for window in windows):,.0f}"])
    return table(("producer", "windows", "answered/s", "p50 us", "p99 us", "p99.9 us", "max us"), rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks backlog", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small backlog: does it run")
    parser.add_argument("--messages", type=int, help=f"how many wait ({MESSAGES:,})")
    parser.add_argument("--rate", type=float, default=RATE, help="sends per second of the producer; 0: none")
    parser.add_argument("--flush", choices=FLUSHES, default="durable", help="when sends are answered")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="where the store goes")
    return parser

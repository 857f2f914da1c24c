"""How long does the store take for one record, appended and published, one by one or as a packed run?"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import codec
from benchmarks.results import CACHE, save
from benchmarks.timing import QUICK_ROUNDS, ROUNDS, measure, report, timings_table
from kappamq import kernel
from kappamq.clock import SystemClock
from kappamq.model.record import NewRecord
from kappamq.store.settings import StoreSettings
from kappamq.store.store import Store

APPENDS: Final = 50


def main(arguments: list[str]) -> int:
    """Measure in the page cache, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks append", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args(arguments)
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        store = Store.open(Path(directory), StoreSettings(visible="written"), clock=SystemClock())
        try:
            timings = [
                measure("records one by one", lambda: append_records(store), rounds=rounds),
                measure(f"packed runs ({kernel.KERNEL} kernel)", lambda: append_runs(store), rounds=rounds),
            ]
        finally:
            store.close()
    print(timings_table(timings))
    print(save("append", {"quick": chosen.quick, "kernel": kernel.KERNEL, **report(timings)}))
    return 0


def append_records(store: Store) -> int:
    """Records as the ordinary path hands them over, one append for as many as a read brings."""
    for number in range(APPENDS):
        records = [
            NewRecord(
                codec.TOPIC,
                item % codec.QUEUES,
                bytes(codec.BODY_BYTES),
                f"UNIQ_KEY\x01{number * codec.SENDS + item:032X}\x02TAGS\x01TagA\x02".encode() + codec.STAMP,
                1_700_000_000_000,
                codec.HOST,
                codec.HOST,
            )
            for item in range(codec.SENDS)
        ]
        store.append(records)
        store.publish_batches()
    return APPENDS * codec.SENDS


def append_runs(store: Store) -> int:
    """The same from the bytes of a read on."""
    data = codec.sends()
    for _ in range(APPENDS):
        store.append_run(codec.scan(kernel, data))
        store.publish_batches()
    return APPENDS * codec.SENDS

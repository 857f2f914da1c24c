"""How long does the store take for one record of a pull, adjacent in the log or scattered?"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import append, codec
from benchmarks.results import CACHE, save
from benchmarks.timing import QUICK_ROUNDS, ROUNDS, measure, report, timings_table
from kappamq.clock import SystemClock
from kappamq.kernel import KERNEL
from kappamq.model.record import NewRecord
from kappamq.store.reading import FetchLimit
from kappamq.store.settings import StoreSettings
from kappamq.store.store import Store

PULLS: Final = 500
COUNT: Final = 32


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks pull", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args(arguments)
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        store = Store.open(Path(directory), StoreSettings(visible="written"), clock=SystemClock())
        try:
            append.append_records(store)
            record = NewRecord("Single", 0, bytes(codec.BODY_BYTES), b"", 1_700_000_000_000, codec.HOST, codec.HOST)
            store.append([record] * COUNT)
            store.publish_batches()
            timings = [
                measure("adjacent records", lambda: fetch(store, "Single"), rounds=rounds),
                measure("records between those of other queues", lambda: fetch(store, codec.TOPIC), rounds=rounds),
            ]
        finally:
            store.close()
    print(timings_table(timings))
    print(save("pull", {"quick": chosen.quick, "kernel": KERNEL, **report(timings)}))
    return 0


def fetch(store: Store, topic: str) -> int:
    """Pulls from the start of a queue; returns the number of records."""
    limit = FetchLimit(count=COUNT)
    return sum([store.fetch(topic, 0, 0, limit=limit).count for _ in range(PULLS)])

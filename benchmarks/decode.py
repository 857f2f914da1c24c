"""How long does it take to decode one record of a pull reply: to a message, and to a row of Arrow columns?"""

from __future__ import annotations

import argparse
from typing import Final

from benchmarks import codec
from benchmarks.results import save
from benchmarks.timing import QUICK_ROUNDS, ROUNDS, Timing, measure, report, timings_table
from kappamq.kernel import KERNEL
from kappamq.model.record import NewRecord, decode_records

RECORDS: Final = 10_000
PROJECTION: Final = ("queueOffset", "body")


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks decode", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args(arguments)
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    text = b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02TAGS\x01TagA\x02" + codec.STAMP
    record = NewRecord(codec.TOPIC, 1, bytes(codec.BODY_BYTES), text, 1_700_000_000_000, codec.HOST, codec.HOST)
    body = record.encode(queue_offset=1, log_offset=2, stored_at_ms=3, append_crc=True) * RECORDS
    timings = [
        measure("records to messages", lambda: sum([1 for _ in decode_records(body)]), rounds=rounds),
        measure(
            "the same, with properties",
            lambda: sum([1 for message in decode_records(body) if message.properties]),
            rounds=rounds,
        ),
    ]
    timings += columns(body, rounds)
    print(timings_table(timings))
    print(save("decode", {"quick": chosen.quick, "kernel": KERNEL, **report(timings)}))
    return 0


def columns(body: bytes, rounds: int) -> list[Timing]:
    """Rows as Spark gets them; none where pyarrow is not installed."""
    try:
        from kappamq.spark.columns import COLUMNS
        from kappamq.spark.decoding import Wanted, decode_batch
    except ImportError:
        return []
    everything, some = Wanted(COLUMNS, "b"), Wanted(PROJECTION, "b")
    return [
        measure("records to all columns", lambda: decode_batch(body, everything).num_rows, rounds=rounds),
        measure("records to two columns", lambda: decode_batch(body, some).num_rows, rounds=rounds),
    ]

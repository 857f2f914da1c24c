"""The methods for any thread, beside an owner that appends, publishes, rolls segments and deletes old ones."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic

from kappamq.clock import SystemClock
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.settings import StoreSettings
from kappamq.store.store import FetchLimit, FetchStatus, Store
from tests.faults.records import new_record

APPENDS = 1500
SECONDS_MAX = 60.0
SETTINGS = StoreSettings(
    segment_bytes=65536,
    queue_segment_bytes=2000,
    index_slots=101,
    index_entries=3000,
    log_bytes_max=400_000,
    queue_files_open_max=8,
    verify_bytes=1 << 30,
)


def test_readers_flushes_and_checkpoints_beside_the_owner(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SETTINGS, clock=SystemClock())
    stop = Event()

    def until_stopped(step: Callable[[], None]) -> int:
        rounds = 0
        while not stop.is_set():
            step()
            rounds += 1
            stop.wait(0.001)  # Lets the owner run, and changes where the others meet it.
        return rounds

    flushed = [0]

    def flush() -> None:
        flushed[0] = store.flush()

    def read_newest() -> None:
        for queue_id in range(4):
            start = max(store.min_offset("orders", queue_id), store.max_offset("orders", queue_id) - 40)
            fetched = store.fetch("orders", queue_id, start, limit=FetchLimit())
            if fetched.status is FetchStatus.FOUND:
                offsets = [message.queue_offset for message in decode_records(fetched.body)]
                assert offsets == list(range(fetched.next_offset - fetched.count, fetched.next_offset))

    def read_oldest() -> None:
        for queue_id in range(4):
            fetched = store.fetch("orders", queue_id, store.min_offset("orders", queue_id), limit=FetchLimit())
            for message in decode_records(fetched.body):
                assert message.queue_id == queue_id
            store.offset_at("orders", queue_id, 0)
            store.query("orders", "all", limit=10, begin_ms=0, end_ms=1 << 60)

    with ThreadPoolExecutor(5) as threads:
        steps = (flush, store.checkpoint, store.prepare_next_segment, read_newest, read_oldest)
        running = [threads.submit(until_stopped, step) for step in steps]
        deadline = monotonic() + SECONDS_MAX
        number = 0
        try:
            while number < APPENDS and monotonic() < deadline:
                store.append([new_record(b"x" * 200, queue_id=number % 4, keys=f"all k{number}") for _ in range(5)])
                store.mark_flushed(flushed[0])
                store.publish()
                number += 1
                if number % 50 == 0:
                    store.enforce_retention()
        finally:
            stop.set()
        assert all(future.result() > 0 for future in running)
    assert store.min_log_offset > 0
    store.close()
    assert [str(violation) for violation in check_store(tmp_path, SETTINGS).violations] == []
    reopened = Store.open(tmp_path, SETTINGS, clock=SystemClock())
    assert sum(reopened.max_offset("orders", queue_id) for queue_id in range(4)) == number * 5
    reopened.close()

"""Small records and stores for tests of the store."""

from pathlib import Path
from typing import Any

from kappamq.clock import ManualClock
from kappamq.model.record import NewRecord
from kappamq.store.settings import StoreSettings
from kappamq.store.store import Fetched, FetchLimit, FetchStatus, Store

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
ROOT = Path("/store")


def small_settings(**changes: Any) -> StoreSettings:
    """Settings with files so small that a few records fill them."""
    chosen: dict[str, Any] = {
        "segment_bytes": 8192,
        "queue_segment_bytes": 400,
        "index_slots": 17,
        "index_entries": 40,
        "verify_bytes": 0,
    }
    return StoreSettings(**{**chosen, **changes})


def new_record(
    body: bytes = b"hello",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
    unique_id: str = "",
) -> NewRecord:
    """A record with the usual properties."""
    pairs = (("KEYS", keys), ("UNIQ_KEY", unique_id), ("TAGS", tags))
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value)
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=text.encode(),
        born_at_ms=1_699_999_999_000,
        born_host=HOST,
        store_host=HOST,
    )


def open_store(files: Any, settings: StoreSettings | None = None, *, root: Path = ROOT, clock: Any = None) -> Store:
    """Open on a simulated (or, with None, the real) file system."""
    return Store.open(root, settings or small_settings(), clock=clock or ManualClock(), files=files)


def commit(store: Store) -> int:
    """Flush and publish everything; returns how many records became visible."""
    store.mark_flushed(store.flush())
    return len(store.publish())


def fetch_all(store: Store, topic: str = "orders", queue_id: int = 0) -> bytes:
    """All visible records of a queue."""
    start = store.min_offset(topic, queue_id)
    pieces: list[bytes] = []
    while True:
        fetched: Fetched = store.fetch(topic, queue_id, start, limit=FetchLimit())
        if fetched.status is not FetchStatus.FOUND:
            return b"".join(pieces)
        pieces.append(fetched.body)
        start = fetched.next_offset

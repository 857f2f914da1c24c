"""Packed sends leave the same bytes behind as records one by one."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappamq.clock import ManualClock
from kappamq.errors import DiskFull
from kappamq.kernel import scan_sends
from kappamq.kernel.reference import PLACE_ROW, QUEUE_ROW, SEND_ROW
from kappamq.model.record import NewRecord
from kappamq.store.check import check_store
from kappamq.store.plain_runs import PlainRun
from kappamq.store.segment import Segment
from kappamq.store.settings import UNIT_BYTES
from kappamq.store.store import Store
from kappamq.wire.frame import encode_frame
from kappamq.wire.headers import SendRequest
from tests.faults.records import HOST, small_settings

TOPICS = {b"orders": 4, b"other": 1}
STAMP = b"CLUSTER\x01c\x02"
PEER_V6 = bytes(range(20))


def frame(topic: str = "orders", queue_id: int = 0, *, body: bytes = b"body", text: str = "TAGS\x01a\x02") -> bytes:
    request = SendRequest(
        producer_group="pg",
        topic=topic,
        queue_id=queue_id,
        born_at_ms=5,
        flags=1,
        properties=f"{text}UNIQ_KEY\x01{queue_id}-{len(body)}",
    )
    return encode_frame(request.command(body=body))


def run_of(frames: Sequence[bytes], *, born_host: bytes = HOST) -> PlainRun:
    buffer = b"".join(frames)
    run = PlainRun(HOST, sources=[(buffer, born_host)], count=len(frames))
    end, count, _answers, unknown = scan_sends(
        buffer,
        0,
        run.rows,
        run.texts,
        run.targets,
        source=0,
        topics=TOPICS,
        stamp=STAMP,
        ids=bytearray(16),
        count_max=10_000,
        frame_bytes_max=1 << 20,
        body_bytes_max=1 << 20,
        text_bytes_max=30_000,
        batch_bytes_max=1 << 20,
    )
    assert (end, count, unknown) == (len(buffer), len(frames), None)
    return run


def records_of(run: PlainRun) -> list[NewRecord]:
    """The same sends, one by one."""
    records = []
    for row in SEND_ROW.iter_unpack(run.rows):
        name, queue_id = list(run.targets)[row[0]]
        topic = name.decode()
        buffer, born_host = run.sources[row[1]]
        body = buffer[row[4] : row[4] + row[5]]
        text = bytes(run.texts[row[6] : row[6] + row[7]])
        records.append(
            NewRecord(topic, queue_id, body, text, row[16], born_host, run.store_host, row[14], row[13], row[15])
        )
    return records


def contents(root: Path) -> dict[str, bytes]:
    """Log, queues and index of a store."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("commitlog", "consumequeue", "index")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


FRAMES = st.lists(
    st.builds(
        frame,
        st.just("orders"),
        st.integers(0, 3),
        body=st.binary(min_size=1, max_size=700),
        text=st.sampled_from(("", "TAGS\x01a\x02", "KEYS\x01k1 k2 é\x02", "TAGS\x01日本\x02")),
    )
    | st.builds(frame, st.just("other"), st.just(0), body=st.binary(min_size=1, max_size=50)),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
@given(st.lists(FRAMES, min_size=1, max_size=4), st.booleans(), st.sampled_from((HOST, PEER_V6)))
def test_both_ways_leave_the_same_bytes(reads: list[list[bytes]], append_crc: bool, born_host: bytes) -> None:
    found = []
    for packed in (True, False):
        runs = [run_of(frames, born_host=born_host) for frames in reads]
        with TemporaryDirectory() as directory:
            root = Path(directory)
            chosen = small_settings(append_crc=append_crc, visible="written", segment_bytes=4096, index_entries=20)
            store = Store.open(root, chosen, clock=ManualClock())
            places = b""
            arrivals = []
            for number, run in enumerate(runs):
                if packed:
                    store.append_run(run)
                    places += run.places
                else:
                    for place in store.append(records_of(run)):
                        places += PLACE_ROW.pack(place.log_offset, place.queue_offset, place.size)
                if number % 2:
                    arrivals += store.publish()
            arrivals += store.publish()
            store.close()
            assert not check_store(root, chosen).violations
            found.append((contents(root), places, arrivals))
    assert found[0] == found[1]


def test_a_run_is_visible_only_below_the_watermark(tmp_path: Path) -> None:
    store = Store.open(tmp_path, small_settings(), clock=ManualClock())
    batch = store.append_run(run_of([frame(queue_id=1), frame(queue_id=2), frame(queue_id=1)]))
    assert store.publish_batches() == []
    assert store.max_offset("orders", 1) == 0
    store.mark_flushed(store.flush())
    assert store.publish_batches() == [batch]
    assert (store.max_offset("orders", 1), store.max_offset("orders", 2)) == (2, 1)
    assert [(queue.queue_id, queue.start, queue.end) for queue in batch.queues] == [(1, 0, 2), (2, 0, 1)]
    assert batch.queues_among({("orders", 2), ("orders", 3), ("other", 1)}) == [batch.queues[1]]
    assert len(batch.queues[1].units) == UNIT_BYTES
    sizes = [row[4] for row in QUEUE_ROW.iter_unpack(batch.queue_rows)]
    assert sizes[0] == sum(arrival.size for arrival in batch.arrivals() if arrival.queue_id == 1)
    assert [arrival.queue_offset for arrival in batch.arrivals_of(batch.queues[0])] == [0, 1]
    store.close()


def test_a_deleted_topic_gets_no_entries_of_a_waiting_run(tmp_path: Path) -> None:
    store = Store.open(tmp_path, small_settings(), clock=ManualClock())
    store.append_run(run_of([frame(), frame("other")]))
    store.delete_topic("orders")
    store.mark_flushed(store.flush())
    assert [arrival.topic for arrival in store.publish()] == ["other"]
    assert not store.has_queue("orders", 0)
    store.close()


def test_a_full_disk_uses_up_no_offset(tmp_path: Path) -> None:
    store = Store.open(tmp_path, small_settings(visible="written"), clock=ManualClock())
    store._is_disk_full = True
    with pytest.raises(DiskFull):
        store.append_run(run_of([frame()]))
    store._is_disk_full = False
    store.append_run(run_of([frame()]))
    assert [arrival.queue_offset for arrival in store.publish()] == [0]
    store.close()


def test_entries_are_hot_while_their_records_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path, small_settings(visible="written", hot_bytes=100), clock=ManualClock())
    store.append_run(run_of([frame(), frame(), frame()]))
    store.publish()
    asked: list[list[tuple[int, int]]] = []

    def are_cached(_segment: Segment, runs: list[tuple[int, int]]) -> bool:
        asked.append(runs)
        return len(asked) > 1

    monkeypatch.setattr(Segment, "are_cached", are_cached)
    assert store.hot_entries("orders", 0, 0, 2) is None
    entries = store.hot_entries("orders", 0, 0, 2)
    assert entries is not None
    assert len(entries.units) == 40
    assert asked == [[(0, store.written // 3 * 2)]] * 2
    assert store.hot_entries("orders", 0, 3, 2) is None
    assert store.hot_entries("orders", 0, -1, 2) is None
    assert store.hot_entries("nobody", 0, 0, 2) is None
    store.close()
    store = Store.open(tmp_path, small_settings(visible="written"), clock=ManualClock())
    assert store.hot_entries("orders", 0, 0, 2) is None  # Written by another process: to be verified first.
    store.close()

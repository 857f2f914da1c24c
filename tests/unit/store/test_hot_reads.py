"""Windows of messages that can be handed out at once."""

from pathlib import Path

import pytest

from kappamq.clock import ManualClock
from kappamq.kernel import PullWindow
from kappamq.kernel.reference import PULL_BLOCK
from kappamq.store import hot_reads
from kappamq.store.hot_reads import WINDOW_LOG_BYTES, WINDOW_SECONDS, WINDOWS_MAX
from kappamq.store.segment import Segment
from kappamq.store.settings import UNIT_BYTES
from kappamq.store.store import Store
from tests.faults.records import new_record, small_settings


class Shop:
    """A store with one queue, and a clock to move."""

    def __init__(self, root: Path, count: int, *, segment_bytes: int = 1 << 20, hot_bytes: int = 1 << 30) -> None:
        self.clock = ManualClock()
        settings = small_settings(
            visible="written", segment_bytes=segment_bytes, hot_bytes=hot_bytes, queue_segment_bytes=UNIT_BYTES * 2000
        )
        self.store = Store.open(root, settings, clock=self.clock)
        self.add(count)

    def add(self, count: int) -> None:
        self.store.append([new_record(topic="orders", body=b"%04d" % number) for number in range(count)])
        self.store.publish()

    def window(self, start: int, count: int = 4) -> PullWindow | None:
        queue = self.store.queue("orders", 0)
        assert queue is not None
        return self.store.hot_reads.open_window(queue, start, count, count_max=32)

    @property
    def windows(self) -> dict[int, PullWindow]:
        queue = self.store.queue("orders", 0)
        assert queue is not None
        return queue.windows


def test_a_window_has_what_is_asked_for_next(tmp_path: Path) -> None:
    shop = Shop(tmp_path, 700)
    window = shop.window(10)
    assert window is not None
    # Whoever starts in this block finds as many as one may ask for.
    assert (window.first, window.stop, window.is_final, window.is_cold) == (10, PULL_BLOCK + 32, False, False)
    assert shop.windows == {0: window}
    last = shop.window(690, 32)
    assert last is not None
    assert (last.first, last.stop, last.is_final) == (690, 700, False)  # More would be there later.
    assert shop.windows == {0: window, 1: last}
    assert shop.window(700) is None
    assert shop.window(-1) is None
    shop.store.close()


def test_windows_do_not_outlive_what_they_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, 20)
    found = shop.store.hot_reads
    found.forget_old()
    assert shop.window(0) is not None
    shop.clock.advance(ms=int(WINDOW_SECONDS * 1000))
    found.forget_old()
    assert shop.windows
    shop.clock.advance(ms=1)
    found.forget_old()
    assert not shop.windows
    assert shop.window(0) is not None
    monkeypatch.setattr(hot_reads, "WINDOW_LOG_BYTES", WINDOW_LOG_BYTES >> 20)
    shop.add(1)
    found.forget_old()
    assert not shop.windows
    assert shop.window(0) is not None
    queue = shop.store.queue("orders", 0)
    assert queue is not None
    shop.store.delete_topic("orders")
    assert not queue.windows
    shop.store.close()


def test_a_queue_that_is_cut_or_trimmed_has_no_windows(tmp_path: Path) -> None:
    shop = Shop(tmp_path, 20)
    queue = shop.store.queue("orders", 0)
    assert queue is not None
    assert shop.window(0) is not None
    queue.trim(0)
    assert not shop.windows
    assert shop.window(0) is not None
    queue.cut(20, log_end=queue.log_end)
    assert not shop.windows
    shop.store.close()


def test_there_are_only_so_many_windows(tmp_path: Path) -> None:
    shop = Shop(tmp_path, 1200)
    for _ in range(WINDOWS_MAX):
        assert shop.window(0) is not None
    assert shop.window(600) is not None
    assert list(shop.windows) == [1]
    shop.store.close()


def test_who_goes_on_in_the_next_segment_is_for_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path, 100, segment_bytes=8192)
    first = shop.window(0)
    assert first is not None
    entries = shop.store.entries("orders", 0, 0, 100)
    border = next(entry.queue_offset for entry in entries if entry.log_offset >= 8192)
    # Halved until it lies in one segment.
    assert 4 <= first.stop <= border
    assert shop.window(border - 2) is None
    assert list(shop.windows.values()) == [first]
    second = shop.window(border)
    assert second is not None
    assert second.log_start == 8192
    shop.store.close()


def test_the_system_is_asked_about_records_that_were_not_written_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, 100, hot_bytes=100)
    size = shop.store.written // 100
    cached = 40 * size
    asked: list[list[tuple[int, int]]] = []

    def are_cached(_segment: Segment, runs: list[tuple[int, int]]) -> bool:
        asked.append(runs)
        return all(log_offset + length <= cached for log_offset, length in runs)

    monkeypatch.setattr(Segment, "are_cached", are_cached)
    window = shop.window(10)
    assert window is not None
    assert (window.stop, window.is_final, window.is_cold) == (14, False, True)
    assert asked == [[(10 * size, 90 * size)], [(10 * size, 4 * size)]]
    assert shop.window(38) is None
    monkeypatch.setattr(hot_reads, "LOOK_BYTES_MAX", 3 * size)
    small = shop.window(10)
    assert small is not None
    assert (small.stop, small.is_final) == (12, True)
    monkeypatch.setattr(hot_reads, "LOOK_BYTES_MAX", 0)
    assert shop.window(10) is None
    told: list[tuple[str, int, int, int]] = []

    def on_cold_read(topic: str, queue_id: int, start: int, end: int) -> int | None:
        told.append((topic, queue_id, start, end))
        return (12, None)[len(told) - 1]

    shop.store.hot_reads.on_cold_read = on_cold_read
    known = shop.window(10)
    assert known is not None
    assert (known.stop, known.is_final, known.is_cold) == (12, True, True)
    assert shop.window(10) is None
    assert told == [("orders", 0, 10, 100)] * 2
    shop.store.close()


def test_what_another_process_wrote_has_a_window_once_it_was_verified(tmp_path: Path) -> None:
    Shop(tmp_path, 20).store.close()
    shop = Shop(tmp_path, 0)
    assert shop.window(0) is None
    shop.store.mark_verified("orders", 0, 0, 6)
    window = shop.window(4)
    assert window is None or (window.stop, window.is_final) == (6, True)  # Nobody may know what is in memory.
    shop.store.close()

"""Counters of what went in and out, with the windows that RocketMQ's tools ask for."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kappamq.clock import Clock
from kappamq.kernel import Targets

KEYS_MAX: Final = 100_000
"""Most items kept; beyond it, new topics and groups are not counted one by one."""

_MINUTE_SAMPLES: Final = 7
_HOUR_SAMPLES: Final = 7
_DAY_SAMPLES: Final = 25
_SAMPLE_MS: Final = 10_000
_SAMPLES_PER_HOUR_WINDOW: Final = 60
_SAMPLES_PER_DAY_WINDOW: Final = 360


@dataclass(slots=True)
class Window:
    """What happened within one window: sum, per second, average cost."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True)
class DayCount:
    """A total of messages now, and as it was at the last two midnights (local time); 0 at the start."""

    now: int = 0
    today_morning: int = 0
    yesterday_morning: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second over the last 10, 60 and 600 seconds."""

    stored: list[float]
    fetched: list[float]
    missed: list[float]
    """Pulls that found nothing."""
    found: list[float]
    """Pulls that found something."""


@dataclass(slots=True)
class _Item:
    value: int = 0
    times: int = 0
    minute: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_MINUTE_SAMPLES))
    hour: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_HOUR_SAMPLES))
    day: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_DAY_SAMPLES))


class Statistics:
    """Named counters by key: `add` on the hot path, `sample` every ten seconds."""

    def __init__(self, *, clock: Clock, cluster: str, is_system_topic: Callable[[str], bool] = lambda _: False) -> None:
        """Topics for which `is_system_topic` holds do not count in the totals of a day."""
        self._clock = clock
        self._cluster = cluster
        self._is_system_topic = is_system_topic
        self._items: dict[tuple[str, str], _Item] = {}
        self._puts: dict[str, tuple[_Item, _Item]] = {}
        """Of `_items`, messages and bytes that were stored, by topic."""
        self._gets: dict[tuple[str, str], tuple[_Item, _Item]] = {}
        """Of `_items`, messages and bytes that were handed out, by topic and group."""
        self._targets = Targets()
        """They have counted for their topics what `_items` lacks yet."""
        self._samples = 0
        self.put_count = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.get_count = 0
        self.get_miss = 0
        self.get_found = 0
        self.boot_ms = clock.now_ms()
        self._totals: deque[tuple[float, int, int, int, int]] = deque(maxlen=601)
        self._forgotten = dict.fromkeys(_DAY_COUNTERS, 0)
        self._days = {name: DayCount() for name in _DAY_COUNTERS}
        self._today = _day_of(self.boot_ms)

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        item = self._items.get((name, key))
        if item is None:
            if len(self._items) >= KEYS_MAX:
                return
            item = self._items[name, key] = _Item()
        item.value += value
        item.times += times

    def stored(self, topic: str, count: int, size: int, times: int = 1) -> None:
        """Messages were stored in a topic, by that many requests."""
        self._stored_in_topic(topic, count, size, times)
        self._stored_in_all(count, size, times)

    def stored_run(self, targets: Targets, queues: bytes) -> None:
        """A run was stored, in hundreds of topics perhaps: each is looked at only when somebody asks."""
        if targets is not self._targets:
            self._collect()
            self._targets = targets
        self._stored_in_all(*targets.count(queues))

    def _collect(self) -> None:
        """Add to each topic what was counted for it meanwhile."""
        for topic, count, size, times in self._targets.take_stored():
            self._stored_in_topic(topic, count, size, times)

    def _stored_in_topic(self, topic: str, count: int, size: int, times: int) -> None:
        items = self._puts.get(topic)
        if items is None:
            items, is_kept = self._pair("TOPIC_PUT", topic)
            if is_kept:
                self._puts[topic] = items
        messages, sizes = items
        messages.value += count
        messages.times += times
        sizes.value += size
        sizes.times += times

    def _stored_in_all(self, count: int, size: int, times: int) -> None:
        self.put_count += count
        self.put_bytes += size
        self.add("BROKER_PUT_NUMS", self._cluster, count, times)

    def fetched(self, topic: str, group: str, count: int, size: int, times: int = 1) -> None:
        """Messages were handed to a group, by that many answers."""
        items = self._gets.get((topic, group))
        if items is None:
            items, is_kept = self._pair("GROUP_GET", f"{topic}@{group}")
            if is_kept:
                self._gets[topic, group] = items
        messages, sizes = items
        messages.value += count
        messages.times += times
        sizes.value += size
        sizes.times += times
        self.get_count += count
        self.get_found += times
        self.add("BROKER_GET_NUMS", self._cluster, count, times)

    def _pair(self, name: str, key: str) -> tuple[tuple[_Item, _Item], bool]:
        """The items for messages and for bytes, and whether both are kept rather than one too many."""
        names = (f"{name}_NUMS", f"{name}_SIZE")
        for each in names:
            self.add(each, key, 0, 0)
        messages, sizes = (self._items.get((each, key)) for each in names)
        return (messages or _Item(), sizes or _Item()), messages is not None and sizes is not None

    def sample_second(self) -> None:
        """Remember the totals, for rates over the last 10, 60 and 600 seconds. Called every second."""
        self._totals.append((self._clock.monotonic(), self.put_count, self.get_count, self.get_miss, self.get_found))

    def sample(self) -> None:
        """Remember where all counters stand. Called every ten seconds."""
        self._collect()
        now = self._clock.now_ms()
        for item in self._items.values():
            snapshot = (now, item.value, item.times)
            _append(item.minute, snapshot, before_ms=_SAMPLE_MS)
            if self._samples % _SAMPLES_PER_HOUR_WINDOW == 0:
                _append(item.hour, snapshot, before_ms=_SAMPLE_MS * _SAMPLES_PER_HOUR_WINDOW)
            if self._samples % _SAMPLES_PER_DAY_WINDOW == 0:
                _append(item.day, snapshot, before_ms=_SAMPLE_MS * _SAMPLES_PER_DAY_WINDOW)
        self._samples += 1
        today = _day_of(now)
        if today != self._today:
            self._today = today
            for name, day in self._days.items():
                day.yesterday_morning, day.today_morning = day.today_morning, self._total(name)

    def _total(self, name: str) -> int:
        counted = sum(
            item.value
            for (counter, key), item in self._items.items()
            if counter == name and not self._is_system_topic(key.partition("@")[0])
        )
        return counted + self._forgotten[name]

    def day_counts(self) -> tuple[DayCount, DayCount]:
        """Messages stored and messages handed out, system topics left out."""
        self._collect()
        for name, day in self._days.items():
            day.now = self._total(name)
        return self._days["TOPIC_PUT_NUMS"], self._days["GROUP_GET_NUMS"]

    def rates(self) -> Rates:
        """What happens per second."""
        figures: tuple[list[float], ...] = ([], [], [], [])
        if not self._totals:
            return Rates([0.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3)
        last = self._totals[-1]
        for seconds in (10, 60, 600):
            first = self._totals[max(0, len(self._totals) - 1 - seconds)]
            span = max(last[0] - first[0], 1e-9)
            for column, rates in enumerate(figures, start=1):
                rates.append((last[column] - first[column]) / span if last is not first else 0.0)
        return Rates(*figures)

    def tps(self, name: str, key: str) -> float:
        """Rate of one counter over the last minute, 0 for one that never moved."""
        item = self._items.get((name, key))
        return 0.0 if item is None else _window(item.minute).tps

    def windows(self, name: str, key: str) -> tuple[Window, Window, Window] | None:
        """Minute, hour and day of one counter; `None` for one that never moved."""
        if (name, key) not in self._items:
            self._collect()
        item = self._items.get((name, key))
        if item is None:
            return None
        return _window(item.minute), _window(item.hour), _window(item.day)

    def forget(self, key: str) -> None:
        """A topic or group is gone."""
        self._collect()
        self._puts.pop(key, None)
        for pair in [pair for pair in self._gets if key in "@".join(pair).split("@")]:
            del self._gets[pair]
        for name, known in [pair for pair in self._items if key in pair[1].split("@")]:
            item = self._items.pop((name, known))
            if name in self._forgotten and not self._is_system_topic(known.partition("@")[0]):
                self._forgotten[name] += item.value


_DAY_COUNTERS: Final = ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS")


def _day_of(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday


def _append(samples: deque[tuple[int, int, int]], snapshot: tuple[int, int, int], *, before_ms: int) -> None:
    if not samples:
        # The counter was born within the span that ends now: what it has counted so far belongs to it.
        samples.append((snapshot[0] - before_ms, 0, 0))
    samples.append(snapshot)


def _window(samples: deque[tuple[int, int, int]]) -> Window:
    if len(samples) < 2:
        return Window()
    (begin, first, first_times), (end, last, last_times) = samples[0], samples[-1]
    total = last - first
    times = last_times - first_times
    return Window(sum=total, tps=total * 1000 / max(end - begin, 1), avgpt=(total / times) if times else 0.0)

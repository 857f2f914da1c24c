"""Counters of what went in and out, with the windows that RocketMQ's tools ask for."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from kappamq.clock import Clock

KEYS_MAX: Final = 100_000
"""Most items kept; beyond it, new topics and groups are not counted one by one."""

_MINUTE_SAMPLES: Final = 7
_HOUR_SAMPLES: Final = 7
_DAY_SAMPLES: Final = 25


@dataclass(slots=True)
class Window:
    """What happened within one window: sum, per second, average cost."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True)
class _Item:
    value: int = 0
    times: int = 0
    minute: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_MINUTE_SAMPLES))
    hour: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_HOUR_SAMPLES))
    day: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_DAY_SAMPLES))


class Statistics:
    """Named counters by key: `add` on the hot path, `sample` every ten seconds."""

    def __init__(self, *, clock: Clock, cluster: str) -> None:
        self._clock = clock
        self._cluster = cluster
        self._items: dict[tuple[str, str], _Item] = {}
        self._samples = 0
        self.put_count = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.get_count = 0
        self.get_miss = 0
        self.boot_ms = clock.now_ms()
        self._totals: deque[tuple[float, int, int, int]] = deque(maxlen=601)

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        item = self._items.get((name, key))
        if item is None:
            if len(self._items) >= KEYS_MAX:
                return
            item = self._items[name, key] = _Item()
        item.value += value
        item.times += times

    def stored(self, topic: str, count: int, size: int) -> None:
        """Messages were stored in a topic."""
        self.put_count += count
        self.put_bytes += size
        self.add("TOPIC_PUT_NUMS", topic, count)
        self.add("TOPIC_PUT_SIZE", topic, size)
        self.add("BROKER_PUT_NUMS", self._cluster, count)

    def fetched(self, topic: str, group: str, count: int, size: int) -> None:
        """Messages were handed to a group."""
        key = f"{topic}@{group}"
        self.get_count += count
        self.add("GROUP_GET_NUMS", key, count)
        self.add("GROUP_GET_SIZE", key, size)
        self.add("BROKER_GET_NUMS", self._cluster, count)

    def sample_second(self) -> None:
        """Remember the totals, for rates over the last 10, 60 and 600 seconds. Called every second."""
        self._totals.append((self._clock.monotonic(), self.put_count, self.get_count, self.get_miss))

    def sample(self) -> None:
        """Remember where all counters stand. Called every ten seconds."""
        now = self._clock.now_ms()
        for item in self._items.values():
            snapshot = (now, item.value, item.times)
            item.minute.append(snapshot)
            if self._samples % 60 == 0:
                item.hour.append(snapshot)
            if self._samples % 360 == 0:
                item.day.append(snapshot)
        self._samples += 1

    def rates(self) -> tuple[list[float], list[float], list[float]]:
        """Stored, fetched and missed per second over the last 10, 60 and 600 seconds."""
        figures: tuple[list[float], list[float], list[float]] = ([], [], [])
        if not self._totals:
            return ([0.0] * 3, [0.0] * 3, [0.0] * 3)
        last = self._totals[-1]
        for seconds in (10, 60, 600):
            first = self._totals[max(0, len(self._totals) - 1 - seconds)]
            span = max(last[0] - first[0], 1e-9)
            for column, rates in enumerate(figures, start=1):
                rates.append((last[column] - first[column]) / span if last is not first else 0.0)
        return figures

    def windows(self, name: str, key: str) -> tuple[Window, Window, Window] | None:
        """Minute, hour and day of one counter; `None` for one that never moved."""
        item = self._items.get((name, key))
        if item is None:
            return None
        return _window(item.minute), _window(item.hour), _window(item.day)

    def forget(self, key: str) -> None:
        """A topic or group is gone."""
        for name, known in [pair for pair in self._items if key in pair[1].split("@")]:
            del self._items[name, known]


def _window(samples: deque[tuple[int, int, int]]) -> Window:
    if len(samples) < 2:
        return Window()
    (begin, first, first_times), (end, last, last_times) = samples[0], samples[-1]
    total = last - first
    times = last_times - first_times
    return Window(sum=total, tps=total * 1000 / max(end - begin, 1), avgpt=(total / times) if times else 0.0)

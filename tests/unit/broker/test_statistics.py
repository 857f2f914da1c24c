"""Counters and their windows."""

from kappamq.broker.statistics import Statistics
from kappamq.clock import ManualClock
from kappamq.kernel import QueueTail, Targets
from kappamq.kernel.reference import QUEUE_ROW

DAY_MS = 86_400_000


def statistics(clock: ManualClock) -> Statistics:
    return Statistics(clock=clock, cluster="c", is_system_topic=lambda topic: topic.startswith("sys"))


def test_a_young_counter_shows_what_it_has_counted() -> None:
    clock = ManualClock()
    figures = statistics(clock)
    figures.stored("t", 10, 1000)
    assert figures.tps("TOPIC_PUT_NUMS", "t") == 0.0
    clock.advance(ms=10_000)
    figures.sample()
    assert figures.tps("TOPIC_PUT_NUMS", "t") == 1.0
    assert figures.tps("TOPIC_PUT_NUMS", "unknown") == 0.0


def stored_run(figures: Statistics, targets: Targets, *, topic: str, count: int) -> None:
    target = targets.number_of(topic.encode(), 0)
    targets.set_tail(target, QueueTail())
    figures.stored_run(targets, QUEUE_ROW.pack(target, count, 1, 0, 100 * count))


def test_runs_count_for_their_topics_when_somebody_asks() -> None:
    figures = statistics(ManualClock())
    before, after = Targets(), Targets()
    stored_run(figures, before, topic="t", count=4)
    assert (figures.put_count, figures.put_bytes) == (4, 400)
    stored_run(figures, after, topic="t", count=3)
    stored_run(figures, before, topic="sys", count=50)
    assert figures.day_counts()[0].now == 7
    stored_run(figures, before, topic="u", count=2)
    assert figures.windows("TOPIC_PUT_NUMS", "u") is not None
    stored_run(figures, before, topic="u", count=2)
    figures.forget("u")
    assert figures.windows("TOPIC_PUT_NUMS", "u") is None
    assert figures.day_counts()[0].now == 11, "messages of topics that are gone still count for the day"
    figures.sample()
    windows = figures.windows("TOPIC_PUT_SIZE", "t")
    assert windows is not None
    assert (windows[0].sum, windows[0].avgpt) == (700, 350.0)


def test_the_minute_forgets_what_is_older_than_a_minute() -> None:
    clock = ManualClock()
    figures = statistics(clock)
    figures.stored("t", 600, 1000)
    for _ in range(8):
        clock.advance(ms=10_000)
        figures.sample()
    windows = figures.windows("TOPIC_PUT_NUMS", "t")
    assert windows is not None
    minute, hour, _ = windows
    assert (minute.sum, minute.tps) == (0, 0.0)
    assert hour.sum == 600


def test_rates_are_of_the_last_seconds() -> None:
    clock = ManualClock()
    figures = statistics(clock)
    figures.sample_second()
    for _ in range(20):
        clock.advance(ms=1000)
        figures.stored("t", 5, 10)
        figures.get_miss += 1
        figures.sample_second()
    rates = figures.rates()
    assert rates.stored == [5.0, 5.0, 5.0]
    assert rates.missed == [1.0, 1.0, 1.0]
    assert rates.found == [0.0, 0.0, 0.0]


def test_counts_of_a_day_roll_at_midnight_and_leave_system_topics_out() -> None:
    clock = ManualClock()
    figures = statistics(clock)
    figures.stored("t", 3, 10)
    figures.stored("sys", 100, 10)
    figures.fetched("t", "g", 2, 10)
    figures.sample()
    stored, fetched = figures.day_counts()
    assert (stored.now, stored.today_morning, fetched.now) == (3, 0, 2)
    clock.advance(ms=DAY_MS)
    figures.sample()
    figures.stored("t", 4, 10)
    stored, _ = figures.day_counts()
    assert (stored.now, stored.today_morning, stored.yesterday_morning) == (7, 3, 0)
    clock.advance(ms=DAY_MS)
    figures.sample()
    stored, _ = figures.day_counts()
    assert (stored.now, stored.today_morning, stored.yesterday_morning) == (7, 7, 3)


def test_totals_stay_when_a_topic_goes() -> None:
    figures = statistics(ManualClock())
    figures.stored("t", 3, 10)
    figures.fetched("t", "g", 2, 10)
    figures.forget("t")
    stored, fetched = figures.day_counts()
    assert (stored.now, fetched.now) == (3, 2)
    assert figures.windows("TOPIC_PUT_NUMS", "t") is None


def test_a_group_that_comes_back_counts_from_the_beginning() -> None:
    figures = statistics(ManualClock())
    figures.fetched("t", "g", 5, 500, times=2)
    figures.fetched("t", "g", 1, 100)
    found = {name: (item.value, item.times) for (name, key), item in figures._items.items() if key == "t@g"}
    assert found == {"GROUP_GET_NUMS": (6, 3), "GROUP_GET_SIZE": (600, 3)}
    for forgotten in ("g", "t"):
        figures.forget(forgotten)
        figures.fetched("t", "g", 4, 40)
        found = {name: (item.value, item.times) for (name, key), item in figures._items.items() if key == "t@g"}
        assert found == {"GROUP_GET_NUMS": (4, 1), "GROUP_GET_SIZE": (40, 1)}
    assert (figures.get_count, figures.get_found) == (14, 5)

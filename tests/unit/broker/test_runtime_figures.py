"""Figures under RocketMQ's names."""

from kappamq.broker.loop_lag import LagFigures
from kappamq.broker.runtime_figures import LogFigures, runtime_figures
from kappamq.broker.statistics import Statistics
from kappamq.clock import ManualClock
from kappamq.store.retention import DiskState

LOG = LogFigures(start=100, written=5000, flushed=3000, published=2000, earliest_stored_at_ms=-1)


def figures(disk: DiskState | None = None) -> dict[str, str]:
    clock = ManualClock()
    return runtime_figures(
        now_ms=clock.now_ms(),
        statistics=Statistics(clock=clock, cluster="c"),
        log=LOG,
        disk=disk or DiskState(0.25, 3 << 30, False),
        waiting_sends=2,
        lag=LagFigures(9, 0.5, 2, 3, 4),
    )


def test_the_log_and_what_lags_behind_it() -> None:
    shown = figures()
    assert (shown["commitLogMinOffset"], shown["commitLogMaxOffset"]) == ("100", "5000")
    assert shown["dispatchBehindBytes"] == "3000"
    assert shown["remainHowManyDataToFlush"] == "2.0 KiB"
    assert shown["sendThreadPoolQueueSize"] == "2"


def test_how_late_the_loop_is() -> None:
    shown = figures()
    assert [shown[f"loopLag{name}Millis"] for name in ("P50", "P99", "P999", "Max")] == [
        "0.500",
        "2.000",
        "3.000",
        "4.000",
    ]


def test_room_on_the_disk_is_for_people() -> None:
    assert figures()["commitLogDirCapacity"] == "Total : 4.0 GiB, Free : 3.0 GiB."
    full = figures(DiskState(1.0, 0, True))
    assert full["commitLogDirCapacity"] == "Total : 0 B, Free : 0 B."
    assert full["commitLogDiskRatio"] == "1.0"


def test_totals_that_tools_divide_by_are_never_zero() -> None:
    assert figures()["putMessageTimesTotal"] == "1"


def test_both_spellings_and_sorted_keys() -> None:
    shown = figures()
    assert shown["getTransferredTps"] == shown["getTransferedTps"] == "0.0 0.0 0.0"
    assert list(shown) == sorted(shown)
    assert not any("/" in name for name in shown), "no paths in names"

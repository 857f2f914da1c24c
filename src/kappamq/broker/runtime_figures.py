"""The broker's figures under RocketMQ's names, as its tools and consoles parse them.

A broker here has no thread pools, page-cache locks or off-heap buffers: what RocketMQ says about those is constant, and
only there because tools fail without it. Of our own are the `loopLag…` keys: how late the event loop was in the last
minute or two.
"""

from dataclasses import dataclass
from typing import Final

from kappamq.broker.loop_lag import LagFigures
from kappamq.broker.statistics import Statistics
from kappamq.store.retention import DiskState
from kappamq.wire.codes import PROTOCOL_VERSION_TEXT

_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
_CONSTANTS: Final = {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "brokerActive": "true",
    "dispatchMaxBuffer": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """Where the log stands."""

    start: int
    written: int
    flushed: int
    published: int
    earliest_stored_at_ms: int


def runtime_figures(
    *, now_ms: int, statistics: Statistics, log: LogFigures, disk: DiskState, waiting_sends: int, lag: LagFigures
) -> dict[str, str]:
    """All keys of a broker's run-time figures but those of delay levels, sorted."""
    stored, fetched = statistics.day_counts()
    rates = statistics.rates()
    per_second = {
        "putTps": rates.stored,
        "getFoundTps": rates.found,
        "getMissTps": rates.missed,
        "getTotalTps": [found + missed for found, missed in zip(rates.found, rates.missed, strict=True)],
        "getTransferredTps": rates.fetched,
        "getTransferedTps": rates.fetched,  # RocketMQ: the spelling of 4.9.
    }
    figures = dict(_CONSTANTS) | {name: _three(values) for name, values in per_second.items()}
    for pool in _POOLS:
        figures[f"{pool}ThreadPoolQueueSize"] = "0"
        figures[f"{pool}ThreadPoolQueueCapacity"] = "0"
        figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    figures["sendThreadPoolQueueSize"] = str(waiting_sends)
    figures |= {
        "bootTimestamp": str(statistics.boot_ms),
        "brokerVersionDesc": PROTOCOL_VERSION_TEXT,
        "commitLogDirCapacity": f"Total : {_size(_total(disk))}, Free : {_size(disk.usable_bytes)}.",
        "commitLogDiskRatio": str(disk.used_ratio),
        "commitLogMaxOffset": str(log.written),
        "commitLogMinOffset": str(log.start),
        "consumeQueueDiskRatio": str(disk.used_ratio),
        "dispatchBehindBytes": str(log.written - log.published),
        "earliestMessageTimeStamp": str(log.earliest_stored_at_ms),
        "loopLagMaxMillis": f"{lag.max_ms:.3f}",
        "loopLagP50Millis": f"{lag.p50_ms:.3f}",
        "loopLagP999Millis": f"{lag.p99_9_ms:.3f}",
        "loopLagP99Millis": f"{lag.p99_ms:.3f}",
        "msgGetTotalTodayMorning": str(fetched.today_morning),
        "msgGetTotalTodayNow": str(fetched.now),
        "msgGetTotalYesterdayMorning": str(fetched.yesterday_morning),
        "msgPutTotalTodayMorning": str(stored.today_morning),
        "msgPutTotalTodayNow": str(stored.now),
        "msgPutTotalYesterdayMorning": str(stored.yesterday_morning),
        "putMessageAverageSize": str(statistics.put_bytes / max(statistics.put_count, 1)),
        "putMessageFailedTimes": str(statistics.put_failed),
        "putMessageSizeTotal": str(statistics.put_bytes),
        "putMessageTimesTotal": str(max(statistics.put_count, 1)),  # RocketMQ: never 0, its tools divide by it.
        "remainHowManyDataToFlush": _size(log.written - log.flushed),
        "runtime": _duration(now_ms - statistics.boot_ms),
    }
    return dict(sorted(figures.items()))


def _three(values: list[float]) -> str:
    return " ".join(str(round(value, 6)) for value in values)


def _total(disk: DiskState) -> int:
    return round(disk.usable_bytes / max(1 - disk.used_ratio, 1e-9)) if disk.usable_bytes else 0


def _size(count: float) -> str:
    """Bytes for people: `0 B`, `1.5 GiB`."""
    size = float(count)
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{int(size)} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _duration(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(elapsed_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"

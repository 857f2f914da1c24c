"""The broker itself: settings, figures, housekeeping, what slaves ask for."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from kappamq.broker.appender import Appender
from kappamq.broker.handlers.broker_admin import BrokerAdminHandlers
from kappamq.broker.loop_lag import LoopLag
from kappamq.broker.router import Handler
from kappamq.wire.bodies import decode_table
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.broker.admin_desk import Desk, ask, value_of

DELAYS = {"offsetTable": {1: 3, 2: 0}}


class _Appender:
    unacknowledged = 5


def table(desk: Desk, delays: Mapping[str, Any] | None = None) -> Mapping[int, Handler]:
    return BrokerAdminHandlers(
        port=10911,
        settings=desk.settings,
        statistics=desk.statistics,
        store=desk.store,
        appender=cast(Appender, _Appender()),
        delay_table=lambda: dict(delays or DELAYS),
        lag=LoopLag(),
        indexing=asyncio.Lock(),
        clock=desk.clock,
    ).table()


# ── Settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_shown_without_paths(desk: Desk) -> None:
    reply = ask(table(desk), RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert (lines["brokerName"], lines["listenPort"], lines["traceOn"]) == ("b1", "10911", "true")
    assert str(desk.settings.current.data) not in reply.body.decode()
    assert '"counter":0' in reply.fields["version"]


def test_settings_change_all_or_none(desk: Desk) -> None:
    change = RequestCode.UPDATE_BROKER_CONFIG
    assert ask(table(desk), change, body=b"traceOn=false\nshortPollingTimeMills=200\n").code == 0
    assert (desk.settings.current.trace_on, desk.settings.current.short_polling_ms) == (False, 200)
    assert ask(table(desk), change, body=b"traceOn=true\nbrokerName=x").code == ResponseCode.NO_PERMISSION
    assert ask(table(desk), change, body=b"traceOn=true\nlongPollingEnable=x").code == ResponseCode.INVALID_PARAMETER
    assert ask(table(desk), change, body=b"\xff\xfe").code == ResponseCode.INVALID_PARAMETER
    assert ask(table(desk), change, body=b"#" * 70_000).code == ResponseCode.INVALID_PARAMETER
    assert desk.settings.current.trace_on is False


# ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_figures_have_every_key_that_tools_parse(desk: Desk) -> None:
    desk.topic("t")
    first_ms = desk.clock.now_ms()
    desk.append("t", 0, b"body")
    desk.statistics.stored("t", 1, 120)
    desk.statistics.stored("TBW102", 1, 120)
    desk.statistics.fetched("t", "g", 1, 120)
    desk.clock.advance(ms=93_784_000)
    figures = decode_table(ask(table(desk), RequestCode.GET_BROKER_RUNTIME_INFO).body)
    for name in ("putTps", "getTransferredTps", "getTransferedTps", "getFoundTps", "getMissTps", "getTotalTps"):
        assert [float(word) for word in figures[name].split(" ")] == [0.0, 0.0, 0.0]
    for name in _WHOLE_NUMBERS:
        assert int(figures[name]) >= -1, name
    for name in ("commitLogDiskRatio", "timerEnqueueTps", "timerDequeueTps"):
        assert float(figures[name]) >= 0, name
    assert figures["runtime"] == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert figures["earliestMessageTimeStamp"] == str(first_ms)
    assert figures["commitLogMaxOffset"] == str(desk.store.written)
    assert (figures["msgPutTotalTodayNow"], figures["msgGetTotalTodayNow"]) == ("1", "1")
    assert figures["putMessageSizeTotal"] == "240"
    assert figures["sendThreadPoolQueueSize"] == "5"
    assert figures["brokerVersionDesc"].startswith("V5_")
    assert figures["scheduleMessageOffset_1"] == "3,0"


_WHOLE_NUMBERS = (
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "earliestMessageTimeStamp",
    "pageCacheLockTimeMills",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "bootTimestamp",
    "dispatchBehindBytes",
)


def test_one_counter_is_shown_over_three_spans(desk: Desk) -> None:
    query = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "t"}
    assert ask(table(desk), RequestCode.VIEW_BROKER_STATS_DATA, query).code == ResponseCode.SYSTEM_ERROR
    desk.statistics.stored("t", 20, 100)
    desk.statistics.sample()
    value = value_of(ask(table(desk), RequestCode.VIEW_BROKER_STATS_DATA, query))
    assert value["statsMinute"] == {"avgpt": 20.0, "sum": 20, "tps": 2.0}
    assert value["statsHour"]["sum"] == 20
    assert value["statsDay"]["sum"] == 20


# ── Housekeeping and slaves ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def old_log(desk: Desk) -> Path:
    """A log whose first segment is past its retention."""
    for _ in range(3):
        desk.append("t", 0, b"x" * 500_000)
    desk.store.checkpoint()
    return sorted((desk.settings.current.data / "commitlog").iterdir())[0]


@pytest.mark.parametrize("code", [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE])
def test_expired_segments_go_on_command_at_any_hour(desk: Desk, old_log: Path, code: int) -> None:
    modified_ms = old_log.stat().st_mtime_ns // 1_000_000
    desk.clock.step(ms=modified_ms + 1000 - desk.clock.now_ms())
    assert ask(table(desk), code).code == 0
    assert old_log.exists()
    desk.clock.advance(ms=73 * 3_600_000)
    if time.localtime(desk.clock.now_ms() / 1000).tm_hour in desk.store.settings.delete_hours:
        desk.clock.advance(ms=3_600_000)
    assert desk.store.plan_retention().reason == "none"
    assert ask(table(desk), code).code == 0
    assert not old_log.exists()
    assert desk.store.settings.delete_hours == (4,)


def test_slaves_get_delay_offsets_and_empty_tables_of_what_is_not_here(desk: Desk) -> None:
    assert value_of(ask(table(desk), RequestCode.GET_ALL_DELAY_OFFSET))["offsetTable"] == {1: 3, 2: 0}
    assert value_of(ask(table(desk), RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)) == {"messageRequestModeMap": {}}
    assert value_of(ask(table(desk), RequestCode.GET_TIMER_METRICS))["timingCount"] == {}
    assert ask(table(desk), RequestCode.GET_TIMER_CHECK_POINT).code == ResponseCode.SYSTEM_ERROR


def test_slaves_get_the_head_of_the_timer_check_point(desk: Desk) -> None:
    config = desk.settings.current.data / "config"
    config.mkdir(exist_ok=True)
    (config / "timercheck").write_bytes(bytes(range(56)) + bytes(4040))
    assert ask(table(desk), RequestCode.GET_TIMER_CHECK_POINT).body == bytes(range(56))


def test_a_master_without_slaves_says_so(desk: Desk) -> None:
    desk.append("t", 0, b"x")
    value = value_of(ask(table(desk), RequestCode.GET_BROKER_HA_STATUS))
    assert (value["master"], value["haConnectionInfo"], value["inSyncSlaveNums"]) == (True, [], 0)
    assert value["masterCommitLogMaxOffset"] == desk.store.written

"""The broker itself: settings, figures, housekeeping on command, and what its slaves ask for."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kappamq.broker.appender import Appender
from kappamq.broker.loop_lag import LoopLag
from kappamq.broker.rocketmq_keys import CHANGES_BYTES_MAX, parse_changes, shown_settings
from kappamq.broker.router import Handler
from kappamq.broker.runtime_figures import LogFigures, runtime_figures
from kappamq.broker.runtime_settings import RuntimeSettings
from kappamq.broker.statistics import Statistics, Window
from kappamq.clock import Clock
from kappamq.errors import ConfigError, Refused
from kappamq.model.config import DataVersion
from kappamq.model.names import SCHEDULE_TOPIC
from kappamq.net.connection import Connection
from kappamq.store.config_files import load_config
from kappamq.store.retention import RetentionReport
from kappamq.store.store import Store
from kappamq.wire.admin_bodies import (
    WindowFigures,
    encode_counter,
    encode_property_text,
    encode_replication_status,
)
from kappamq.wire.bodies import encode_object, encode_table
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import BrokerStatsRequest, decode_fields

TIMER_CHECK_POINT_BYTES: Final = 56
"""Length of the used head of RocketMQ's `timercheck` file."""

DelayTable = Callable[[], dict[str, Any]]
"""Content of `delayOffset.json` as it would be saved now."""


class BrokerAdminHandlers:
    """Requests 25, 26, 28, 45, 60, 61, 306, 315, 329, 402 and 907."""

    def __init__(
        self,
        *,
        port: int,
        settings: RuntimeSettings,
        statistics: Statistics,
        store: Store,
        appender: Appender,
        delay_table: DelayTable,
        lag: LoopLag,
        indexing: asyncio.Lock,
        clock: Clock,
    ) -> None:
        """`indexing` is held while the key index changes."""
        self._indexing = indexing
        self._lag = lag
        self._port = port
        self._settings = settings
        self._statistics = statistics
        self._store = store
        self._appender = appender
        self._delay_table = delay_table
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.change_settings,
            RequestCode.GET_BROKER_CONFIG: self.show_settings,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.figures,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.GET_TIMER_CHECK_POINT: self.timer_check_point,
            RequestCode.GET_TIMER_METRICS: self.timer_metrics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.delete_expired,
            RequestCode.VIEW_BROKER_STATS_DATA: self.counter,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
            RequestCode.GET_BROKER_HA_STATUS: self.replication,
        }

    # ── Settings ────────────────────────────────────────────────────────────────────────────────────────────────────

    def show_settings(self, _: Connection, request: Command) -> Command:
        version = encode_object(self._settings.version).decode()
        body = encode_property_text(shown_settings(self._settings.current, port=self._port))
        return request.reply(fields={"version": version}, body=body)

    def change_settings(self, _: Connection, request: Command) -> Command:
        """Change settings until the next start, all of the request or none."""
        if len(request.body) > CHANGES_BYTES_MAX:
            raise ConfigError(f"{len(request.body)} bytes of changes are too many: send at most {CHANGES_BYTES_MAX}")
        try:
            text = request.body.decode()
        except UnicodeDecodeError:
            raise ConfigError("the changes are not UTF-8 text: send key=value lines") from None
        self._settings.change(parse_changes(text))
        return request.reply()

    # ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def figures(self, _: Connection, request: Command) -> Command:
        store = self._store
        disk = await asyncio.to_thread(store.disk_state)
        log = LogFigures(
            start=store.min_log_offset,
            written=store.written,
            flushed=store.flushed,
            published=store.published,
            earliest_stored_at_ms=store.earliest_stored_at(),
        )
        figures = runtime_figures(
            now_ms=self._clock.now_ms(),
            statistics=self._statistics,
            log=log,
            disk=disk,
            waiting_sends=self._appender.unacknowledged,
            lag=self._lag.figures(),
        )
        for level, delivered in (self._delay_table().get("offsetTable") or {}).items():
            end = store.max_offset(SCHEDULE_TOPIC, int(level) - 1)
            figures[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
        return request.reply(body=encode_table(figures))

    def counter(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, BrokerStatsRequest)
        windows = self._statistics.windows(query.stats_name, query.stats_key)
        if windows is None:
            raise Refused(
                f"The stats <{query.stats_name}> <{query.stats_key}> not exist", code=ResponseCode.SYSTEM_ERROR
            )
        minute, hour, day = map(_figures_of, windows)
        return request.reply(body=encode_counter(minute=minute, hour=hour, day=day))

    # ── Housekeeping ────────────────────────────────────────────────────────────────────────────────────────────────

    async def delete_expired(self, _: Connection, request: Command) -> Command:
        """Delete what is past its retention now, whatever the hour; queues and index go with the log."""
        async with self._indexing:
            report = _plan_now(self._store)
        await asyncio.to_thread(self._store.delete_files, report.paths)
        return request.reply()

    # ── Slaves ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def delay_offsets(self, _: Connection, request: Command) -> Command:
        return request.reply(body=encode_object(self._delay_table()))

    async def timer_check_point(self, _: Connection, request: Command) -> Command:
        path = self._config / "timercheck"
        data = await asyncio.to_thread(_head_of, path)
        if len(data) < TIMER_CHECK_POINT_BYTES:
            raise Refused("The timer checkpoint is null", code=ResponseCode.SYSTEM_ERROR)
        return request.reply(body=data)

    async def timer_metrics(self, _: Connection, request: Command) -> Command:
        saved = await asyncio.to_thread(load_config, self._config / "timermetrics")
        return request.reply(body=encode_object(saved or {"dataVersion": DataVersion(), "timingCount": {}}))

    @property
    def _config(self) -> Path:
        return self._settings.current.data / "config"

    def request_modes(self, _: Connection, request: Command) -> Command:
        """Which groups consume by popping: none here."""
        return request.reply(body=encode_object({"messageRequestModeMap": {}}))

    def replication(self, _: Connection, request: Command) -> Command:
        return request.reply(body=encode_replication_status(log_end=self._store.written))


def _figures_of(window: Window) -> WindowFigures:
    return WindowFigures(sum=window.sum, tps=window.tps, avgpt=window.avgpt)


def _plan_now(store: Store) -> RetentionReport:
    """A plan that takes any hour of the day as one for deleting. No await in here: the setting is back at once."""
    regular = store.settings
    store.settings = replace(regular, delete_hours=tuple(range(24)))
    try:
        return store.plan_retention()
    finally:
        store.settings = regular


def _head_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(TIMER_CHECK_POINT_BYTES)
    except FileNotFoundError:
        return b""

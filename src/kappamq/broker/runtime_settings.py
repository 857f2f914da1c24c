"""The broker's settings as they stand now: an administrator may change some of them while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kappamq.broker.settings import BrokerSettings
from kappamq.clock import Clock
from kappamq.model.config import DataVersion

SettingsListener = Callable[[BrokerSettings, BrokerSettings], None]
"""Called with the settings before and after a change."""


class RuntimeSettings:
    """Holds one frozen `BrokerSettings` after the other; who must see changes reads `current` each time, or listens."""

    def __init__(self, settings: BrokerSettings, *, clock: Clock) -> None:
        self._clock = clock
        self._listeners: list[SettingsListener] = []
        self.current = settings
        self.version = DataVersion(timestamp=clock.now_ms())

    def listen(self, listener: SettingsListener) -> None:
        """Hear of every change from now on."""
        self._listeners.append(listener)

    def change(self, values: Mapping[str, object]) -> None:
        """Take new values; keys are fields of the settings, with `store.` in front for those of the store.

        All or none: raises `ConfigError` when the settings that result are not valid.
        """
        before = self.current
        own: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
        of_store: dict[str, Any] = {
            name.removeprefix("store."): value for name, value in values.items() if name.startswith("store.")
        }
        after = replace(before, **own, store=replace(before.store, **of_store))
        if after == before:
            return
        self.current = after
        self.version = self.version.next(self._clock.now_ms())
        for listener in self._listeners:
            listener(before, after)

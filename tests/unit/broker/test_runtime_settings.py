"""Settings that change while the broker runs."""

import pytest

from kappamq.broker.runtime_settings import RuntimeSettings
from kappamq.broker.settings import BrokerSettings
from kappamq.clock import ManualClock
from kappamq.errors import ConfigError


def test_listeners_hear_of_real_changes_only() -> None:
    runtime = RuntimeSettings(BrokerSettings(name="b"), clock=ManualClock())
    heard: list[tuple[bool, bool]] = []
    runtime.listen(lambda before, after: heard.append((before.long_polling, after.long_polling)))
    runtime.change({"long_polling": True})
    assert (heard, runtime.version.counter) == ([], 0)
    runtime.change({"long_polling": False, "store.retention_hours": 5})
    assert heard == [(True, False)]
    assert runtime.current.store.retention_hours == 5
    assert runtime.version.counter == 1


def test_settings_that_make_no_sense_change_nothing() -> None:
    runtime = RuntimeSettings(BrokerSettings(name="b"), clock=ManualClock())
    before = runtime.current
    with pytest.raises(ConfigError):
        runtime.change({"long_polling": False, "template_queues": 0})
    assert runtime.current is before

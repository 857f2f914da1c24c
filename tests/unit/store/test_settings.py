"""Settings are checked when they are built."""

from typing import Any

import pytest

from kappamq.errors import ConfigError
from kappamq.store.settings import DELAY_LEVELS_MS, StoreSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes": 100},
        {"queue_segment_bytes": 10},
        {"index_entries": 1},
        {"visible": "maybe"},
        {"on_damage": "ignore"},
        {"disk_full_ratio": 1.5},
        {"disk_delete_ratio": 0.95},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StoreSettings(**wrong)


def test_defaults_are_those_of_rocketmq() -> None:
    settings = StoreSettings()
    assert (settings.segment_bytes, settings.queue_file_bytes) == (1_073_741_824, 6_000_000)
    assert len(DELAY_LEVELS_MS) == 18
    assert (DELAY_LEVELS_MS[0], DELAY_LEVELS_MS[-1]) == (1000, 7_200_000)


def test_queue_files_hold_whole_entries() -> None:
    assert StoreSettings(queue_segment_bytes=101).queue_file_bytes == 120

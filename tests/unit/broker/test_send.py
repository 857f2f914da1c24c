"""Which sends are answered before the disk has them."""

import pytest

from kappamq.broker.handlers.send import _asks_not_to_wait


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("WAIT\x01false\x02", True),
        ("KEYS\x01k\x02WAIT\x01false", True),
        ("WAIT\x01true\x02", False),
        ("NOWAIT\x01false\x02", False),
        ("NOWAIT\x01false\x02WAIT\x01true\x02", False),
        ("", False),
    ],
)
def test_only_the_property_wait_skips_the_disk(text: str, asks: bool) -> None:
    assert _asks_not_to_wait(text) is asks

"""Recall handles."""

import pytest

from kappamq.broker.recalls import RecallHandle, recall_handle
from kappamq.errors import UsageError
from kappamq.model.properties import encode_properties

# The worked example of the client specification.
EXAMPLE = "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3NTgyODE0MDAwMDAgQzBBODAxMEEzMDM5MThCNEFBQzI1RUYzNDBCQjAwMDU="


def test_the_known_handle() -> None:
    handle = RecallHandle.decode(EXAMPLE)
    assert (handle.topic, handle.broker, handle.deliver_at_ms) == ("TopicTest", "broker-a", 1758281400000)
    assert handle.encode() == EXAMPLE


@pytest.mark.parametrize("text", ["", "no base64!", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw==", "djEgYQ==", "A" * 4096])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="recall handle"):
        RecallHandle.decode(text)


def test_a_handle_names_the_tick_of_a_timed_message_but_no_recall_has_one() -> None:
    properties = {"TIMER_OUT_MS": "5000", "UNIQ_KEY": "A"}
    handle = recall_handle("orders", "broker-a", encode_properties(properties))
    assert handle is not None
    assert RecallHandle.decode(handle) == RecallHandle("orders", "broker-a", 5001, "A")
    assert recall_handle("orders", "broker-a", encode_properties({**properties, "TIMER_DEL_UNIQKEY": "x"})) is None
    assert recall_handle("orders", "broker-a", encode_properties({"UNIQ_KEY": "A"})) is None

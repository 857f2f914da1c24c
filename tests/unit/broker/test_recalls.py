"""Which messages may be taken back."""

from kappamq.broker.recalls import recall_handle
from kappamq.model.properties import encode_properties
from kappamq.model.recalls import RecallHandle


def test_a_handle_names_the_tick_of_a_timed_message_but_no_recall_has_one() -> None:
    properties = {"TIMER_OUT_MS": "5000", "UNIQ_KEY": "A"}
    handle = recall_handle("orders", "broker-a", encode_properties(properties))
    assert handle is not None
    assert RecallHandle.decode(handle) == RecallHandle("orders", "broker-a", 5001, "A")
    assert recall_handle("orders", "broker-a", encode_properties({**properties, "TIMER_DEL_UNIQKEY": "x"})) is None
    assert recall_handle("orders", "broker-a", encode_properties({"UNIQ_KEY": "A"})) is None

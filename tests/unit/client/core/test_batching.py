"""Batches: what may travel together, and how a list is cut."""

import pytest

from kappamq.client.core.batching import check_batch, item_bytes_max, split_batches
from kappamq.errors import InvalidMessage, UsageError
from kappamq.model.message import Message
from kappamq.model.properties import encode_properties
from kappamq.wire.batch import BatchItem, encode_batch


def message(body: bytes = b"x", *, topic: str = "T", wait_stored: bool = True, **properties: str) -> Message:
    return Message(topic, body, wait_stored=wait_stored, properties=properties)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "empty"),
        ([message(), message(topic="U")], "message 1 of the batch goes to topic 'U', message 0 to 'T'"),
        ([message(), message(wait_stored=False)], "message 1 of the batch has wait_stored=False, message 0 True"),
        ([message(), message(), message(DELAY="3")], "message 2 of the batch is delayed"),
        ([message(TIMER_DELIVER_MS="1")], "message 0 of the batch is delayed"),
        ([message(TIMER_DELAY_SEC="1")], "message 0 of the batch is delayed"),
        ([message(TIMER_DELAY_MS="1")], "message 0 of the batch is delayed"),
        ([message(topic="%RETRY%g")], "holds retries"),
    ],
)
def test_what_may_not_travel_together(messages: list[Message], says: str) -> None:
    with pytest.raises(InvalidMessage, match=says):
        check_batch(messages)
    with pytest.raises(InvalidMessage, match=says):
        split_batches(messages)


def test_what_may() -> None:
    check_batch([message(DELAY="0"), message(a="b"), message(b"y" * 1000)])


def test_cut_at_the_limit() -> None:
    messages = [message(b"x" * size) for size in (40, 60, 1, 100, 50, 50)]
    batches = split_batches(messages, bytes_max=100, size_of=lambda one: len(one.body))
    assert [[len(one.body) for one in batch] for batch in batches] == [[40, 60], [1], [100], [50, 50]]


def test_one_message_too_large_sends_nothing() -> None:
    with pytest.raises(InvalidMessage, match="message 1 of the batch takes 101 bytes, a batch at most 100"):
        split_batches([message(), message(b"x" * 101)], bytes_max=100, size_of=lambda one: len(one.body))


def test_no_room_at_all() -> None:
    with pytest.raises(UsageError, match="allow more"):
        split_batches([message()], bytes_max=0)


def test_the_bound_holds_for_the_encoded_item() -> None:
    sent = Message("T", b"body", tags="ä", keys=["k1", "k2"], properties={"né": "wert"}, wait_stored=False)
    properties = {"TAGS": "ä", "KEYS": "k1 k2", "né": "wert", "WAIT": "false", "UNIQ_KEY": "A" * 56}
    encoded = encode_batch([BatchItem(sent.body, encode_properties(properties).encode())])
    assert item_bytes_max(sent) == len(encoded)

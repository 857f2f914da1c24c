"""Splitting keeps every message, in order, within the limit, and never cuts earlier than it must."""

from hypothesis import given
from hypothesis import strategies as st

from kappamq.client.core.batching import split_batches
from kappamq.model.message import Message


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(100, 300))
def test_split(sizes: list[int], bytes_max: int) -> None:
    messages = [Message("T", bytes(size)) for size in sizes]
    batches = list(split_batches(messages, bytes_max=bytes_max, size_of=lambda message: len(message.body)))
    assert [message for batch in batches for message in batch] == messages
    totals = [sum(len(message.body) for message in batch) for batch in batches]
    assert all(batch for batch in batches)
    assert max(totals) <= bytes_max
    for total, following in zip(totals, batches[1:], strict=False):
        assert total + len(following[0].body) > bytes_max

"""Both readers of records do the same: the same objects, the same columns, the same words about damaged bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.client.core.receiving import decode_pull
from kappamq.errors import CorruptRecord, KappaError
from kappamq.kernel import columns_reference as reference
from kappamq.model.selector import Selector
from kappamq.spark.columns import COLUMNS
from kappamq.spark.decoding import Wanted, batch_of_messages, decode_batch
from tests.contract.record_traffic import property_bytes, records, replies

compiled = pytest.importorskip("kappamq.kernel._columns", reason="the compiled kernel is not built")


def outcome(function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str, Any]:
    """What a call returns, or what its error says."""
    try:
        return "returned", function(*arguments, **named)
    except (KappaError, ValueError) as fault:
        return type(fault).__name__, str(fault)


def fields(*values: Any) -> tuple[Any, ...]:
    return values


def test_both_are_of_one_interface() -> None:
    assert compiled.INTERFACE == reference.INTERFACE


@settings(deadline=None)
@given(replies(), st.integers(-300, 300))
def test_objects(data: bytes, at: int) -> None:
    for buffer in (data, bytearray(data), memoryview(data)):
        wanted = outcome(reference.decode_records, buffer, fields, "b")
        assert outcome(compiled.decode_records, buffer, fields, "b") == wanted
    for place in (0, at):
        wanted = outcome(reference.decode_record, data, place, fields, "b")
        assert outcome(compiled.decode_record, data, place, fields, "b") == wanted


@given(property_bytes() | st.text(st.sampled_from("ab\x01\x02é"), max_size=12).map(str.encode))
def test_properties(data: bytes) -> None:
    text = data.decode()
    assert list(compiled.decode_properties(text).items()) == list(reference.decode_properties(text).items())


def test_properties_with_half_of_a_pair() -> None:
    text = "a\x01\ud800\x02b\x01c"
    assert compiled.decode_properties(text) == reference.decode_properties(text)


def rows(data: bytes, wanted: Wanted) -> Any:
    """What `decode_batch` must make of a reply: message by message."""
    return batch_of_messages(
        [
            message
            for message in decode_pull(data, broker=wanted.broker)
            if (wanted.start is None or message.queue_offset >= wanted.start)
            and (wanted.end is None or message.queue_offset < wanted.end)
            and (wanted.selector is None or wanted.selector.matches(message.properties))
        ],
        wanted.columns,
    ).to_pylist()


CHOSEN = st.sets(st.sampled_from(COLUMNS), min_size=1).map(lambda names: tuple(sorted(names))) | st.just(COLUMNS)
RANGE = st.none() | st.integers(0, 20)


@settings(deadline=None)
@given(replies(), CHOSEN, RANGE, RANGE, st.sampled_from((None, "*", "a || é", "TAGS IS NOT NULL")))
def test_columns(data: bytes, columns: tuple[str, ...], start: int | None, end: int | None, chosen: str | None) -> None:
    selector = Selector.parse(chosen, "SQL92" if chosen and "NULL" in chosen else "TAG")
    wanted = Wanted(columns, "broker-a", start, end, selector)
    expected = outcome(rows, data, wanted)
    if expected[0] == "RemoteProtocolError":
        # A body that is not what its flags say is an error only for those who want the bodies.
        assert "body" not in columns or outcome(decode_batch, data, wanted)[0] in ("RemoteProtocolError", "returned")
        return
    found = outcome(decode_batch, data, wanted)
    if found[0] == "returned":
        found[1].validate(full=True)
        found = ("returned", found[1].to_pylist())
    assert found == expected


@settings(deadline=None)
@given(st.lists(records(is_plain=True), min_size=1, max_size=6), st.data())
def test_columns_of_chosen_records(stored: list[bytes], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(stored))), max_size=6))
    starts = np.cumsum([0, *map(len, stored)])
    batch = decode_batch(b"".join(stored), Wanted(COLUMNS, "b"), starts[np.array(chosen, dtype=np.int64)])
    expected = batch_of_messages(decode_pull(b"".join([stored[n] for n in chosen]), broker="b"), COLUMNS)
    assert batch.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("at", [-1, 100_000, 2**62, -(2**63)])
def test_no_record_lies_outside(at: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_batch(bytes(200), Wanted(("body",), "b"), np.array([at], dtype=np.int64))
    with pytest.raises(CorruptRecord):
        compiled.decode_record(bytes(200), at, fields, "")


def test_starts_that_are_cut_short() -> None:
    with pytest.raises(ValueError, match="cut short"):
        compiled.decode_columns(b"", ("body",), starts=b"1234567", first=None, end=None, tags=None)

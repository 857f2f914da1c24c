"""What a send request carries."""

from __future__ import annotations

import pytest

from kappamq.client.compression import Compression
from kappamq.client.core.preparing import check_message, delay_properties, prepare, prepare_batch
from kappamq.errors import InvalidMessage, InvalidName, UsageError
from kappamq.model.message import Flags, Message
from kappamq.model.properties import decode_properties
from kappamq.wire.batch import decode_batch


def test_properties_hold_tags_keys_and_the_unique_id() -> None:
    message = Message("orders", b"x", tags="t", keys=["a", "b"], properties={"p": "q"}, wait_stored=False, flag=3)
    prepared = prepare(message, "ID")
    assert decode_properties(prepared.properties) == {
        "TAGS": "t",
        "KEYS": "a b",
        "WAIT": "false",
        "UNIQ_KEY": "ID",
        "p": "q",
    }
    assert (prepared.message_id, prepared.body, prepared.flags, prepared.flag) == ("ID", b"x", 0, 3)


def test_a_resent_message_keeps_its_id() -> None:
    assert prepare(Message("orders", b"x", properties={"UNIQ_KEY": "OLD"}), "NEW").message_id == "OLD"


def test_flags_tell_of_compression_and_transactions() -> None:
    large = prepare(Message("orders", b"x" * 5000), "ID", compression=Compression.ZLIB)
    assert large.flags == Flags.COMPRESSED | Flags.ZLIB
    half = prepare(Message("orders", b"x"), "ID", extra={"TRAN_MSG": "true"})
    assert half.flags == Flags.PREPARED


def test_batches_carry_one_id_for_each_message() -> None:
    messages = [Message("orders", b"1", tags="t"), Message("orders", b"2")]
    prepared = prepare_batch(messages, ["A", "B"], body_bytes_max=1000)
    assert prepared.message_id == "A,B"
    items = decode_batch(prepared.body)
    assert [item.body for item in items] == [b"1", b"2"]
    assert decode_properties(items[0].properties.decode()) == {"UNIQ_KEY": "A", "WAIT": "true", "TAGS": "t"}
    with pytest.raises(InvalidMessage, match="over the limit of 50"):
        prepare_batch(messages, ["A", "B"], body_bytes_max=50)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"delay_level": 0}, {}),
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"deliver_at_ms": 9}, {"TIMER_DELIVER_MS": "9"}),
        ({"delay_ms": 0}, {"TIMER_DELAY_MS": "0"}),
    ],
)
def test_delays(given: dict[str, int], expected: dict[str, str]) -> None:
    names = ("delay_level", "deliver_at_ms", "delay_ms")
    assert delay_properties(**{name: given.get(name) for name in names}) == expected


@pytest.mark.parametrize("given", [{"delay_level": 19}, {"delay_ms": -1}, {"delay_level": 1, "delay_ms": 1}])
def test_impossible_delays(given: dict[str, int]) -> None:
    names = ("delay_level", "deliver_at_ms", "delay_ms")
    with pytest.raises(UsageError):
        delay_properties(**{name: given.get(name) for name in names})


def test_reserved_names_that_ask_for_something_are_allowed() -> None:
    check_message(Message("orders", b"x", properties={"DELAY": "1", "__SHARDINGKEY": "k"}), body_bytes_max=10)
    with pytest.raises(InvalidMessage, match="reserved"):
        check_message(Message("orders", b"x", properties={"RETRY_TOPIC": "t"}), body_bytes_max=10)
    with pytest.raises(InvalidName):
        check_message(Message("bad topic", b"x"), body_bytes_max=10)

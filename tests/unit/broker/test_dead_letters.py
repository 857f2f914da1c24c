"""Rules for what a group could not consume."""

from dataclasses import replace

import pytest

from kappamq.broker.dead_letters import CAUSE_BYTES_MAX, Failure, dead_letter_properties, is_dead, retry_record
from kappamq.model.properties import decode_properties, encode_properties
from kappamq.model.record import NewRecord, decode_record

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
OTHER_HOST = bytes([127, 0, 0, 2, 0, 0, 42, 159])
FAILURE = Failure(group="workers", delay_level=0, retry_count_max=16)


def stored(retry_count: int = 0, **properties: str):  # type: ignore[no-untyped-def]
    text = encode_properties({"TAGS": "T", **properties})
    record = NewRecord("orders", 3, b"body", text.encode(), 5, HOST, OTHER_HOST, 9, 1, retry_count, 77)
    return decode_record(record.encode(queue_offset=1, log_offset=4096, stored_at_ms=6, append_crc=True))


@pytest.mark.parametrize("failures", [0, 1, 15])
def test_each_failure_waits_a_level_longer(failures: int) -> None:
    record = retry_record(stored(failures), FAILURE, queue_id=2, store_host=HOST)
    properties = decode_properties(record.properties.decode())
    assert (record.topic, record.queue_id) == ("%RETRY%workers", 2)
    assert properties["DELAY"] == str(3 + failures)
    assert (record.retry_count, record.prepared_offset) == (failures + 1, 0)
    assert (record.born_at_ms, record.store_host, record.flag, record.flags) == (5, HOST, 9, 1)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == stored().offset_id
    assert properties["WAIT"] == "false"
    assert "__CRC32#" not in properties


def test_a_given_level_is_kept_and_the_first_origin_too() -> None:
    message = stored(2, RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="ID")
    record = retry_record(message, replace(FAILURE, delay_level=7), queue_id=0, store_host=HOST)
    properties = decode_properties(record.properties.decode())
    assert (properties["DELAY"], properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("7", "first", "ID")


@pytest.mark.parametrize(("retry_count", "level"), [(16, 0), (17, 3), (0, -1)])
def test_what_is_given_up_goes_to_the_dead_letters(retry_count: int, level: int) -> None:
    failure = replace(FAILURE, delay_level=level, cause="KeyError: 'id'\n\x01")
    assert is_dead(retry_count, failure)
    record = retry_record(stored(retry_count), failure, queue_id=2, store_host=HOST)
    properties = decode_properties(record.properties.decode())
    assert (record.topic, record.queue_id, properties["DELAY"]) == ("%DLQ%workers", 0, "0")
    assert properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert properties["DLQ_ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]
    assert properties["KAPPA_CAUSE"] == "KeyError: 'id'"


def test_a_long_cause_is_cut_between_characters() -> None:
    failure = replace(FAILURE, delay_level=-1, cause="ä" * CAUSE_BYTES_MAX)
    record = retry_record(stored(), failure, queue_id=0, store_host=HOST)
    cause = decode_properties(record.properties.decode())["KAPPA_CAUSE"]
    assert cause == "ä" * (CAUSE_BYTES_MAX // 2)


def test_properties_of_a_message_that_a_client_gave_up() -> None:
    text = encode_properties({"DELAY": "5", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "ID"})
    properties = decode_properties(dead_letter_properties(text, cause="not told"))
    assert (properties["DELAY"], properties["DLQ_ORIGIN_TOPIC"]) == ("0", "orders")
    assert properties["KAPPA_CAUSE"] == "not told"
    told = decode_properties(dead_letter_properties(text + "KAPPA_CAUSE\x01KeyError\x02", cause="not told"))
    assert told["KAPPA_CAUSE"] == "KeyError"


@pytest.mark.parametrize("padding", [32_500, 32_600, 32_640])
def test_a_letter_without_room_for_its_facts_is_still_one(padding: int) -> None:
    message = stored(16, RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID="ID", WAIT="false", DELAY="18", pad="x" * padding)
    record = retry_record(message, replace(FAILURE, cause="y" * 200), queue_id=0, store_host=HOST)
    assert len(record.properties) <= 32_767 - 1 - 20
    assert decode_properties(record.properties.decode())["pad"] == "x" * padding

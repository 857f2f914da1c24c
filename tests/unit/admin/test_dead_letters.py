"""What a redrive selects, sends and remembers: the rules, without a cluster."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.admin.dead_letters import (
    DeadLetter,
    Prefix,
    Selection,
    progress_group_of,
    redriven_id,
    redriven_message,
    target_of,
)
from kappamq.errors import NotFound, UsageError
from kappamq.model.ids import pack_host
from kappamq.model.message import StoredMessage
from kappamq.model.properties import encode_properties
from tests.unit.admin.scripted import scripted_cluster

HOST = pack_host("127.0.0.1", 10911)
AT_MS = 1_700_000_000_000
PROPERTIES = {
    "KEYS": "k1 k2",
    "TAGS": "paid",
    "UNIQ_KEY": "7F0000010A0B18B4AAC275F5E0E50000",
    "customer": "c-7",
    "__SHARDINGKEY": "k1",
    "RETRY_TOPIC": "orders",
    "DLQ_ORIGIN_TOPIC": "orders",
    "DLQ_ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000000001",
    "KAPPA_CAUSE": "ValueError: no",
    "DELAY": "0",
    "WAIT": "false",
    "MSG_REGION": "DefaultRegion",
}


def dead(properties: dict[str, str], offset: int = 0) -> StoredMessage:
    text = encode_properties(properties)
    return StoredMessage("%DLQ%g", b"body", 0, offset, 100 + offset, 3, 0, 1, HOST, AT_MS, HOST, 17, 0, text, 0, 0)


@pytest.mark.parametrize(
    ("selection", "is_selected"),
    [
        (Selection(), True),
        (Selection(since_ms=AT_MS), True),
        (Selection(since_ms=AT_MS + 1), False),
        (Selection(until_ms=AT_MS + 1), True),
        (Selection(until_ms=AT_MS), False),
        (Selection(key="k2"), True),
        (Selection(key="k"), False),
        (Selection(tag="paid"), True),
        (Selection(tag="new"), False),
        (Selection(key="k1", tag="new"), False),
    ],
)
def test_a_selection_needs_all_its_conditions(selection: Selection, is_selected: bool) -> None:
    assert selection.has(dead(PROPERTIES)) is is_selected


def test_a_dead_letter_says_where_it_came_from_and_why() -> None:
    letter = DeadLetter(dead(PROPERTIES))
    assert letter.origin_topic == "orders"
    assert letter.origin_id == "7F00000100002A9F0000000000000001"
    assert letter.cause == "ValueError: no"
    older = DeadLetter(dead({"RETRY_TOPIC": "bills", "ORIGIN_MESSAGE_ID": "AB"}))
    assert (older.origin_topic, older.origin_id, older.cause) == ("bills", "AB", None)


def test_a_redriven_message_is_what_the_user_sent_and_names_the_dead_letter() -> None:
    letter = dead(PROPERTIES)
    message = redriven_message(letter, to=None)
    assert (message.topic, message.body, message.tags, message.keys_text) == ("orders", b"body", "paid", "k1 k2")
    assert message.flag == 3
    assert dict(message.properties) == {
        "customer": "c-7",
        "__SHARDINGKEY": "k1",
        "KAPPA_REDRIVEN_FROM": "%DLQ%g",
        "KAPPA_REDRIVEN_ID": letter.offset_id,
        "UNIQ_KEY": redriven_id(letter, "orders"),
    }
    assert redriven_message(letter, to="elsewhere").topic == "elsewhere"


def test_the_id_of_a_copy_is_new_and_depends_on_letter_target_and_salt() -> None:
    letter = dead(PROPERTIES)
    ids = {
        redriven_id(letter, "orders"),
        redriven_id(letter, "bills"),
        redriven_id(letter, "orders", salt="x"),
        redriven_id(dead(PROPERTIES, offset=1), "orders"),
        PROPERTIES["UNIQ_KEY"],
    }
    assert len(ids) == 5
    assert {len(each) for each in ids} == {32}
    assert redriven_id(letter, "orders") == redriven_id(dead(PROPERTIES), "orders")
    # 14 November 2023 22:13:20 UTC, counted from the first of the month.
    assert int(redriven_id(letter, "orders")[20:28], 16) == ((13 * 24 + 22) * 3600 + 13 * 60 + 20) * 1000


def test_a_message_without_an_origin_needs_a_target() -> None:
    assert target_of(dead({}), "orders") == "orders"
    with pytest.raises(UsageError, match="--to"):
        target_of(dead({}), None)


def test_progress_stops_at_the_first_gap() -> None:
    progress = Prefix(3)
    for offset in (1, 3, 4, 6, 7):
        progress.add(offset)
    assert progress.end == 5


def test_every_group_has_a_progress_group_of_its_own() -> None:
    assert progress_group_of("g") == "KAPPA_REDRIVE_g"
    long_names = [progress_group_of("x" * 115 + tail) for tail in "ab"]
    assert {len(name) for name in long_names} == {120}
    assert len(set(long_names)) == 2


def test_a_group_without_dead_letters_is_told() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, _):
            assert await admin.dead_letters.overview() == []
            with pytest.raises(NotFound, match="no dead letters"):
                await admin.dead_letters.redrive("nobody")

    asyncio.run(scenario())

"""Attributes as signed changes."""

import pytest

from kappamq.broker.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, alter_attributes, parse_attributes
from kappamq.errors import UsageError


def test_changes_are_read_from_text() -> None:
    assert parse_attributes("+message.type=FIFO, -reserve.time") == {"+message.type": "FIFO", "-reserve.time": ""}
    assert parse_attributes(None) == {}
    assert parse_attributes(" ,") == {}


@pytest.mark.parametrize("text", ["a=b", "-a=b", "+a", "a", "+", "=x", "+a=1,+a=2"])
def test_text_that_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_attributes(text)


def test_changes_add_replace_and_remove() -> None:
    current = {"message.type": "NORMAL", "reserve.time": "5"}
    changes = {"+message.type": "FIFO", "-reserve.time": ""}
    assert alter_attributes(current, changes, known=TOPIC_ATTRIBUTES) == {"message.type": "FIFO"}
    assert current == {"message.type": "NORMAL", "reserve.time": "5"}
    assert alter_attributes(None, {"+priority.factor": "10"}, known=GROUP_ATTRIBUTES) == {"priority.factor": "10"}


def test_removing_what_is_not_there_is_no_error() -> None:
    assert alter_attributes({}, {"-reserve.time": ""}, known=TOPIC_ATTRIBUTES) == {}


@pytest.mark.parametrize(
    ("current", "changes"),
    [
        ({}, {"+colour": "red"}),
        ({}, {"message.type": "FIFO"}),
        ({}, {"+message.type": "fifo"}),
        ({}, {"+reserve.time": "soon"}),
        (None, {"-reserve.time": ""}),
        ({"cleanup.policy": "DELETE"}, {"+cleanup.policy": "COMPACTION"}),
        ({"cleanup.policy": "DELETE"}, {"-cleanup.policy": ""}),
        ({}, {"+queue.type": "SimpleCQ"}),
    ],
)
def test_changes_that_cannot_be(current: dict[str, str] | None, changes: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        alter_attributes(current, changes, known=TOPIC_ATTRIBUTES)


def test_what_is_fixed_may_be_said_again() -> None:
    current = {"cleanup.policy": "DELETE"}
    assert alter_attributes(current, {"+cleanup.policy": "DELETE"}, known=TOPIC_ATTRIBUTES) == current

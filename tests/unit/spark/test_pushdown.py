from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, LessThanOrEqual

from kappamq.model.message import Queue
from kappamq.spark.pushdown import CLOCK_MARGIN_MS, Narrowing, narrow, narrow_offsets

A, B = Queue("t", "broker-a", 0), Queue("t", "broker-b", 1)


def test_sets_meet() -> None:
    found = narrow([In(("queueId",), (0, 1, None)), EqualTo(("queueId",), 1), EqualTo(("broker",), "broker-b")])
    assert found == Narrowing(queue_ids=frozenset({1}), brokers=frozenset({"broker-b"}))
    assert found.allows(B)
    assert not found.allows(A)


@pytest.mark.parametrize("filter_", [IsNotNull(("queueId",)), EqualTo(("keys",), "x"), EqualTo(("queueOffset",), "x")])
def test_other_filters_change_nothing(filter_: Filter) -> None:
    assert narrow([filter_]) == Narrowing()


def test_offsets_and_times() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    found = narrow([GreaterThan(("queueOffset",), 5), LessThanOrEqual(("queueOffset",), 9)])
    assert (found.offset_from, found.offset_to) == (6, 10)
    found = narrow([GreaterThan(("storeTimestamp",), moment)])
    assert found.stored_from_ms == int(moment.timestamp() * 1000) - CLOCK_MARGIN_MS


@pytest.mark.parametrize(
    ("tags", "expression"),
    [({"a"}, "a"), ({"b", "a"}, "a || b"), ({"a|b"}, None), ({" a"}, None), ({"*"}, None), (set(), None)],
)
def test_tags_become_an_expression(tags: set[str], expression: str | None) -> None:
    assert Narrowing(tags=frozenset(tags)).tag_expression == expression


def test_the_narrowed_part_lies_within_the_whole() -> None:
    begin, end = {A: 2, B: 3}, {A: 10, B: 4}
    narrowing = Narrowing(offset_from=5, offset_to=8, stored_from_ms=1, stored_to_ms=2)
    first, last = narrow_offsets(begin, end, narrowing, lambda at_ms: {A: 6, B: 0} if at_ms == 1 else {A: 7, B: 2})
    assert first == {A: 6, B: 4}
    assert last == {A: 7, B: 4}

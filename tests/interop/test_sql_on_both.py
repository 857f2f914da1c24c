"""SQL92 conditions mean to us what they mean to the real RocketMQ 5.5.0: conditions and messages in two tables.

Each condition is pulled with from a broker, so that the broker alone filters, and held against our own evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

import kappamq
from kappamq.client.aio.cluster import Cluster as AioCluster
from kappamq.errors import InvalidExpression, Refused
from kappamq.model.record import decode_records
from kappamq.model.selector import SQL92, Selector
from kappamq.model.subscription import Subscription
from kappamq.testing import start_cluster
from kappamq.wire.codes import ResponseCode
from tests.interop.artifacts import Unreachable
from tests.interop.conftest import skip_loudly
from tests.interop.rocketmq import Cluster
from tests.interop.support import eventually, fresh
from tests.patience import PATIENT

MESSAGES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"a": "5"},
    {"a": "5", "b": "5"},
    {"a": "5.0", "b": "7"},
    {"a": "-3", "b": "x"},
    {"a": "x"},
    {"a": "abc", "b": "abc", "c": "true"},
    {"b": "7", "c": "false"},
    {"a": "3000000000", "b": "3000000000"},
    {"a": "TRUE", "c": "TRUE"},
    {"a": "it's", "b": "1e2"},
    {"a": " 5 ", "b": "NaN"},
    {"a": "0", "b": "-0.0", "c": "yes"},
    {"a": "7", "b": "5", "TAGS": "T"},
)

CONDITIONS: Final = (
    *("a = 5", "a <> 5", "a = '5'", "a <> '5'", "5 = a", "'5' = a", "'x' <> a", "'x' = a", "a <> 'x'", "NOT a = 'x'"),
    *("a = b", "a <> b", "b = a", "NOT (a = b)", "a = missing", "missing = missing", "missing <> missing", "a = a"),
    *("a > 5", "a >= 5", "a < 5", "a <= 5", "5 < a", "5 > a", "a > b", "a < b", "a >= b", "a <= b", "missing > 1"),
    *("a > 4.5", "a = 5.0", "a < 1E2", "b = 100.0", "b < 0.5", "b >= 0", "a > 2147483648", "a = 3000000000", "a = 5L"),
    *(
        "a BETWEEN 1 AND 6",
        "a NOT BETWEEN 1 AND 6",
        "a BETWEEN b AND 7",
        "5 BETWEEN a AND b",
        "missing BETWEEN 1 AND 2",
    ),
    *("a NOT BETWEEN 6 AND 1", "a BETWEEN 1.5 AND 6", "missing NOT BETWEEN 1 AND 2"),
    *("a IN ('5', 'x')", "a NOT IN ('5', 'x')", "missing IN ('x')", "missing NOT IN ('x')", "NOT (a IN ('5'))"),
    *("a IS NULL", "a IS NOT NULL", "missing IS NULL", "NOT (a IS NULL)", "(a = 5) IS NULL", "(a > 5) IS NOT NULL"),
    *("c = TRUE", "c = FALSE", "c <> TRUE", "a = TRUE", "missing = TRUE", "missing = FALSE", "c", "NOT c", "missing"),
    *("TRUE", "FALSE", "NOT TRUE", "TRUE = TRUE", "TRUE <> FALSE", "NULL", "NOT NULL", "c AND TRUE", "c OR TRUE"),
    *("a CONTAINS 'b'", "a NOT CONTAINS 'b'", "NOT (a CONTAINS 'b')", "a CONTAINS ''", "missing NOT CONTAINS 'b'"),
    *(
        "a STARTSWITH 'ab'",
        "a ENDSWITH 'c'",
        "a NOT STARTSWITH 'ab'",
        "a NOT ENDSWITH 'c'",
        "NOT (missing ENDSWITH 'c')",
    ),
    *("a = 5 AND b = 5", "a = 5 OR b = 7", "a = 5 AND missing = 1", "a = 5 OR missing = 1", "missing = 1 OR a = 5"),
    *("missing <> 1 AND a = 5", "a > 1 AND b > 1", "b > 1 OR a > 1", "a > 1 OR a IS NOT NULL", "NOT (a > 1) AND b > 1"),
    *("a = -3", "a > -4", "a = - 3", "-a = 3", "a = +5", "a > -b", "a = 'it''s'", "TAGS = 'T'", "TAGS IS NULL"),
    *(
        "(a = 5)",
        "((a = 5) OR (b = 7)) AND c IS NULL",
        "A = 5",
        "a = 5 /* x */ AND b = 5",
        "a = b = TRUE",
        "a = 5 = TRUE",
    ),
    *(
        "(a = 5) = (b = 5)",
        "(a = 5) <> (b = 5)",
        "(missing = 1) = TRUE",
        "a <> missing",
        "missing <> a",
        "'x' <> missing",
    ),
)

REFUSED: Final = (
    *("a >", "a = ", "a == 5", "a != 5", "a < 'x'", "a > TRUE", "a = NULL", "a <> NULL", "5", "'x'", ""),
    *("a IN (5)", "a IN ()", "5 IN ('x')", "a BETWEEN 6 AND 1", "a BETWEEN AND", "a = 0.0", "a CONTAINS 5"),
    *("(a = 5", "a IS 5", "NOT", "a = 'x"),
)
"""Neither takes these."""

OURS_ALONE_REFUSES: Final = ("a = 5 b = 5", "a = 5 )", "a LIKE 'x'", "a = 05", "a + 1 = 2")
"""RocketMQ: reads as far as it understands and ignores the rest."""


@dataclass(frozen=True)
class Filled:
    """A cluster whose topic holds the messages, one queue, in order."""

    nameserver: str
    calls: kappamq.Cluster
    queue: kappamq.Queue

    def matching(self, condition: str) -> list[int]:
        """Numbers of the messages that the broker gives for a condition."""
        found: list[int] = []
        start = 0
        while start < len(MESSAGES):
            raw = self.calls.pull_raw(
                self.queue, start, group="sql-reader", count_max=32, expression=condition, expression_type=SQL92
            )
            found += [int(message.body) for message in decode_records(raw.body)] if raw.body else []
            assert raw.next_offset > start, raw
            start = raw.next_offset
        return found


@pytest.fixture(scope="module", params=["kappamq", pytest.param("rocketmq", marks=pytest.mark.oracle)])
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    try:
        if request.param == "rocketmq":
            cluster: Cluster = request.getfixturevalue("rocketmq_cluster")
            yield from fill(cluster.nameserver)
        else:
            with start_cluster() as ours:
                yield from fill(ours.nameserver)
    except Unreachable as missing:
        skip_loudly(missing)


def fill(nameserver: str) -> Iterator[Filled]:
    topic = fresh("sql")
    with (
        kappamq.Producer(nameserver, group=fresh("producers"), settings=PATIENT) as producer,
        kappamq.Cluster(nameserver) as calls,
    ):
        queue = producer.send(kappamq.Message(topic, b"0")).queue
        for number, properties in enumerate(MESSAGES[1:], start=1):
            given = dict(properties)
            tags = given.pop("TAGS", None)
            producer.send(kappamq.Message(topic, b"%d" % number, tags=tags, properties=given), queue=queue)
        eventually(lambda: calls.max_offset(queue), lambda end: end == len(MESSAGES))
        yield Filled(nameserver, calls, queue)


def test_every_condition_chooses_the_same_messages(filled: Filled) -> None:
    differences = []
    for condition in CONDITIONS:
        chosen = filled.matching(condition)
        selector = Selector.parse(condition, SQL92)
        ours = [number for number, properties in enumerate(MESSAGES) if selector.matches(properties)]
        if chosen != ours:
            differences.append(f"{condition}: the broker gives {chosen}, we say {ours}")
    assert not differences, "\n".join(differences)


def test_what_does_not_parse_is_refused_when_a_consumer_starts(filled: Filled) -> None:
    async def ask() -> None:
        async with AioCluster(filled.nameserver) as calls:
            for condition in REFUSED:
                with pytest.raises(InvalidExpression):
                    Selector.parse(condition, SQL92)
                subscription = Subscription(topic=filled.queue.topic, sub_string=condition, expression_type=SQL92)
                with pytest.raises(Refused) as refusal:
                    await calls.check_subscription("sql-reader", filled.queue.topic, subscription)
                assert refusal.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, condition

    asyncio.run(ask())
    for condition in OURS_ALONE_REFUSES:
        with pytest.raises(InvalidExpression):
            Selector.parse(condition, SQL92)

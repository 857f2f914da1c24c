"""Routes say the same in any order."""

import pytest

from kappamq.model.route import BrokerAddresses, TopicQueues, TopicRoute

A = BrokerAddresses("a", "c", {0: "a:0", 1: "a:1"})
B = BrokerAddresses("b", "c", {1: "b:1"})
ROUTE = TopicRoute((A, B), (TopicQueues("a", 4, 4, 6), TopicQueues("b", 4, 4, 4)))


def test_master() -> None:
    assert A.master == "a:0"
    assert B.master is None


@pytest.mark.parametrize(("permission", "readable", "writable"), [(6, True, True), (4, True, False), (3, False, True)])
def test_permission(permission: int, readable: bool, writable: bool) -> None:
    queues = TopicQueues("a", 1, 1, permission)
    assert (queues.is_readable, queues.is_writable) == (readable, writable)


def test_order_does_not_matter() -> None:
    other = TopicRoute(
        (BrokerAddresses("b", "c", {1: "b:1"}), BrokerAddresses("a", "c", {1: "a:1", 0: "a:0"})), ROUTE.queues[::-1]
    )
    assert other != ROUTE
    assert other.says_the_same_as(ROUTE)


@pytest.mark.parametrize(
    "other",
    [
        TopicRoute(ROUTE.brokers, ROUTE.queues, "a:4"),
        TopicRoute(ROUTE.brokers[:1], ROUTE.queues),
        TopicRoute((A, BrokerAddresses("b", "c", {1: "b:2"})), ROUTE.queues),
        TopicRoute(ROUTE.brokers, ROUTE.queues[:1]),
        TopicRoute(ROUTE.brokers, (ROUTE.queues[0], TopicQueues("b", 4, 4, 6))),
    ],
)
def test_differences_matter(other: TopicRoute) -> None:
    assert not other.says_the_same_as(ROUTE)

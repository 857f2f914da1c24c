"""From routes to queues and addresses."""

import pytest

from kappamq.client.core.routing import (
    AddressBook,
    QueueRotation,
    ReadAddress,
    contact_of,
    publish_queues,
    route_from_template,
    subscribe_queues,
)
from kappamq.errors import RemoteProtocolError, UsageError
from kappamq.model.config import QUEUES_MAX
from kappamq.model.message import Queue
from kappamq.model.route import BrokerAddresses, TopicQueues, TopicRoute

RW, R, W = 6, 4, 2
A = BrokerAddresses("a", "c", {0: "a:0", 1: "a:1"})
B = BrokerAddresses("b", "c", {0: "b:0"})
ORPHAN = BrokerAddresses("o", "c", {1: "o:1", 3: "o:3"})


def ids(queues: list[Queue] | tuple[Queue, ...]) -> list[tuple[str, int]]:
    assert {queue.topic for queue in queues} <= {"T"}
    return [(queue.broker, queue.queue_id) for queue in queues]


def test_publish_to_writable_queues_of_masters_by_broker_name() -> None:
    queues = (
        TopicQueues("o", 2, 2, RW),
        TopicQueues("b", 1, 3, W),
        TopicQueues("a", 3, 1, RW),
        TopicQueues("unknown", 1, 1, RW),
    )
    published = publish_queues("T", TopicRoute((A, B, ORPHAN), queues))
    assert ids(published.queues) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert not published.is_ordered


def test_read_only_queues_are_not_published_to() -> None:
    assert publish_queues("T", TopicRoute((A,), (TopicQueues("a", 4, 4, R),))).queues == ()


def test_order_configuration_wins() -> None:
    route = TopicRoute((A,), (TopicQueues("a", 8, 8, RW),), "b:2;a:1;")
    published = publish_queues("T", route)
    assert ids(published.queues) == [("b", 0), ("b", 1), ("a", 0)]
    assert published.is_ordered


@pytest.mark.parametrize("order_conf", ["a", "a:", ":4", "a:x", "a:-1", "a:²"])
def test_broken_order_configuration(order_conf: str) -> None:
    with pytest.raises(RemoteProtocolError, match="correct it at the name server"):
        publish_queues("T", TopicRoute((), (), order_conf))


@pytest.mark.parametrize("count", [str(QUEUES_MAX + 1), "9" * 5000])
def test_too_many_queues(count: str) -> None:
    with pytest.raises(RemoteProtocolError, match="claims more than"):
        publish_queues("T", TopicRoute((), (), f"a:{count}"))
    with pytest.raises(RemoteProtocolError, match="claims more than"):
        subscribe_queues("T", TopicRoute((A,), (TopicQueues("a", QUEUES_MAX + 1, 1, RW),)))


def test_subscribe_to_readable_queues_also_without_a_master() -> None:
    queues = (TopicQueues("o", 2, 0, R), TopicQueues("b", 3, 3, W), TopicQueues("a", 1, 4, RW))
    assert ids(subscribe_queues("T", TopicRoute((A, B, ORPHAN), queues))) == [("a", 0), ("o", 0), ("o", 1)]


def test_negative_counts_are_no_queues() -> None:
    assert subscribe_queues("T", TopicRoute((A,), (TopicQueues("a", -1, -1, RW),))) == []


def test_route_of_a_new_topic_comes_from_the_template() -> None:
    template = TopicRoute((A, B), (TopicQueues("a", 8, 8, 7), TopicQueues("b", 2, 16, 7)))
    made = route_from_template(template, queues_max=4)
    assert made.queues == (TopicQueues("a", 4, 4, 7), TopicQueues("b", 2, 2, 7))
    assert made.brokers == template.brokers
    with pytest.raises(UsageError, match="at least 1"):
        route_from_template(template, queues_max=0)


@pytest.fixture
def book() -> AddressBook:
    book = AddressBook()
    book.learn(TopicRoute((A, B, ORPHAN), ()))
    return book


def test_master(book: AddressBook) -> None:
    assert book.master_of("a") == "a:0"
    assert book.master_of("o") is None
    assert book.master_of("nobody") is None


def test_preferred(book: AddressBook) -> None:
    assert book.preferred_of("a") == "a:0"
    assert book.preferred_of("o") == "o:1"
    assert book.preferred_of("nobody") is None


@pytest.mark.parametrize(
    ("broker", "suggested", "expected"),
    [
        ("a", 0, ReadAddress("a:0", is_follower=False)),
        ("a", 1, ReadAddress("a:1", is_follower=True)),
        ("a", 7, ReadAddress("a:0", is_follower=False)),
        ("o", 0, ReadAddress("o:1", is_follower=True)),
        ("o", 2, ReadAddress("o:3", is_follower=True)),
        ("nobody", 0, None),
    ],
)
def test_reader(book: AddressBook, broker: str, suggested: int, expected: ReadAddress | None) -> None:
    assert book.reader_of(broker, suggested) == expected


def test_a_missing_master_is_not_replaced_by_its_successor_first() -> None:
    book = AddressBook()
    book.learn(TopicRoute((BrokerAddresses("x", "c", {3: "x:3", 1: "x:1"}),), ()))
    assert book.reader_of("x", 2) == ReadAddress("x:3", is_follower=True)
    assert book.reader_of("x", 0) == ReadAddress("x:1", is_follower=True)


def test_heartbeats_go_to_followers_only_for_consumers(book: AddressBook) -> None:
    assert book.heartbeat_addresses(has_consumers=False) == ["a:0", "b:0"]
    assert book.heartbeat_addresses(has_consumers=True) == ["a:0", "a:1", "b:0", "o:1", "o:3"]


def test_learning_replaces_what_was_known_of_a_broker(book: AddressBook) -> None:
    book.learn(TopicRoute((BrokerAddresses("a", "c", {1: "a:9"}),), ()))
    assert book.master_of("a") is None
    assert book.reader_of("a", 1) == ReadAddress("a:9", is_follower=True)


def test_forgetting_what_no_route_has(book: AddressBook) -> None:
    gone = book.keep_only([TopicRoute((BrokerAddresses("a", "c", {0: "a:0"}), B), ())])
    assert sorted(gone) == ["a:1", "o:1", "o:3"]
    assert book.heartbeat_addresses(has_consumers=True) == ["a:0", "b:0"]
    assert book.reader_of("o") is None


def test_contact() -> None:
    route = TopicRoute((A, ORPHAN, BrokerAddresses("empty", "c", {})), ())
    assert contact_of(route, lambda count: 0) == "a:0"
    assert contact_of(route, lambda count: count - 1) == "o:3"
    assert contact_of(TopicRoute((), ()), lambda count: 0) is None


QUEUES = [Queue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]


def test_rotation_advances_before_it_takes() -> None:
    rotation = QueueRotation(QUEUES, seed=0)
    assert ids([rotation.next() for _ in range(5)]) == [("a", 1), ("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    rotation.reseed(3)
    assert ids([rotation.next()]) == [("a", 0)]


@pytest.mark.parametrize("seed", [0x7FFF_FFFF, -1, 2**40 - 1])
def test_rotation_wraps_at_31_bits(seed: int) -> None:
    assert QueueRotation(QUEUES, seed=seed).next() == QUEUES[0]


def test_rotation_avoids_the_last_broker() -> None:
    rotation = QueueRotation(QUEUES, seed=0)
    assert ids([rotation.next_avoiding("a"), rotation.next_avoiding("b"), rotation.next_avoiding(None)]) == [
        ("b", 0),
        ("a", 0),
        ("a", 1),
    ]


def test_rotation_takes_the_last_broker_if_there_is_no_other() -> None:
    rotation = QueueRotation(QUEUES[:2], seed=0)
    assert rotation.next_avoiding("a") == QUEUES[1]
    assert rotation.next_where(lambda queue: queue.broker == "b") is None


def test_rotation_over_nothing() -> None:
    with pytest.raises(UsageError, match="refresh the route"):
        QueueRotation([], seed=0)

"""From a route to queues and addresses: what to publish to, what to consume, whom to ask."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kappamq.errors import RemoteProtocolError, UsageError
from kappamq.model.config import QUEUES_MAX
from kappamq.model.message import Queue
from kappamq.model.route import MASTER_ID, BrokerAddresses, TopicRoute

Pick: TypeAlias = Callable[[int], int]
"""A random number from 0 to below its argument, such as `random.randrange`."""

_INDEX_MASK: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class PublishQueues:
    """Queues that accept messages, in the order that selectors see; those of an ordered topic never change."""

    queues: tuple[Queue, ...]
    is_ordered: bool = False


def publish_queues(topic: str, route: TopicRoute) -> PublishQueues:
    """Writable queues of brokers that have a master, by broker name; or exactly those of the order configuration."""
    if route.order_conf:
        return PublishQueues(tuple(_ordered_queues(topic, route.order_conf)), is_ordered=True)
    with_master = {broker.name for broker in route.brokers if broker.master}
    return PublishQueues(
        tuple(
            queue
            for queues in sorted(route.queues, key=lambda queues: queues.broker)
            if queues.is_writable and queues.broker in with_master
            for queue in _queues_of(topic, queues.broker, queues.write_queues)
        )
    )


def subscribe_queues(topic: str, route: TopicRoute) -> list[Queue]:
    """Readable queues, sorted; a broker without a master counts, since a follower can serve reads."""
    return sorted(
        {
            queue
            for queues in route.queues
            if queues.is_readable
            for queue in _queues_of(topic, queues.broker, queues.read_queues)
        }
    )


def route_from_template(template: TopicRoute, *, queues_max: int) -> TopicRoute:
    """Route for a topic that does not exist yet, from the route of the template topic: the first send creates it."""
    if queues_max < 1:
        raise UsageError(f"a new topic cannot have {queues_max} queues: ask for at least 1")
    queues = tuple(
        replace(queues, read_queues=count, write_queues=count)
        for queues in template.queues
        for count in (min(queues_max, queues.read_queues),)
    )
    return replace(template, queues=queues)


def _ordered_queues(topic: str, order_conf: str) -> Iterator[Queue]:
    for piece in filter(None, order_conf.split(";")):
        broker, separator, count = piece.partition(":")
        if not (broker and separator and count.isascii() and count.isdecimal()):
            raise RemoteProtocolError(
                f"order configuration {order_conf!r} of topic {topic!r} is not of the form 'broker:queues;…': "
                "correct it at the name server"
            )
        # The length is tested first because Python refuses to convert very long texts.
        yield from _queues_of(topic, broker, int(count) if len(count) < 10 else QUEUES_MAX + 1)


def _queues_of(topic: str, broker: str, count: int) -> Iterable[Queue]:
    if count > QUEUES_MAX:
        raise RemoteProtocolError(
            f"topic {topic!r} claims more than {QUEUES_MAX} queues on broker {broker!r}: correct the topic there"
        )
    return (Queue(topic, broker, queue_id) for queue_id in range(count))


@dataclass(frozen=True, slots=True)
class ReadAddress:
    """Whom to pull from. A follower takes no committed offsets."""

    address: str
    is_follower: bool


class AddressBook:
    """Addresses of every broker of every known route."""

    def __init__(self) -> None:
        self._brokers: dict[str, dict[int, str]] = {}

    def learn(self, route: TopicRoute) -> None:
        """Take over the members of the route's brokers; what was known of these brokers is replaced."""
        for broker in route.brokers:
            self._brokers[broker.name] = dict(broker.addresses)

    def keep_only(self, routes: Iterable[TopicRoute]) -> list[str]:
        """Forget addresses that no route contains any more, and return them."""
        alive = {address for route in routes for broker in route.brokers for address in broker.addresses.values()}
        gone: list[str] = []
        for name, addresses in list(self._brokers.items()):
            gone += [address for address in addresses.values() if address not in alive]
            kept = {broker_id: address for broker_id, address in addresses.items() if address in alive}
            if kept:
                self._brokers[name] = kept
            else:
                del self._brokers[name]
        return gone

    def master_of(self, broker: str) -> str | None:
        """For what only a master does: publish, end a transaction, send back, lock, acknowledge."""
        return self._brokers.get(broker, {}).get(MASTER_ID)

    def preferred_of(self, broker: str) -> str | None:
        """The master, else any member: to commit an offset, or to read one after a new route did not help."""
        return self.master_of(broker) or next(iter(self._sorted(broker)), (0, None))[1]

    def reader_of(self, broker: str, suggested_id: int = MASTER_ID) -> ReadAddress | None:
        """For pulls: the suggested member; the one after it if that was a follower; else any."""
        addresses = self._brokers.get(broker, {})
        choices = (suggested_id,) if suggested_id == MASTER_ID else (suggested_id, suggested_id + 1)
        for broker_id in choices:
            if broker_id in addresses:
                return ReadAddress(addresses[broker_id], is_follower=broker_id != MASTER_ID)
        for broker_id, address in self._sorted(broker):
            return ReadAddress(address, is_follower=broker_id != MASTER_ID)
        return None

    def heartbeat_addresses(self, *, has_consumers: bool) -> list[str]:
        """Every address that must know us; followers only serve consumers."""
        return [
            address
            for name in sorted(self._brokers)
            for broker_id, address in self._sorted(name)
            if has_consumers or broker_id == MASTER_ID
        ]

    def _sorted(self, broker: str) -> list[tuple[int, str]]:
        return sorted(self._brokers.get(broker, {}).items())


def contact_of(route: TopicRoute, pick: Pick) -> str | None:
    """Someone who can answer for the whole topic: a random broker of the route, its master if it has one."""
    brokers = [broker for broker in route.brokers if broker.addresses]
    if not brokers:
        return None
    broker: BrokerAddresses = brokers[pick(len(brokers))]
    addresses = sorted(broker.addresses.values())
    return broker.master or addresses[pick(len(addresses))]


class QueueRotation:
    """Takes the queues of a topic in turn, from a random place on, so that many producers do not start together."""

    def __init__(self, queues: Sequence[Queue], *, seed: int) -> None:
        if not queues:
            raise UsageError("no queue to rotate over: refresh the route, or create the topic with writable queues")
        self._queues = tuple(queues)
        self._index = seed

    def reseed(self, seed: int) -> None:
        """Continue from another random place."""
        self._index = seed

    def next(self) -> Queue:
        self._index = (self._index + 1) & _INDEX_MASK
        return self._queues[self._index % len(self._queues)]

    def next_where(self, accepts: Callable[[Queue], bool]) -> Queue | None:
        """The next accepted queue within one full round, if any."""
        return next((queue for queue in (self.next() for _ in self._queues) if accepts(queue)), None)

    def next_avoiding(self, last_broker: str | None) -> Queue:
        """The next queue on another broker than the one tried last; on that one if there is no other."""
        return self.next_where(lambda queue: queue.broker != last_broker) or self.next()

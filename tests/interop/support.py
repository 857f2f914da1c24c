"""What scenarios share: a cluster seen from outside, fresh names, topics made on demand, and waiting for a fact."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from tests.interop.frames import ask
from tests.interop.harness import Admin, JavaClient, JavaError, PushConsumer, QueueRef, Received, Subscription

T = TypeVar("T")

# Machines under test are shared and slow; nobody waits this long for what works.
WAIT_SECONDS_MAX: Final = 120.0
# Shorter than the client's own rebalance timer (20 s): what happens within was announced by the broker.
ANNOUNCED_SECONDS_MAX: Final = 15.0
PROBE_PAUSE_SECONDS: Final = 0.05
GET_CONSUMER_LIST_BY_GROUP: Final = 38
FROM_FIRST: Final[dict[str, object]] = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
FROM_LAST: Final[dict[str, object]] = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}


class AnyCluster(Protocol):
    """A running cluster, ours or the real one."""

    @property
    def nameserver(self) -> str: ...


def fresh(word: str) -> str:
    """A name nobody has used on this cluster: scenarios share one."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


def eventually(probe: Callable[[], T], holds: Callable[[T], bool], *, seconds_max: float = WAIT_SECONDS_MAX) -> T:
    """Probe until the answer is right and return it; fail with the last answer when the time is over."""
    deadline = time.monotonic() + seconds_max
    while True:
        answer = probe()
        if holds(answer):
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds_max:.0f} s: {answer!r}"
        time.sleep(PROBE_PAUSE_SECONDS)


def cluster_name(admin: Admin) -> str:
    """The name of the cluster, which is also a topic that tells where new topics go."""
    name = admin.route("TBW102")["brokerDatas"][0]["cluster"]
    assert isinstance(name, str)
    return name


def has_route(admin: Admin, topic: str) -> bool:
    try:
        admin.route(topic)
    except JavaError as error:
        if error.code != 17:
            raise
        return False
    return True


@contextmanager
def topic_with_admin(java: JavaClient, cluster: AnyCluster, *, queues: int = 4) -> Iterator[tuple[str, Admin]]:
    """A new topic whose route is known, and an admin client for its offsets."""
    with java.admin(cluster.nameserver) as admin:
        topic = fresh("topic")
        make_topic(admin, topic, queues=queues)
        yield topic, admin


def make_topic(admin: Admin, topic: str, *, queues: int = 4) -> None:
    """Create a topic and wait until the name server tells its route."""
    admin.create_topic(cluster_name(admin), topic, queues=queues)
    eventually(lambda: has_route(admin, topic), bool)


def make_known(java: JavaClient, cluster: AnyCluster, group: str, topic: str) -> None:
    """Join a group once and leave, so that its retry topic exists and has a route.

    RocketMQ: the first heartbeat makes that topic, but the consumer asked for its route just before, and rebalances
    only 20 s later. A second start finds everything in place.
    """
    with java.push_consumer(cluster.nameserver, group, [Subscription(topic=topic)], options=FROM_FIRST) as consumer:
        await_queues(consumer, topic, 1)
    with java.admin(cluster.nameserver) as admin:
        eventually(lambda: has_route(admin, f"%RETRY%{group}"), bool)
        await_left(admin, group, topic)


def await_left(admin: Admin, group: str, topic: str) -> None:
    """Wait until the broker that holds a topic knows no member of a group."""
    broker = admin.route(topic)["brokerDatas"][0]["brokerAddrs"]["0"]
    eventually(lambda: ask(broker, GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}).code, lambda code: code != 0)


def await_committed(consumers: Sequence[PushConsumer], nameserver: str, group: str, admin: Admin, topic: str) -> None:
    """Wait until the broker has the end of every queue as the offset of a group with these members.

    A listener that has returned is not enough: the client notes the offset a little later, and a client that is shut
    down in between gets the message again.
    """
    ends = {queue: admin.max_offset(queue) for queue in queues_of(admin, topic)}
    with consumers[0].java.pull_consumer(nameserver, group) as reader:

        def committed() -> dict[QueueRef, int]:
            for consumer in consumers:
                consumer.commit()
            return {queue: reader.fetch_offset(queue) for queue in ends}

        eventually(committed, lambda offsets: offsets == ends)


def queues_of(admin: Admin, topic: str) -> list[QueueRef]:
    """All readable queues of a topic, in order."""
    return [
        QueueRef(topic, data["brokerName"], queue_id)
        for data in sorted(admin.route(topic)["queueDatas"], key=lambda data: str(data["brokerName"]))
        for queue_id in range(data["readQueueNums"])
    ]


def await_queues(
    consumer: PushConsumer, topic: str, count: int, *, seconds_max: float = WAIT_SECONDS_MAX
) -> list[QueueRef]:
    """Wait until a consumer works on exactly (or, for 1, at least) `count` queues of a topic."""
    return eventually(
        lambda: consumer.assignment(topic),
        lambda queues: len(queues) >= 1 if count == 1 else len(queues) == count,
        seconds_max=seconds_max,
    )


def await_messages(consumer: PushConsumer, count: int, *, seconds_max: float = WAIT_SECONDS_MAX) -> list[Received]:
    """Wait for exactly `count` deliveries."""
    received = consumer.received(count, timeout_ms=int(seconds_max * 1000))
    assert len(received) == count, [(each.keys, each.topic, each.queue_id, each.outcome) for each in received]
    return received


def bodies(messages: Sequence[Received]) -> list[bytes]:
    return sorted(each.body for each in messages)

"""Which queue a message goes to: routes of topics, turns, and brokers to avoid for a while."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kappamq.client.aio.cluster import Cluster
from kappamq.client.core.retrying import LatencyFaults, judge
from kappamq.client.core.routing import PublishQueues, QueueRotation, publish_queues, route_from_template
from kappamq.client.core.selecting import select_by_hash
from kappamq.client.settings import ProducerSettings
from kappamq.errors import KappaError, NotPermitted, TopicNotFound, TransportError, UsageError
from kappamq.model.message import Message, Queue
from kappamq.model.names import TEMPLATE_TOPIC, is_retry_topic
from kappamq.model.properties import Name
from kappamq.model.route import TopicRoute
from kappamq.wire.codes import ResponseCode
from kappamq.wire.headers import MaxOffsetRequest

QueueSelector: TypeAlias = Callable[[Sequence[Queue], Message, Any], Queue]
"""Chooses the queue of a message: gets the queues in a fixed order, the message, and the argument of the send."""


class Publisher:
    """Queues of one topic as last routed, taken in turn."""

    __slots__ = ("queues", "rotation", "route")

    def __init__(self, route: TopicRoute | None, publish: PublishQueues, *, topic: str) -> None:
        if not publish.queues:
            raise NotPermitted(
                f"topic {topic!r} has no queue that accepts messages: give it write permission, or start its master",
                code=ResponseCode.NO_PERMISSION,
            )
        self.route = route
        self.queues = publish.queues
        self.rotation = QueueRotation(publish.queues, seed=random.getrandbits(31))


class Publishers:
    """Topics that a producer sends to."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._publishers: dict[str, Publisher] = {}
        self._asking: dict[str, asyncio.Task[Publisher | KappaError]] = {}
        """Topic → the one question about it that all who want to send to it wait for."""
        self._faults = LatencyFaults() if settings.latency_faults else None

    def known(self, topic: str) -> Publisher | None:
        """Queues of a topic whose route is known already."""
        route = self._cluster.routes.known(topic)
        publisher = self._publishers.get(topic)
        if publisher is not None and (route is None or publisher.route is route):
            return publisher
        if route is None:
            return None
        publisher = Publisher(route, publish_queues(topic, route), topic=topic)
        self._publishers[topic] = publisher
        return publisher

    async def find(self, topic: str) -> Publisher:
        """Queues of a topic, asking a name server if need be. Raises `TopicNotFound` or `NotPermitted`."""
        publisher = self.known(topic)
        if publisher is not None:
            return publisher
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = self._cluster.tasks.start(self._ask(topic), name=f"route of {topic}")
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        await asyncio.wait([asking])
        if asking.cancelled():
            raise TransportError(f"the producer was closed before the route of topic {topic!r} was known")
        found = asking.result()
        if isinstance(found, KappaError):
            raise found.with_traceback(None)  # Many may raise the same one.
        return found

    async def _ask(self, topic: str) -> Publisher | KappaError:
        """Queues of a topic as a name server knows it, or why there are none: a task that raised would end others."""
        try:
            return await self._learn(topic)
        except KappaError as fault:
            return fault

    async def _learn(self, topic: str) -> Publisher:
        self._cluster.routes.want(topic)
        try:
            route = await self._cluster.routes.refresh(topic)
        except TopicNotFound:
            publisher = await self._provisional(topic)
        else:
            publisher = Publisher(route, publish_queues(topic, route), topic=topic)
        self._publishers[topic] = publisher
        await self._cluster.heartbeat()  # Brokers that are new to us must know our group before they may call us back.
        return publisher

    async def _provisional(self, topic: str) -> Publisher:
        """Queues of a topic that the first send will create, after the model of the template topic."""
        try:
            template = await self._cluster.routes.find(TEMPLATE_TOPIC)
        except TopicNotFound as fault:
            raise TopicNotFound(
                f"topic {topic!r} does not exist and the brokers create no topics by themselves: create it first",
                code=fault.code,
            ) from None
        route = route_from_template(template, queues_max=self._settings.new_topic_queues)
        return Publisher(None, publish_queues(topic, route), topic=topic)

    def next_queue(self, publisher: Publisher, last_broker: str | None) -> Queue:
        """The queue of the next attempt: on another broker than the last one, if there is another."""
        if self._faults is not None:
            return self._faults.choose(
                publisher.rotation,
                last_broker=last_broker,
                now_ms=self._cluster.clock.now_ms(),
                reseed=random.getrandbits(31) if last_broker is not None else None,
            )
        if last_broker is None:
            return publisher.rotation.next()
        return publisher.rotation.next_avoiding(last_broker)

    def record(self, broker: str, latency_ms: int, error: KappaError | None, *, in_background: bool = False) -> None:
        """Note how an attempt went, so that slow and failing brokers are avoided."""
        if self._faults is None:
            return
        verdict = judge(error, has_detector=True, in_background=in_background)
        self._faults.record(
            broker,
            latency_ms,
            isolate=verdict.isolate,
            reachable=verdict.reachable,
            now_ms=self._cluster.clock.now_ms(),
        )

    async def probe_forever(self) -> None:
        """Find out which brokers that failed can be reached again; ends at once without fault tolerance."""
        faults = self._faults
        while faults is not None:
            await asyncio.sleep(self._settings.probe_interval_ms / 1000)
            topic = next(iter(self._publishers), TEMPLATE_TOPIC)
            for broker in list(faults.due_for_check(self._cluster.clock.now_ms())):
                address = self._cluster.routes.addresses.master_of(broker)
                if address is None:
                    faults.forget(broker)
                    continue
                try:
                    request = MaxOffsetRequest(topic=topic, queue_id=0)
                    await self._cluster.call(address, request, timeout_ms=self._settings.probe_timeout_ms)
                except TransportError:
                    continue
                except KappaError:
                    pass  # It answered, which is all we wanted to know.
                faults.mark_reachable(broker)


def choose_queue(
    queues: Sequence[Queue],
    message: Message,
    queue: Queue | None,
    sharding_key: str | None,
    selector: QueueSelector | None,
    argument: Any,
) -> Queue | None:
    """The queue that the caller fixed; `None` when any will do."""
    if queue is None and sharding_key is None and selector is None:
        if not message.properties or is_retry_topic(message.topic):
            return None
        sharding_key = message.properties.get(Name.SHARDING_KEY)
        return None if sharding_key is None else select_by_hash(queues, sharding_key)
    if sum(given is not None for given in (queue, sharding_key, selector)) > 1:
        raise UsageError("queue, sharding_key and selector exclude each other: give one of them")
    if queue is not None:
        if queue.topic != message.topic:
            raise UsageError(f"queue of topic {queue.topic!r} given for a message to {message.topic!r}")
        return queue
    if sharding_key is not None:
        return select_by_hash(queues, sharding_key)
    assert selector is not None
    selected = selector(queues, message, argument)
    if not isinstance(selected, Queue):
        raise UsageError(f"the selector returned {selected!r}: return one of the queues it was given")
    return selected

"""A group's subscriptions as brokers and handlers need them."""

from kappamq.client.aio.cluster import Cluster
from kappamq.model.names import check_topic
from kappamq.model.selector import Selector
from kappamq.model.subscription import ExpressionType, Subscription


class Subscriptions:
    """Topics of one consumer with their expressions. Every change gets a newer version, so that brokers take it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0

    def add(self, topic: str, expression: str, expression_type: str = ExpressionType.TAG) -> None:
        """Subscribe, or change the expression. Raises `InvalidName` or `InvalidExpression`."""
        check_topic(topic)
        selector = Selector.parse(expression, expression_type)
        self._version = max(self._version + 1, self._cluster.clock.now_ms())
        self._subscriptions[topic] = Subscription(
            topic=topic,
            sub_string=selector.expression,
            expression_type=selector.expression_type,
            tags_set=tuple(sorted(selector.tags)),
            code_set=tuple(sorted(selector.tag_codes)),
            sub_version=self._version,
        )
        self._cluster.routes.want(topic)

    def remove(self, topic: str) -> None:
        self._subscriptions.pop(topic, None)

    def get(self, topic: str) -> Subscription | None:
        return self._subscriptions.get(topic)

    def selector(self, topic: str) -> Selector | None:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            return None
        return Selector.parse(subscription.sub_string, subscription.expression_type)

    def topics(self) -> list[str]:
        return list(self._subscriptions)

    def all(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    async def check_expressions(self, group: str) -> None:
        """Let a broker judge SQL expressions before messages depend on them. Raises `Refused` with its reason."""
        for subscription in self.all():
            if subscription.expression_type != ExpressionType.TAG:
                await self._cluster.check_subscription(group, subscription.topic, subscription)

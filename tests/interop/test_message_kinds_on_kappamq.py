"""Retries, dead letters, delays, transactions and requests of the official Java clients on our cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.testing.cluster import SMALL_STORE, ClusterAddresses, start_cluster
from tests.interop.harness import JavaClient, JavaError, Subscription
from tests.interop.kind_scenarios import (
    dead_letter,
    delay_level,
    delay_level_beyond_the_last,
    listener_failures_retry,
    new_groups_start,
    request_reply,
    retry_then_success,
    send_back_from_pull,
    timer_delay,
    transaction_check,
    transaction_check_by_another_producer,
    transaction_commit,
    transaction_rollback,
)
from tests.interop.scenarios import Scenario
from tests.interop.support import fresh, topic_with_admin

SCENARIOS = (
    retry_then_success,
    listener_failures_retry,
    dead_letter,
    send_back_from_pull,
    delay_level,
    delay_level_beyond_the_last,
    timer_delay,
    new_groups_start,
    transaction_commit,
    transaction_rollback,
    transaction_check,
    transaction_check_by_another_producer,
    request_reply,
)


@pytest.fixture(scope="module")
def our_cluster() -> Iterator[ClusterAddresses]:
    """One that asks about undecided transactions soon enough for a test."""
    settings = BrokerSettings(
        name="template", store=SMALL_STORE, transaction_timeout_ms=1000, transaction_check_interval_ms=1000
    )
    with start_cluster(settings=settings) as cluster:
        yield cluster


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_java_client_on_kappamq(scenario: Scenario, java_client: JavaClient, our_cluster: ClusterAddresses) -> None:
    scenario(java_client, our_cluster)


def test_a_java_consumer_is_told_where_its_condition_is_wrong(
    java_client: JavaClient, our_cluster: ClusterAddresses
) -> None:
    with topic_with_admin(java_client, our_cluster, queues=1) as (topic, _):
        broken = Subscription(topic=topic, expression="a BETWEEN AND 5", kind="SQL92")
        with pytest.raises(JavaError, match="position 11"):
            java_client.push_consumer(our_cluster.nameserver, fresh("group"), [broken])

"""The same scenarios that the client passes on real RocketMQ, on our own brokers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kappamq.testing import start_cluster
from tests.interop.test_client_on_rocketmq import (  # noqa: F401 - collected here.
    calls,
    producer,
    test_a_reset_group_goes_on_within_seconds,
    test_a_timed_message_can_be_taken_back,
    test_batches_and_background_sends,
    test_broadcasting_reaches_every_member_and_remembers,
    test_compressed_bodies_come_back_whole,
    test_delayed_messages_wait,
    test_lite_pull_seeks_and_commits,
    test_members_share_take_over_and_lose_nothing,
    test_messages_that_fail_too_often_become_dead_letters,
    test_ordered_consumption_keeps_the_order_of_each_key,
    test_pushed_messages_are_retried_and_committed,
    test_raw_pulls_and_offsets,
    test_receipts_views_and_queries,
    test_requests_get_replies,
    test_tags_and_sql_choose_messages,
    test_transactions_are_seen_only_when_committed,
)


@dataclass(frozen=True, slots=True)
class OurCluster:
    """What the scenarios need to know of a cluster."""

    nameserver: str
    broker_address: str
    version: str = "5.5.0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[OurCluster]:
    with start_cluster() as running:
        yield OurCluster(running.nameserver, next(iter(running.brokers.values())))

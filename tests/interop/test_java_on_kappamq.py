"""The scenarios against our own cluster: what the official Java clients do must not differ from the real RocketMQ.

Message kinds that a broker has to wait for are in `test_message_kinds_on_kappamq.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kappamq.testing import ClusterAddresses, start_cluster
from tests.interop.harness import JavaClient
from tests.interop.kind_scenarios import sql_filter, trace
from tests.interop.scenarios import BASIC_SCENARIOS, Scenario


@pytest.fixture(scope="module")
def our_cluster() -> Iterator[ClusterAddresses]:
    """Our name server and one broker on free ports."""
    with start_cluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("scenario", [*BASIC_SCENARIOS, sql_filter, trace], ids=lambda scenario: scenario.__name__)
def test_java_client_on_kappamq(scenario: Scenario, java_client: JavaClient, our_cluster: ClusterAddresses) -> None:
    scenario(java_client, our_cluster)

"""The scenarios against our own cluster: what the official Java clients do must not differ from the real RocketMQ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.harness import JavaClient
from tests.interop.kind_scenarios import KIND_SCENARIOS
from tests.interop.scenarios import BASIC_SCENARIOS, Scenario


@pytest.fixture(scope="module")
def kappamq_cluster() -> Iterator[Any]:
    """Our name server and one broker on free ports."""
    testing = pytest.importorskip("kappamq.testing", reason="our cluster for tests is not there yet")
    if not hasattr(testing, "start_cluster"):
        pytest.skip("kappamq.testing has no start_cluster yet")
    with testing.start_cluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("scenario", BASIC_SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_everyday_work(scenario: Scenario, java_client: JavaClient, kappamq_cluster: Any) -> None:
    scenario(java_client, kappamq_cluster)


@pytest.mark.parametrize("scenario", KIND_SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_message_kinds(scenario: Scenario, java_client: JavaClient, kappamq_cluster: Any) -> None:
    scenario(java_client, kappamq_cluster)

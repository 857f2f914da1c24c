"""The scenarios against the real RocketMQ 5.5.0: proves the harness, and records what ours must match."""

from __future__ import annotations

import pytest

from tests.interop.harness import JavaClient
from tests.interop.kind_scenarios import KIND_SCENARIOS
from tests.interop.rocketmq import Cluster
from tests.interop.scenarios import BASIC_SCENARIOS, Scenario

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("scenario", BASIC_SCENARIOS + KIND_SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_java_client_on_rocketmq(scenario: Scenario, java_client: JavaClient, rocketmq_cluster: Cluster) -> None:
    scenario(java_client, rocketmq_cluster)

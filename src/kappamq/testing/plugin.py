"""Pytest fixtures of KappaMQ, loaded through the `pytest11` entry point."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kappamq.testing.cluster import ClusterAddresses


@pytest.fixture(scope="session")
def kappamq_cluster() -> "Iterator[ClusterAddresses]":
    """A cluster of one name server and one broker that lives as long as the test session."""
    from kappamq.testing.cluster import start_cluster

    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def kappamq_nameserver(kappamq_cluster: "ClusterAddresses") -> str:
    """Name server address of the session's cluster."""
    return kappamq_cluster.nameserver

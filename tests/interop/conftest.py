"""Real clusters and real clients for interop tests; what cannot be had here is a skip that says so loudly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.interop.harness import CLIENT_VERSIONS, JavaClient
from tests.interop.rocketmq import Cluster, Unreachable, start_cluster

# Messages whose transaction is undecided are asked about soon enough for a test.
TEST_SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "recallMessageEnable": "true",
}

TEST_SECONDS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "interop" in item.path.parts:
            item.add_marker(pytest.mark.interop)
            if item.get_closest_marker("timeout") is None:
                # The first test of a session may have to fetch and build what all use.
                item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


def skip_loudly(missing: Unreachable) -> None:
    """Skip, and say so in the warnings summary too: a skipped interop run proves nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(pytest.PytestWarning(f"INTEROP NOT PROVEN: {missing.reason}"), stacklevel=2)
    pytest.skip(f"INTEROP NOT PROVEN: {missing.reason}")


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def java_client(request: pytest.FixtureRequest) -> Iterator[JavaClient]:
    """The official Java client, once per version; one JVM per version and session."""
    yield from _java_client(request.param)


@pytest.fixture(scope="session")
def java_client_550() -> Iterator[JavaClient]:
    """The official Java client 5.5.0 alone, for what older ones cannot do."""
    yield from _java_client("5.5.0")


@pytest.fixture(scope="module")
def rocketmq_cluster() -> Iterator[Cluster]:
    """A real name server and broker, 5.5.0."""
    yield from _cluster("5.5.0")


@pytest.fixture(scope="module")
def rocketmq_497_cluster() -> Iterator[Cluster]:
    """A real name server and broker, 4.9.7."""
    yield from _cluster("4.9.7")


def _java_client(version: str) -> Iterator[JavaClient]:
    try:
        java = JavaClient(version)
    except Unreachable as missing:
        skip_loudly(missing)
        raise
    with java:
        yield java


def _cluster(version: str) -> Iterator[Cluster]:
    try:
        running = start_cluster(version, settings=TEST_SETTINGS)
        cluster = running.__enter__()
    except Unreachable as missing:
        skip_loudly(missing)
        raise
    try:
        yield cluster
    finally:
        running.__exit__(None, None, None)

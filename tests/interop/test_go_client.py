"""The official Go client on the real RocketMQ and on ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kappamq.testing import start_cluster
from tests.interop.artifacts import Unreachable
from tests.interop.conftest import skip_loudly
from tests.interop.go_client import build_go_client, run_go_client
from tests.interop.support import fresh

MESSAGES = 100


@pytest.fixture(scope="session")
def go_client() -> Path:
    try:
        return build_go_client()
    except Unreachable as missing:
        skip_loudly(missing)
        raise


@pytest.fixture(params=["kappamq", "rocketmq"])
def nameserver(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "rocketmq":
        yield request.getfixturevalue("rocketmq_cluster").nameserver
    else:
        with start_cluster() as cluster:
            yield cluster.nameserver


def test_go_client_sends_and_consumes(go_client: Path, nameserver: str) -> None:
    report = run_go_client(go_client, nameserver, fresh("go"), fresh("group"), count=MESSAGES)
    assert {each["status"] for each in report.sent} == {0}
    assert Counter(each["queueId"] for each in report.sent) == {0: 25, 1: 25, 2: 25, 3: 25}
    received = {each["property"]: each for each in report.received}
    assert len(report.received) == len(received) == MESSAGES
    for number, sent in enumerate(report.sent):
        message = received[str(number)]
        assert (message["body"], message["tags"]) == (f"body {number}", "Go")
        assert message["keys"].strip() == f"key{number}"
        for field in ("queueId", "queueOffset", "uniqueId", "offsetId"):
            assert message[field] == sent[field], field

"""The official Go client on the real RocketMQ and on ours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.testing.cluster import SMALL_STORE, start_cluster
from tests.interop.artifacts import Unreachable
from tests.interop.conftest import skip_loudly
from tests.interop.frames import ask
from tests.interop.go_client import build_go_client, run_go_client, run_go_kinds
from tests.interop.support import eventually, fresh

MESSAGES = 100
# Delivery may come a little before the whole delay, as clocks of client and broker are cut to milliseconds.
CLOCK_SLACK_MS = 50
GET_ROUTE, PULL = 105, 11
SUBSCRIPTION_INCLUDED = 4


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
        # Undecided transactions are asked about soon enough for a test, as on the real one here.
        settings = BrokerSettings(
            name="template", store=SMALL_STORE, transaction_timeout_ms=1000, transaction_check_interval_ms=1000
        )
        with start_cluster(settings=settings) as cluster:
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


def test_go_client_and_message_kinds(go_client: Path, nameserver: str) -> None:
    """Order by key, delays, transactions with check-back, dead letters, and both kinds of filter."""
    suffix = fresh("")
    reports = run_go_kinds(go_client, nameserver, suffix)
    assert {name: report["error"] for name, report in reports.items() if report["error"]} == {}
    deliveries = {name: report["deliveries"] for name, report in reports.items()}

    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for each in deliveries["ordered"]:
        by_key.setdefault(each["key"].strip(), []).append(each)
    assert {key: _bodies(got) for key, got in by_key.items()} == {
        f"user{key}": [f"body {n}" for n in range(key, 30, 3)] for key in range(3)
    }
    for got in by_key.values():
        assert len({each["queueId"] for each in got}) == 1
        assert all(one["queueOffset"] < next_one["queueOffset"] for one, next_one in pairwise(got))

    assert _bodies(deliveries["delayed"]) == ["body 2", "body 1", "body 0"]
    ages_ms = [each["receivedAt"] - each["bornAt"] for each in deliveries["delayed"]]
    assert ages_ms[1] >= 1000 - CLOCK_SLACK_MS
    assert ages_ms[2] >= 5000 - CLOCK_SLACK_MS

    assert sorted(_bodies(deliveries["transaction"])) == ["body 0", "body 1"]
    assert set(reports["transaction"]["checked"]) == {"body 1", "body 3"}

    assert [each["retryCount"] for each in deliveries["dead"]] == [0, 1, 2]
    dead_topic = f"%DLQ%go-group-dead{suffix}"
    broker = re.search(rb"127\.0\.0\.1:\d+", ask(nameserver, GET_ROUTE, {"topic": dead_topic}).body)
    assert broker is not None
    letters = eventually(lambda: _first_of(broker[0].decode(), dead_topic), lambda records: b"body 0" in records)
    assert f"RETRY_TOPIC\x01go-dead{suffix}".encode() in letters

    assert sorted(_bodies(deliveries["tags"])) == ["body 0", "body 2", "body 3", "body 5"]
    assert sorted(_bodies(deliveries["sql"])) == ["body 2", "body 3"]


def _bodies(deliveries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [each["body"] for each in deliveries]


def _first_of(broker: str, topic: str) -> bytes:
    """The records that a pull from the beginning of queue 0 brings."""
    fields = {
        "consumerGroup": "go-reader",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": str(SUBSCRIPTION_INCLUDED),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    return ask(broker, PULL, fields).body

"""Traces on a running cluster: what clients leave and what the command shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from kappamq.admin.admin import Admin
from kappamq.admin.traces import Step
from kappamq.cli.main import run
from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.core.handling import RetryLater
from kappamq.client.settings import ConsumerSettings, ProducerSettings
from kappamq.errors import KappaError
from kappamq.model.message import Message, StoredMessage
from kappamq.testing import RunningCluster, start_cluster

TRACED = ProducerSettings(trace=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with start_cluster() as running:
        yield running


async def steps(nameserver: str, message_id: str, count: int) -> list[Step]:
    """Traces of a message, as soon as there are so many."""
    async with Admin(nameserver) as admin, asyncio.timeout(60):
        while True:
            try:
                found = await admin.traces.of(message_id)
            except KappaError:
                found = []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


def test_the_life_of_a_message(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> str:
        async with Producer(cluster.nameserver, group="shop", settings=TRACED) as producer:
            receipt = await producer.send(Message("orders", b"hello", tags="new", keys="order-1"))
        settings = ConsumerSettings(trace=True)
        tries = 0
        async with PushConsumer(cluster.nameserver, group="g", start_from="first", settings=settings) as consumer:

            @consumer.on("orders")
            async def handle(_: StoredMessage) -> None:
                nonlocal tries
                tries += 1
                if tries == 1:
                    raise RetryLater(delay_level=1)

            await consumer.start()
            async with asyncio.timeout(60):
                while tries < 2:
                    await asyncio.sleep(0.05)
        sent, first, second = await steps(cluster.nameserver, receipt.message_id, 3)
        assert (sent.what, sent.group, sent.topic, sent.keys) == ("sent", "shop", "orders", "order-1")
        assert sent.store_host == next(iter(cluster.brokers.values()))
        assert (first.what, first.group, first.retry_count, first.status) == ("handled", "g", 0, "wanted again")
        assert (second.retry_count, second.status) == (1, "success")
        return receipt.message_id

    message_id = asyncio.run(scenario())
    assert run(["trace", message_id, "-n", cluster.nameserver]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert "wanted again" in shown[2]
    assert run(["trace", message_id, "--json", "-n", cluster.nameserver]) == 0
    assert [step["what"] for step in json.loads(capsys.readouterr().out)] == ["sent", "handled", "handled"]
    assert run(["trace", "0" * 32, "-n", cluster.nameserver]) == 1
    assert "nobody has traced" in capsys.readouterr().err


def test_every_way_to_send_and_to_read_is_traced(cluster: RunningCluster) -> None:
    async def scenario() -> None:
        async with Producer(cluster.nameserver, group="shop", settings=TRACED) as producer:
            first = await producer.send(Message("many", b"1"))
            soon = await producer.send_soon(Message("many", b"2"))
            batch = await producer.send_batch([Message("many", b"3"), Message("many", b"4")])
            async with producer.transaction(Message("many", b"5")) as transaction:
                pass
            await producer.send_one_way(Message("one-way", b"6", keys="nobody-answers"))
        for receipt in (first, soon, *batch):
            assert [step.what for step in await steps(cluster.nameserver, receipt.message_id, 1)] == ["sent"]
        found = await steps(cluster.nameserver, transaction.message_id, 2)
        assert [(step.what, step.status) for step in found] == [
            ("sent (half)", "success"),
            ("decided", "COMMIT_MESSAGE"),
        ]
        async with LitePullConsumer(cluster.nameserver, group="finder", topics=["one-way"], start_from="first") as lite:
            async with asyncio.timeout(60):
                unanswered = await anext(lite)
        [step] = await steps(cluster.nameserver, unanswered.message_id, 1)
        assert (step.what, step.topic, step.keys, step.status) == ("sent", "one-way", "nobody-answers", "success")
        async with LitePullConsumer(
            cluster.nameserver,
            group="readers",
            topics=["many"],
            start_from="first",
            settings=ConsumerSettings(trace=True),
        ) as consumer:
            count = 0
            async with asyncio.timeout(60):
                while count < 5:
                    count += len(await consumer.poll(timeout=1))
        found = await steps(cluster.nameserver, batch[1].message_id, 2)
        assert [(step.what, step.group) for step in found] == [("sent", "shop"), ("handled", "readers")]

    asyncio.run(scenario())

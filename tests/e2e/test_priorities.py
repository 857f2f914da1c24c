"""Urgent messages on a running cluster: a backlog of others does not hold them back."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.admin.admin import Admin
from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.settings import LitePullSettings
from kappamq.errors import UsageError
from kappamq.model.message import Message, StoredMessage
from kappamq.testing.cluster import run_cluster
from tests.patience import PATIENT

BACKLOG = 600
SOON = 100
"""Far fewer than the backlog: what is under way already may still come first."""


async def fill(nameserver: str, producer: Producer) -> None:
    async with Admin(nameserver) as admin:
        for topic in ("urgent", "bulk"):
            await admin.topics.create(topic, queues=1)
    await producer.send_batch([Message("bulk", b"%d" % number) for number in range(BACKLOG)])


@pytest.mark.parametrize("is_full", [True, False])
def test_an_urgent_message_overtakes_what_was_read_ahead(is_full: bool) -> None:
    async def scenario() -> None:
        async with run_cluster() as cluster, Producer(cluster.nameserver, group="p", settings=PATIENT) as producer:
            await fill(cluster.nameserver, producer)
            # With 300 the cache is full all the time: bulk messages must not keep the urgent queue from being read.
            lite = LitePullSettings(cached_messages_max=300 if is_full else 10_000)
            async with LitePullConsumer(
                cluster.nameserver,
                group="g",
                topics=["urgent", "bulk"],
                start_from="first",
                priorities={"urgent": 10},
                lite=lite,
            ) as consumer:
                order = [await anext(consumer)]
                waits: list[int] = []
                async with asyncio.timeout(60):
                    for _ in range(2):
                        started = len(order)
                        await producer.send(Message("urgent", b"now"))
                        while len(order) == started or order[-1].topic != "urgent":
                            await asyncio.sleep(0.002)
                            order.append(await anext(consumer))
                        waits.append(len(order) - started)
                    while len(order) < BACKLOG + 2:
                        order.append(await anext(consumer))
            assert max(waits) < SOON
            assert [each.body for each in order if each.topic == "bulk"] == [b"%d" % n for n in range(BACKLOG)]

    asyncio.run(scenario())


def test_an_urgent_message_is_handled_before_a_backlog() -> None:
    async def scenario() -> None:
        async with run_cluster() as cluster, Producer(cluster.nameserver, group="p", settings=PATIENT) as producer:
            await fill(cluster.nameserver, producer)
            handled: list[str] = []
            async with PushConsumer(
                cluster.nameserver, group="g", start_from="first", priorities={"urgent": 10}, concurrency=1
            ) as consumer:
                is_urgent_done = asyncio.Event()

                @consumer.on("bulk")
                async def handle_bulk(_: StoredMessage) -> None:
                    handled.append("bulk")
                    if len(handled) == 1:
                        await producer.send(Message("urgent", b"now"))
                    await asyncio.sleep(0.005)

                @consumer.on("urgent")
                async def handle_urgent(_: StoredMessage) -> None:
                    handled.append("urgent")
                    is_urgent_done.set()

                await consumer.start()
                async with asyncio.timeout(60):
                    await is_urgent_done.wait()
            assert handled.index("urgent") < SOON

    asyncio.run(scenario())


def test_levels_of_messages_go_to_queues_of_their_own() -> None:
    async def scenario() -> None:
        async with run_cluster() as cluster, Producer(cluster.nameserver, group="p", settings=PATIENT) as producer:
            async with Admin(cluster.nameserver) as admin:
                await admin.topics.create("levels", queues=3)
            receipts = [await producer.send(Message("levels", b"%d" % level), priority=level) for level in (0, 1, 2, 7)]
            assert [receipt.queue.queue_id for receipt in receipts] == [0, 1, 2, 2]
            with pytest.raises(UsageError, match="priority"):
                await producer.send(Message("levels", b"x"), priority=1, sharding_key="k")
            with pytest.raises(UsageError, match="256"):
                await producer.send(Message("levels", b"x"), priority=256)
            async with LitePullConsumer(
                cluster.nameserver,
                group="g",
                topics=["levels"],
                start_from="first",
                priorities={"levels": "message"},
            ) as consumer:
                async with asyncio.timeout(60):
                    while sum(reader.cached_messages for reader in consumer._readers.values()) < 4:
                        await asyncio.sleep(0.01)
                    bodies = [(await anext(consumer)).body for _ in range(4)]
            # A queue hands out in order; the second message of the last queue is as urgent as the batch it came with.
            assert bodies == [b"2", b"7", b"1", b"0"]

    asyncio.run(scenario())


def test_ordered_consumers_have_no_priorities() -> None:
    with pytest.raises(UsageError, match="ordered"):
        PushConsumer("127.0.0.1:1", group="g", ordered=True, priorities={"a": 1})

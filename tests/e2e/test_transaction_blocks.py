"""Transactions as blocks, on a running cluster: what consumers see."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.aio.producer import Producer
from kappamq.model.message import Message, StoredMessage
from kappamq.testing.cluster import run_cluster


def test_only_blocks_that_end_well_are_seen() -> None:
    asyncio.run(scenario())


async def scenario() -> None:
    async with run_cluster() as cluster, Producer(cluster.nameserver, group="shop") as producer:
        await producer.send(Message("orders", b"plain"))
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"failed")):
                raise ZeroDivisionError
        async with producer.transaction(Message("orders", b"good")) as transaction:
            pass
        async with LitePullConsumer(cluster.nameserver, group="g", topics=["orders"], start_from="first") as consumer:
            found: list[StoredMessage] = []
            async with asyncio.timeout(60):
                while len(found) < 2:
                    found += await consumer.poll(timeout=1)
            found += await consumer.poll(timeout=0.3)
        assert {message.body for message in found} == {b"plain", b"good"}
        assert transaction.message_id in {message.message_id for message in found}

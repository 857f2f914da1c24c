"""Messages by id and key, against brokers that answer as told."""

import asyncio

import pytest

from kappamq.errors import NotFound, UsageError
from kappamq.model.ids import offset_id, pack_host, split_address
from kappamq.model.properties import encode_properties
from kappamq.model.record import NewRecord
from kappamq.wire.command import Command
from tests.unit.admin.scripted import ScriptedBroker, scripted_cluster

UNIQUE_ID = "7F0000010A0B18B4AAC275F5E0E50000"


def stored(broker: ScriptedBroker) -> bytes:
    host = pack_host(*split_address(broker.address))
    properties = encode_properties({"KEYS": "k1 k2", "UNIQ_KEY": UNIQUE_ID}).encode()
    record = NewRecord("orders", 0, b"body", properties, 1, host, host)
    return record.encode(queue_offset=5, log_offset=100, stored_at_ms=9, append_crc=False)


def test_an_offset_id_is_looked_up_where_it_says() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2") as (admin, brokers):
            broker = brokers[1]
            broker.answers[33] = lambda request: request.reply(body=stored(broker))
            found = await admin.messages.show(offset_id(pack_host(*split_address(broker.address)), 100))
            assert (found.body, found.queue_offset) == (b"body", 5)
            assert broker.asked[-1].fields["offset"] == "100"
            assert brokers[0].asked == []

    asyncio.run(scenario())


def test_a_unique_id_is_searched_in_its_topic() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):

            def query(request: Command) -> Command:
                return request.reply(
                    fields={"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}, body=stored(broker)
                )

            broker.answers[12] = query
            assert (await admin.messages.show(UNIQUE_ID, topic="orders")).keys == ("k1", "k2")
            assert broker.asked[-1].fields["_UNIQUE_KEY_QUERY"] == "true"
            assert [message.body for message in await admin.messages.find("orders", "k2")] == [b"body"]
            broker.answers[12] = lambda request: request.reply(22, "nothing")
            with pytest.raises(NotFound, match="expired"):
                await admin.messages.show(UNIQUE_ID, topic="orders")
            assert await admin.messages.find("orders", "k3") == []

    asyncio.run(scenario())


@pytest.mark.parametrize("message_id", [UNIQUE_ID, "xyz", "Z" * 32, ""])
def test_an_id_that_names_no_broker_needs_the_topic(message_id: str) -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, _):
            with pytest.raises(UsageError, match="--topic"):
                await admin.messages.show(message_id)

    asyncio.run(scenario())

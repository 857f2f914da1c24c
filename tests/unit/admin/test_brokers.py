"""Brokers, as they describe themselves and when they do not."""

import asyncio

import pytest

from kappamq.admin.values import Traffic
from kappamq.errors import NotFound, NotPermitted
from kappamq.wire.bodies import encode_table
from tests.unit.admin.scripted import scripted_cluster

FIGURES = {
    "brokerVersionDesc": "V5_3_3",
    "putTps": "12.5 10.0 9.0",
    "getTransferedTps": "3.5 1 1",
    "msgPutTotalYesterdayMorning": "10",
    "msgPutTotalTodayMorning": "30",
    "msgPutTotalTodayNow": "100",
    "commitLogDiskRatio": "0.25",
    "earliestMessageTimeStamp": "77",
}


def test_overview_shows_load_and_faults() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2", "b3") as (admin, brokers):
            brokers[0].answers[28] = lambda request: request.reply(body=encode_table(FIGURES))
            brokers[1].answers[28] = lambda request: request.reply(1, "broken")
            brokers[2].answers[28] = lambda request: request.reply(body=encode_table({"putTps": "", "x": "odd"}))
            good, broken, young = await admin.brokers.overview()
            assert (good.name, good.broker_id, good.version, good.fault) == ("b1", 0, "V5_3_3", None)
            assert good.received == Traffic(per_second=12.5, today=70, yesterday=20)
            assert good.delivered == Traffic(per_second=3.5)
            assert (good.disk_ratio, good.earliest_at_ms) == (0.25, 77)
            assert "broken" in (broken.fault or "")
            assert young.received == Traffic()

    asyncio.run(scenario())


def test_settings_are_read_and_changed() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            broker.answers[26] = lambda request: request.reply(body=b"#x\nbrokerName=b1\nflushDiskType=SYNC_FLUSH\n")
            broker.answers[25] = lambda request: request.reply()
            settings = await admin.brokers.settings(broker.address)
            assert settings == {"brokerName": "b1", "flushDiskType": "SYNC_FLUSH"}
            await admin.brokers.change_settings(broker.address, {"longPollingEnable": "false"})
            assert broker.asked[-1].body == b"longPollingEnable=false\n"
            broker.answers[25] = lambda request: request.reply(16, "protected")
            with pytest.raises(NotPermitted, match="protected"):
                await admin.brokers.change_settings(broker.address, {"storePathRootDir": "/"})

    asyncio.run(scenario())


def test_write_permission_is_taken_and_given_back() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1", "b2") as (admin, _):
            assert await admin.brokers.stop_writes("b1") == 3
            route = await admin.topics.route("orders")
            assert {queues.broker: queues.permission for queues in route.queues} == {"b1": 4, "b2": 6}
            assert await admin.brokers.allow_writes("b1") == 3
            with pytest.raises(NotFound, match="kappamq cluster"):
                await admin.brokers.allow_writes("nobody")

    asyncio.run(scenario())


def test_producers() -> None:
    async def scenario() -> None:
        async with scripted_cluster("b1") as (admin, [broker]):
            item = b'{"clientId":"c","remoteIP":"127.0.0.1:9","language":"GO","version":317,"lastUpdateTimestamp":1}'
            broker.answers[328] = lambda request: request.reply(body=b'{"data":{"pg":[' + item + b"]}}")
            [producer] = await admin.brokers.producers(broker.address)
            assert (producer.group, producer.client_id, producer.language) == ("pg", "c", "GO")

    asyncio.run(scenario())

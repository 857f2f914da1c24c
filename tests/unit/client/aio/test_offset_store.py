"""Where progress is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.offset_store import LocalOffsets, RemoteOffsets
from kappamq.errors import ConfigError
from kappamq.model.message import Queue
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.client.aio.fake_cluster import FakeCluster

QUEUES = [Queue("orders", "broker-a", queue_id) for queue_id in range(3)]


async def test_remote_progress_goes_forward_and_reaches_the_broker() -> None:
    async with FakeCluster(queues=3) as fake, Cluster(fake.nameserver) as cluster:
        await cluster.routes.find("orders")
        store = RemoteOffsets(cluster, "g")
        for queue in QUEUES:
            store.update(queue, 5)
        store.update(QUEUES[0], 3)
        store.update(QUEUES[1], 3, only_forward=False)
        await store.persist(QUEUES)
        assert [fake.broker.committed["g", "orders", queue_id] for queue_id in range(3)] == [5, 3, 5]
        assert await store.stored(QUEUES[1]) == 3
        assert await store.stored(Queue("orders", "broker-a", 9)) is None
        store.forget(QUEUES[0])
        assert store.in_memory(QUEUES[0]) is None


async def test_a_commit_that_fails_comes_again() -> None:
    async with FakeCluster() as fake, Cluster(fake.nameserver) as cluster:
        await cluster.routes.find("orders")
        fake.broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR)
        store = RemoteOffsets(cluster, "g")
        store.update(QUEUES[0], 5)
        await store.persist(QUEUES)
        assert not fake.broker.committed
        await store.persist(QUEUES)
        assert fake.broker.committed["g", "orders", 0] == 5


async def test_local_progress_is_read_back(tmp_path: Path) -> None:
    store = LocalOffsets("1.2.3.4@DEFAULT", "g", directory=tmp_path)
    await store.load()
    store.update(QUEUES[0], 5)
    await store.persist([])
    assert store.path == tmp_path / "1.2.3.4@DEFAULT" / "g" / "offsets.json"
    store.update(QUEUES[0], 6)
    await store.persist([])
    again = LocalOffsets("1.2.3.4@DEFAULT", "g", directory=tmp_path)
    await again.load()
    assert await again.stored(QUEUES[0]) == again.in_memory(QUEUES[0]) == 6
    assert ":5" in store.path.with_name("offsets.json.bak").read_text()


async def test_local_progress_of_java_is_understood_and_backups_help(tmp_path: Path) -> None:
    store = LocalOffsets("c", "g", directory=tmp_path)
    store.path.parent.mkdir(parents=True)
    java = '{\n\t"offsetTable":{{\n\t\t"brokerName":"broker-a","queueId":0,"topic":"orders"}:10\n\t}\n}'
    store.path.with_name("offsets.json.bak").write_text(java)
    store.path.write_text("{damaged")
    await store.load()
    assert await store.stored(QUEUES[0]) == 10
    store.path.with_name("offsets.json.bak").write_text("{damaged, too")
    with pytest.raises(ConfigError, match="repair the file"):
        await store.load()

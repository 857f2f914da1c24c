"""What goes wrong while a pipeline runs: an error that says what to do, and nothing lost."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kappamq
from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.errors import KappaError
from kappamq.spark.jobs import archive
from kappamq.testing import ClusterAddresses, start_cluster
from kappamq.testing.cluster import SMALL_STORE
from tests.patience import PATIENT
from tests.spark.processes import wait_until
from tests.spark.reading import Read, Send, make_queues
from tests.unit.spark.store_builder import StoreBuilder


class Archive:
    """An archive of one topic that is run again and again."""

    def __init__(self, spark: SparkSession, nameserver: str, where: Path) -> None:
        self.spark, self.nameserver = spark, nameserver
        self.output, self.checkpoint = where / "output", where / "checkpoint"

    def run(self, topic: str, follow_seconds: int | None = None) -> int:
        return archive.run(
            self.spark,
            self.nameserver,
            output=str(self.output),
            checkpoint=str(self.checkpoint),
            topics=topic,
            follow_seconds=follow_seconds,
        )

    def numbers(self) -> list[int]:
        bodies = ds.dataset(self.output, partitioning="hive").to_table(columns=["body"])["body"].to_pylist()
        return sorted(json.loads(body)["n"] for body in bodies)

    def batches(self) -> int:
        return max((json.loads(path.read_text())["batch"] for path in self.output.glob("_progress/*.json")), default=-1)


@pytest.fixture
def kept(spark: SparkSession, cluster: ClusterAddresses, tmp_path: Path) -> Archive:
    return Archive(spark, cluster.nameserver, tmp_path)


def test_following_ends_cleanly_and_makes_few_files(kept: Archive, send: Send, topic: str) -> None:
    send(10)
    faults: list[BaseException] = []

    def add_and_interrupt() -> None:
        try:
            for number in range(1, 3):
                wait_until(lambda number=number: kept.batches() >= number - 1)  # type: ignore[misc]
                send(10, first=number * 10)
            wait_until(lambda: len(kept.numbers()) == 30)
        except BaseException as fault:
            faults.append(fault)
            raise
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=add_and_interrupt)
    thread.start()
    rows = kept.run(topic, follow_seconds=1)
    thread.join()
    assert not faults
    assert rows == 30
    assert kept.batches() >= 2
    # Four queues and three batches: one file for each day, and no more.
    assert len(list(kept.output.glob("topic=*/day=*/*"))) == len(list(kept.output.glob("topic=*/day=*")))
    send(5, first=30)
    assert kept.run(topic) == 5
    assert kept.numbers() == list(range(35))


def test_a_checkpoint_of_another_topic_is_refused(kept: Archive, send: Send, topic: str) -> None:
    send(10)
    send(10, topic=f"{topic}-b")
    kept.run(topic)
    with pytest.raises(KappaError, match=f"the checkpoint is about {topic}, but the query reads {topic}-b: use a"):
        kept.run(f"{topic}-b")
    assert kept.run(f"{topic},{topic}-b") == 10


def test_the_archive_of_a_lost_checkpoint_is_not_filled_twice(kept: Archive, send: Send, topic: str) -> None:
    send(10)
    kept.run(topic)
    kept.checkpoint = kept.checkpoint.with_name("fresh")
    with pytest.raises(KappaError, match="go on with its checkpoint, or use another directory"):
        kept.run(topic)
    assert kept.numbers() == list(range(10))


def test_expired_messages_are_named(spark: SparkSession, tmp_path: Path) -> None:
    store = replace(SMALL_STORE, segment_bytes=64 * 1024, log_bytes_max=128 * 1024)
    settings = BrokerSettings(name="template", store=store, retention_seconds=0.1)
    with (
        start_cluster(settings=settings) as cluster,
        kappamq.Producer(cluster.nameserver, group="p", settings=PATIENT) as producer,
    ):
        kept = Archive(spark, cluster.nameserver, tmp_path)
        asyncio.run(make_queues(cluster.nameserver, "short", 1))
        queue = kappamq.Queue("short", "broker-a", 0)

        def send(first: int, count: int) -> None:
            for number in range(first, first + count):
                producer.send(
                    kappamq.Message("short", json.dumps({"n": number, "x": "x" * 2000}).encode()), queue=queue
                )

        send(0, 5)
        assert kept.run("short") == 5
        with kappamq.Cluster(cluster.nameserver) as direct:
            send(5, 300)
            wait_until(lambda: direct.min_offset(queue) > 5)
        with pytest.raises(KappaError, match=r"lost.*short/broker-a/0.*failOnDataLoss=false|short/broker-a/0.*expired"):
            kept.run("short")
        assert kept.numbers() == list(range(5))


def test_a_damaged_segment_is_named(spark: SparkSession, read: Read, tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store", segment_bytes=1024)
    for number in range(30):
        builder.append("orders", 0, b"body-%d" % number)
    root = builder.write()
    path = root / "commitlog" / f"{1024:020d}"
    data = bytearray(path.read_bytes())
    data[0:8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=f"{path.name} holds another record there: start the broker once"):
        read(namesrvAddr=None, mode="files", storePath=str(root), subscribe="orders").count()


@contextmanager
def small_disk(where: Path) -> Iterator[None]:
    """A disk of half a megabyte."""
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(where)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(pytest.PytestWarning(f"FULL DISK NOT PROVEN: {mounted.stderr.strip()}"), stacklevel=2)
        pytest.skip(f"FULL DISK NOT PROVEN: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as fault:
            if fault.errno != errno.ENOSPC:
                raise


def test_a_full_disk_under_the_checkpoint(kept: Archive, send: Send, topic: str) -> None:
    send(10)
    disk = kept.checkpoint.with_name("disk")
    with small_disk(disk):
        kept.checkpoint = disk / "checkpoint"
        assert kept.run(topic) == 10
        send(10, first=10)
        filler = disk / "filler"
        fill(filler)
        with pytest.raises(KappaError, match="checkpoint or the output is full: free space and run again"):
            kept.run(topic)
        filler.unlink()
        assert kept.run(topic) >= 10
        assert kept.numbers() == list(range(20))


def test_a_new_broker_joins_a_running_stream(spark: SparkSession, tmp_path: Path) -> None:
    with start_cluster() as cluster, kappamq.Producer(cluster.nameserver, group="p", settings=PATIENT) as producer:
        asyncio.run(make_queues(cluster.nameserver, "growing", 2))
        producer.send(kappamq.Message("growing", b'{"n": 0}'))
        frame = (
            spark.readStream.format("rocketmq")
            .options(namesrvAddr=cluster.nameserver, subscribe="growing", startingOffsets="earliest")
            .option("discoveryIntervalMs", "100")
            .load()
        )
        query = (
            frame.writeStream.format("memory").queryName("growing").trigger(processingTime="200 milliseconds").start()
        )
        try:
            wait_until(lambda: spark.table("growing").count() == 1)
            with joined_broker(cluster, tmp_path / "broker-z"):
                asyncio.run(make_queues(cluster.nameserver, "growing", 2))
                with kappamq.Producer(cluster.nameserver, group="p2", settings=PATIENT) as fresh:
                    fresh.send(kappamq.Message("growing", b'{"n": 1}'), queue=kappamq.Queue("growing", "broker-z", 1))
                wait_until(lambda: spark.table("growing").where("broker = 'broker-z'").count() == 1)
                assert query.isActive
        finally:
            query.stop()


@contextmanager
def joined_broker(cluster: ClusterAddresses, data: Path) -> Iterator[None]:
    """One more broker for a running cluster."""
    settings = BrokerSettings(
        name="broker-z", store=SMALL_STORE, listen_port=0, nameservers=cluster.nameservers, data=data
    )
    started, loops = threading.Event(), []

    async def serve() -> None:
        ended = asyncio.Event()
        async with Broker(settings):
            loops.append((asyncio.get_running_loop(), ended))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(90)
    try:
        yield
    finally:
        loop, ended = loops[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join()

"""Spark Connect: a client without a JVM, a server that runs the jobs; and declarative pipelines through it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import kappamq
from kappamq.spark.java import spark_home
from kappamq.testing import ClusterAddresses, start_cluster
from tests.interop.rocketmq import free_port_triple
from tests.patience import PATIENT
from tests.spark.conftest import SETTINGS
from tests.spark.processes import ROOT, WAIT_SECONDS, running, wait_until
from tests.spark.reading import Read, Send, numbers
from tests.unit.spark.broker_store import ENTRIES, SLOTS, write_store

pytest.importorskip("grpc", reason="the extra 'connect' is not installed")

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
RUN_COMMANDS = """
import json, sys
from kappamq.spark.cli import pipeline_app
for command in json.loads(sys.argv[1]):
    pipeline_app(command, standalone_mode=False)
from pyspark.sql import SparkSession
print("session:", SparkSession.getActiveSession().__class__.__module__)
"""


@dataclass(frozen=True)
class Server:
    """A Connect server with two cores."""

    url: str
    warehouse: Path


@pytest.fixture(scope="module")
def server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    where = tmp_path_factory.mktemp("connect")
    port = free_port_triple()
    settings = {
        **SETTINGS,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(where / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
    with running(command, where / "log", environment) as driver:

        def is_up() -> bool:
            assert driver.process.poll() is None, (where / "log").read_text()[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(is_up)
        yield Server(f"sc://127.0.0.1:{port}", where / "warehouse")


def test_jobs_run_through_connect(
    server: Server, cluster: ClusterAddresses, send: Send, read: Read, topic: str, tmp_path: Path
) -> None:
    send(100)
    group = "has-progress"
    with kappamq.LitePullConsumer(cluster.nameserver, group=group, topics=[topic], start_from="first") as consumer:
        next(iter(consumer))
    write_store(tmp_path / "store")
    sizes = ["--index-slots", str(SLOTS), "--index-entries", str(ENTRIES)]
    archived = str(tmp_path / "archive")
    at = ["--nameserver", cluster.nameserver]
    commands = [
        ["archive", archived, "--topic", topic, *at, "--remote", server.url],
        ["archive", archived, "--topic", topic, *at, "--master", server.url],
        ["replay", archived, "--into", f"{topic}-again", *at, "--master", server.url],
        ["lag", *at, "--master", server.url],
        ["rebuild", str(tmp_path / "store"), str(tmp_path / "rebuilt"), *sizes, "--master", server.url],
    ]
    with running([sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)], tmp_path / "log") as driver:
        printed = re.sub(r"\s+", " ", driver.wait())
    assert "session: pyspark.sql.connect" in printed
    assert "100 messages archived" in printed
    assert " 0 messages archived" in printed
    assert "100 messages sent" in printed
    assert "committed" in printed
    assert group in printed
    assert "entries written" in printed
    bodies = ds.dataset(archived, partitioning="hive").to_table(columns=["body"])["body"].to_pylist()
    assert sorted(json.loads(body)["n"] for body in bodies) == list(range(100))
    assert numbers(read(subscribe=f"{topic}-again")) == list(range(100))


def test_the_declarative_example(server: Server, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "declarative", project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(re.sub(r"storage: .*", f"storage: file://{tmp_path}/storage", spec.read_text()))
    with start_cluster() as cluster, kappamq.Producer(cluster.nameserver, group="shop", settings=PATIENT) as producer:
        environment = {**os.environ, "KAPPAMQ_NAMESERVER": cluster.nameserver, "PYSPARK_PYTHON": sys.executable}

        def order(product: str, amount: float) -> None:
            producer.send(kappamq.Message("orders", json.dumps({"product": product, "amount": amount}).encode()))

        def run() -> None:
            command = [str(spark_home() / "bin" / "spark-pipelines"), "run", "--remote", server.url]
            done = subprocess.run(
                command, cwd=project, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS
            )
            assert done.returncode == 0, done.stdout + done.stderr

        def totals() -> dict[str, tuple[int, float]]:
            rows = ds.dataset(server.warehouse / "orders_by_product", format="parquet").to_table().to_pylist()
            return {row["product"]: (row["orders"], row["amount"]) for row in rows}

        order("tea", 3.5)
        order("piano", 900)
        run()
        assert totals() == {"tea": (1, 3.5), "piano": (1, 900.0)}
        order("tea", 150)
        run()
        assert totals() == {"tea": (2, 153.5), "piano": (1, 900.0)}
        with kappamq.Cluster(cluster.nameserver) as direct:
            found = [
                json.loads(message.body)
                for queue in direct.queues_of("large-orders")
                for message in direct.pull(queue, 0, group="check")
            ]
    assert sorted(each["amount"] for each in found) == [150.0, 900.0]

"""The jobs on executors of their own, and what is left when executors and drivers are killed."""

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import kappamq
from kappamq.errors import TopicNotFound
from kappamq.model.names import HALF_TOPIC
from kappamq.spark.jobs import archive
from kappamq.spark.standalone import Standalone, start_standalone
from kappamq.testing import ClusterAddresses
from tests.spark.processes import MOMENT_SECONDS, QUICK_JAVA, executors, running, wait_until
from tests.spark.processes import send as signal_all
from tests.spark.reading import Read, Send, numbers
from tests.unit.spark.broker_store import ENTRIES, SLOTS, write_store

pytestmark = pytest.mark.timeout(600)

RUN_COMMANDS = """
import json, sys
from kappamq.spark.cli import pipeline_app
for command in json.loads(sys.argv[1]):
    pipeline_app(command, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def standalone(spark: SparkSession) -> Iterator[Standalone]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA["JDK_JAVA_OPTIONS"])
        with start_standalone() as running_cluster:
            patch.undo()
            yield running_cluster


@pytest.fixture
def stored(cluster: ClusterAddresses) -> Iterator[kappamq.Cluster]:
    with kappamq.Cluster(cluster.nameserver) as direct:
        yield direct


def count_of(stored: kappamq.Cluster, topic: str) -> int:
    """Messages that consumers of a topic can see."""
    try:
        return sum(stored.max_offset(queue) for queue in stored.queues_of(topic))
    except TopicNotFound:
        return 0


def kept(directory: Path) -> list[int]:
    """What a reader finds that knows nothing of Spark and of us."""
    table = ds.dataset(directory, partitioning="hive").to_table(columns=["body"])
    return sorted(json.loads(body)["n"] for body in table["body"].to_pylist())


def test_jobs_run_on_executors(
    standalone: Standalone, cluster: ClusterAddresses, send: Send, read: Read, topic: str, tmp_path: Path
) -> None:
    send(200)
    archived, store, rebuilt = tmp_path / "archive", tmp_path / "store", tmp_path / "rebuilt"
    write_store(store)
    sizes = ["--index-slots", str(SLOTS), "--index-entries", str(ENTRIES)]
    on = ["--master", standalone.master]
    for key, value in (standalone.settings | {"spark.sql.codegen.wholeStage": "false"}).items():
        on += ["--conf", f"{key}={value}"]
    at = ["--nameserver", cluster.nameserver]
    commands = [
        ["archive", str(archived), "--topic", topic, *at, *on],
        ["replay", str(archived), "--into", f"{topic}-again", *at, *on],
        ["replay", str(archived), "--into", f"{topic}-again", *at, *on],
        ["lag", *at, *on],
        ["verify", str(store), *sizes, *on],
        ["rebuild", str(store), str(rebuilt), *sizes, *on],
    ]
    with running([sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)], tmp_path / "log") as driver:
        printed = re.sub(r"\s+", " ", driver.wait())
    assert "200 messages archived" in printed
    assert "200 messages sent" in printed
    assert "0 messages sent" in printed.replace("200 messages sent", "", 1)
    assert "nothing wrong" in printed
    assert "entries written" in printed
    assert kept(archived) == list(range(200))
    assert numbers(read(subscribe=f"{topic}-again")) == list(range(200))
    made = sorted(path for pattern in ("consumequeue/*/*/*", "index/*") for path in store.glob(pattern))
    assert made
    for path in made:
        assert (rebuilt / path.relative_to(store)).read_bytes() == path.read_bytes()
    # Executors of this application have worked in the directories of both workers.
    assert len(list(standalone.directory.glob("worker-*/app-*/*/stderr"))) >= 2


def test_a_cluster_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kappamq", "pipeline", "spark-cluster", "--workers", "1"]
    log = tmp_path / "log"
    with running(command, log) as driver:
        wait_until(lambda: "Use it:" in log.read_text())
        processes = driver.pids()
        assert len(processes) == 3
        driver.process.send_signal(signal.SIGINT)
        printed = driver.wait(60)
    assert re.search(r"Master: spark://127\.0\.0\.1:\d+", printed)
    assert re.search(r"Page: +http://127\.0\.0\.1:\d+", printed)
    assert "Spark has ended" in printed
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]


@pytest.mark.proof
def test_killed_executors_lose_and_repeat_nothing(
    standalone: Standalone,
    cluster: ClusterAddresses,
    stored: kappamq.Cluster,
    send: Send,
    read: Read,
    topic: str,
    tmp_path: Path,
) -> None:
    send(600)
    arguments = [standalone.master, cluster.nameserver, topic, str(tmp_path), "600"]

    def kill_executors() -> None:
        """All of them: one of two may be a replacement that has no task yet."""
        signal_all(executors(standalone.worker_pids), signal.SIGKILL)

    def committed(name: str) -> bool:
        return (tmp_path / f"{name}.checkpoint" / "commits" / "0").exists()

    with running([sys.executable, "-m", "tests.spark.copying", *arguments], tmp_path / "log") as driver:
        wait_until(lambda: any(tmp_path.glob("archive/_staging/*/*.parquet")), poll_seconds=MOMENT_SECONDS)
        assert not committed("archive")
        kill_executors()
        wait_until(lambda: count_of(stored, f"{topic}-copy") > 0, poll_seconds=MOMENT_SECONDS)
        assert not committed("copy")
        kill_executors()
        queue = kappamq.Queue(HALF_TOPIC, "broker-a", 0)
        before = stored.max_offset(queue)
        wait_until(lambda: stored.max_offset(queue) > before, poll_seconds=MOMENT_SECONDS)
        assert not committed("exact")
        kill_executors()
        printed = driver.wait()
    assert "all done" in printed
    assert printed.count("Lost executor") >= 3
    check(read, topic, tmp_path, 600)


@pytest.mark.proof
def test_killed_drivers_lose_and_repeat_nothing(
    spark: SparkSession,
    cluster: ClusterAddresses,
    stored: kappamq.Cluster,
    send: Send,
    read: Read,
    topic: str,
    tmp_path: Path,
) -> None:
    """Each driver dies after the rows of a batch are out and before Spark has noted it, then the next one goes on."""
    send(280)
    arguments = [
        sys.executable,
        "-m",
        "tests.spark.copying",
        "local[2]",
        cluster.nameserver,
        topic,
        str(tmp_path),
        "40",
    ]

    def open_batch(name: str) -> int | None:
        """Number of the batch that is begun and not committed, except the first."""
        begun = _last(tmp_path / f"{name}.checkpoint" / "offsets")
        return begun if begun > _last(tmp_path / f"{name}.checkpoint" / "commits") and begun > 0 else None

    def archive_is_between() -> bool:
        batch = open_batch("archive")
        return batch is not None and any(
            json.loads(path.read_text())["batch"] == batch for path in tmp_path.glob("archive/_progress/*.json")
        )

    def copy_is_between(name: str, *, whole: bool) -> bool:
        batch = open_batch(name)
        shown = count_of(stored, f"{topic}-{name}")
        return batch is not None and shown >= batch * 40 + (40 if whole else 1) and open_batch(name) == batch

    with running(arguments, tmp_path / "log-1") as driver:
        driver.kill_when(archive_is_between)
    assert len(kept(tmp_path / "archive")) % 40 == 0
    with running(arguments, tmp_path / "log-2") as driver:
        driver.kill_when(lambda: copy_is_between("copy", whole=True))
    with running(arguments, tmp_path / "log-3") as driver:
        driver.kill_when(lambda: copy_is_between("exact", whole=False))
    with running(arguments, tmp_path / "log-4") as driver:
        assert "all done" in driver.wait()
    check(read, topic, tmp_path, 280)
    # The batch that was sent before the driver died was sent again: that is what the ids are for.
    assert read(subscribe=f"{topic}-copy").count() >= 320
    assert spark.read.parquet(str(tmp_path / "archive")).count() == 280


@pytest.mark.proof
def test_killed_drivers_of_a_replay_lose_and_repeat_nothing(
    spark: SparkSession,
    cluster: ClusterAddresses,
    stored: kappamq.Cluster,
    send: Send,
    read: Read,
    topic: str,
    tmp_path: Path,
) -> None:
    """Killed while messages are stored out of sight, while they are shown, and while they are sent without that."""
    count, rate = 300, 60
    send(count)
    archived = str(tmp_path / "archive")
    archive.run(spark, cluster.nameserver, output=archived, checkpoint=str(tmp_path / "checkpoint"), topics=topic)
    arguments = [sys.executable, "-m", "tests.spark.replaying", cluster.nameserver, archived, topic, str(rate)]
    halves = [kappamq.Queue(HALF_TOPIC, broker, 0) for broker in ("broker-a", "broker-b")]

    def hidden() -> int:
        return sum(stored.max_offset(queue) for queue in halves)

    before = hidden()
    with running(arguments, tmp_path / "log-1") as driver:
        driver.kill_when(lambda: before < hidden() and count_of(stored, f"{topic}-exact") == 0)
    assert count_of(stored, f"{topic}-exact") == 0
    shown = []
    for number, name in enumerate(("exact", "plain")):
        with running(arguments, tmp_path / f"log-{number + 2}") as driver:
            driver.kill_when(lambda name=name: 0 < count_of(stored, f"{topic}-{name}") < count)  # type: ignore[misc]
        shown.append(count_of(stored, f"{topic}-{name}"))
        assert 0 < shown[-1] < count
    with running(arguments, tmp_path / "log-4") as driver:
        printed = driver.wait()
    # What the drivers had done counted, and was not done again.
    assert f"exact: {count - shown[0]} messages sent" in (tmp_path / "log-3").read_text()
    assert "exact: 0 messages sent" in printed
    assert f"plain: {count - shown[1]} messages sent" in printed
    for name in ("exact", "plain"):
        assert numbers(read(subscribe=f"{topic}-{name}")) == list(range(count))


def check(read: Read, topic: str, where: Path, count: int) -> None:
    """Files and transactions have every message once; plain copies have it once by its id."""
    everything = list(range(count))
    assert kept(where / "archive") == everything
    assert numbers(read(subscribe=f"{topic}-copy").dropDuplicates(["messageId"])) == everything
    assert numbers(read(subscribe=f"{topic}-exact")) == everything


def _last(directory: Path) -> int:
    try:
        return max((int(path.name) for path in directory.iterdir() if path.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1

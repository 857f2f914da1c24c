"""A driver that tests kill: keeps a topic as files, then copies it, then copies it in transactions.

    python -m tests.spark.copying MASTER NAMESERVER TOPIC DIRECTORY BATCH_ROWS

Each step has a checkpoint, so that a second run goes on where the first one died.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kappamq.spark.jobs import archive
from kappamq.spark.jobs.frames import topic_stream, wait_for_end
from kappamq.spark.sessions import open_session
from tests.spark.conftest import SETTINGS


def copy(spark: SparkSession, nameserver: str, topic: str, where: Path, rows: int, *, is_transactional: bool) -> None:
    name = "exact" if is_transactional else "copy"
    writer = (
        topic_stream(spark, nameserver, subscribe=topic, maxOffsetsPerTrigger=str(rows))
        .select("body", "keys")
        .writeStream.format("rocketmq")
        .option("namesrvAddr", nameserver)
        .option("topic", f"{topic}-{name}")
        .option("transactional", str(is_transactional).lower())
        .option("checkpointLocation", str(where / f"{name}.checkpoint"))
        .trigger(availableNow=True)
    )
    wait_for_end(writer.start())


def main(master: str, nameserver: str, topic: str, where: Path, rows: int) -> None:
    settings = {**SETTINGS, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
    spark = open_session("copying", master=master, settings=settings)
    archive.run(
        spark,
        nameserver,
        output=str(where / "archive"),
        checkpoint=str(where / "archive.checkpoint"),
        topics=topic,
        rows_per_batch=rows,
    )
    copy(spark, nameserver, topic, where, rows, is_transactional=False)
    copy(spark, nameserver, topic, where, rows, is_transactional=True)
    print("all done")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))

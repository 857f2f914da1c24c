"""A driver that tests kill: sends an archive to a topic in a transaction, then to another one without.

python -m tests.spark.replaying NAMESERVER ARCHIVE TOPIC ROWS_PER_SECOND
"""

import sys

from kappamq.spark.jobs import replay
from kappamq.spark.sessions import local_session
from tests.spark.conftest import SETTINGS


def main(nameserver: str, archive: str, topic: str, rate: int) -> None:
    spark = local_session("replaying", settings=SETTINGS)
    for name, is_exact in (("exact", True), ("plain", False)):
        sent = replay.run(
            spark, nameserver, archive=archive, to_topic=f"{topic}-{name}", name=name, rate=rate, is_exact=is_exact
        )
        print(f"{name}: {sent} messages sent", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

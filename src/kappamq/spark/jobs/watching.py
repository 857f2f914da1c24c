"""What a job says while it runs, where no terminal shows Spark's own bar: how many tasks are done."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

SECONDS: Final = 5.0

Say = Callable[[str], None]


@contextmanager
def watched(spark: "SparkSession", say: Say, *, is_remote: bool, seconds: float = SECONDS) -> Iterator[None]:
    """Tell at intervals how many tasks of what runs are done, if that has changed; `is_remote` is Spark Connect."""
    counted = _connect_counts(spark) if is_remote else _local_counts(spark)
    ended = threading.Event()
    thread = threading.Thread(target=watch, args=(counted, say, ended, seconds), name="kappamq progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def watch(counted: Callable[[], tuple[int, int]], say: Say, ended: threading.Event, seconds: float) -> None:
    """Tell of tasks that are done and of all there are, until it has ended."""
    before = (0, 0)
    while not ended.wait(seconds):
        done, total = counts = counted()
        if total and counts != before:
            say(f"{done} of {total} tasks done")
        before = counts


def _local_counts(spark: "SparkSession") -> Callable[[], tuple[int, int]]:
    tracker = spark.sparkContext.statusTracker()

    def count() -> tuple[int, int]:
        stages = [
            stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None
        ]
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)

    return count


def _connect_counts(spark: "SparkSession") -> Callable[[], tuple[int, int]]:
    last = (0, 0)

    def keep(stages: "Iterable[StageInfo] | None", **_more: object) -> None:
        nonlocal last
        known = list(stages or ())
        last = sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known)

    spark.registerProgressHandler(keep)  # type: ignore[arg-type]  # It is called, nothing else.
    return lambda: last

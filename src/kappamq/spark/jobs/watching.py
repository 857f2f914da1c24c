"""What a job says while it runs, where no terminal shows Spark's own bar: how many tasks are done."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

SECONDS: Final = 5.0

Say = Callable[[str], None]


@contextmanager
def watched(spark: "SparkSession", say: Say, *, is_remote: bool, seconds: float = SECONDS) -> Iterator[None]:
    """Tell at intervals how many tasks of what runs are done, if that has changed; `is_remote` is Spark Connect."""
    ended = threading.Event()
    with _connect_counts(spark) if is_remote else nullcontext(_local_counts(spark)) as counted:
        given = (counted, say, ended, seconds)
        thread = threading.Thread(target=watch, args=given, name="kappamq progress", daemon=True)
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


@contextmanager
def _connect_counts(spark: "SparkSession") -> Iterator[Callable[[], tuple[int, int]]]:
    last = (0, 0)

    def keep(stages: "Iterable[StageInfo] | None", **_more: object) -> None:
        nonlocal last
        known = list(stages or ())
        last = sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known)

    handler: Any = keep
    spark.registerProgressHandler(handler)
    try:
        yield lambda: last
    finally:
        spark.removeProgressHandler(handler)

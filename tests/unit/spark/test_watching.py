"""Lines about tasks that are done."""

import threading

from kappamq.spark.jobs.watching import watch


def test_a_line_for_each_change() -> None:
    counts = iter([(0, 0), (1, 4), (1, 4), (3, 4), (0, 0), (2, 2)])
    ended = threading.Event()
    lines: list[str] = []

    def counted() -> tuple[int, int]:
        following = next(counts, None)
        if following is None:
            ended.set()
        return following or (0, 0)

    watch(counted, lines.append, ended, seconds=0.001)
    assert lines == ["1 of 4 tasks done", "3 of 4 tasks done", "2 of 2 tasks done"]

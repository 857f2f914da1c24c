"""Drivers and executors as processes that tests end the hard way."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
WAIT_SECONDS: Final = 480.0
POLL_SECONDS: Final = 0.05
MOMENT_SECONDS: Final = 0.001
"""Between two looks for a moment that passes."""
QUICK_JAVA: Final = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For processes that live for seconds; also reaches executors, which inherit it from their worker."""


class Driver:
    """A process that runs Spark; its output is kept in a file."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        self._file = log.open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=self._file,
            env={**(environment or os.environ), **QUICK_JAVA, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )

    def wait(self, seconds: float = WAIT_SECONDS) -> str:
        """What it printed, after it ended well."""
        code = self.process.wait(seconds)
        text = self.log.read_text(errors="replace")
        assert code == 0, text[-5000:]
        return text

    def pids(self) -> list[int]:
        """The process and everything it has started, Java and Python workers."""
        return [self.process.pid, *descendants(self.process.pid)]

    def kill_when(self, is_time: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """End the driver and its children without a warning at a moment for which `is_time` still holds when it stands.

        The processes are stopped to look twice: a moment that has passed meanwhile is waited for again.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, "the moment never came: " + self.log.read_text()[-3000:]
            if is_time():
                pids = self.pids()
                send(pids, signal.SIGSTOP)
                if is_time():
                    send(pids, signal.SIGKILL)
                    self.process.wait()
                    return
                send(pids, signal.SIGCONT)
            time.sleep(MOMENT_SECONDS)
        raise TimeoutError("the moment never came")

    def close(self) -> None:
        if self.process.poll() is None:
            send(self.pids(), signal.SIGKILL)
            self.process.wait()
        self._file.close()


@contextmanager
def running(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[Driver]:
    """A driver that is gone at the end of the block."""
    driver = Driver(command, log, environment)
    try:
        yield driver
    finally:
        driver.close()


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def descendants(parent: int) -> list[int]:
    """Processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def executors(worker_pids: tuple[int, ...]) -> list[int]:
    """Java processes that run tasks for the workers of a cluster."""
    found = []
    for worker in worker_pids:
        for pid in descendants(worker):
            try:
                if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
            except OSError:
                continue
    return found


def wait_until(
    is_time: Callable[[], bool], seconds: float = WAIT_SECONDS, *, poll_seconds: float = POLL_SECONDS
) -> None:
    end = time.monotonic() + seconds
    while not is_time():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen in time")
        time.sleep(poll_seconds)

"""Child processes of interop tests: started with a time limit, watched line by line, never left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

LINES_KEPT_MAX: Final = 400
STOP_SECONDS_MAX: Final = 30.0


class ChildFailed(AssertionError):
    """A child process ended, or stayed silent, before it said what was awaited."""


class Child:
    """One child process whose output (both streams together) is read by a thread of ours."""

    def __init__(self, name: str, command: list[str], *, environment: dict[str, str], directory: Path) -> None:
        self.name = name
        self._lines: deque[str] = deque(maxlen=LINES_KEPT_MAX)
        self._changed = threading.Condition()
        self._is_silent = False  # The child has closed its output.
        self.process = subprocess.Popen(
            [*_dying_with_us(), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=directory,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()

    def wait_for(self, text: str, *, seconds_max: float) -> str:
        """Return the first line that contains `text`; raise ChildFailed if the child ends or is silent for too long."""
        deadline = time.monotonic() + seconds_max
        with self._changed:
            while True:
                for line in self._lines:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                if self._is_silent or left <= 0:
                    break
                self._changed.wait(left)
        how = "ended" if self._is_silent else f"said nothing of it for {seconds_max:.0f} s"
        raise ChildFailed(f"{self.name}: waiting for {text!r}, but it {how}. Its last lines:\n{self.log_tail()}")

    def log_tail(self, count: int = 60) -> str:
        """The last lines the child has printed."""
        with self._changed:
            return "\n".join(list(self._lines)[-count:])

    def stop(self) -> None:
        """Ask the child to end (SIGTERM) and wait for it; kill it if it takes too long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._finish()

    def kill(self) -> None:
        """End the child at once (SIGKILL)."""
        self.process.kill()
        self._finish()

    def _finish(self) -> None:
        self.process.wait()
        self._reader.join(STOP_SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            with self._changed:
                self._lines.append(raw.decode("utf-8", "replace").rstrip())
                self._changed.notify_all()
        with self._changed:
            self._is_silent = True
            self._changed.notify_all()


def _dying_with_us() -> list[str]:
    """What to put before a command so that the kernel ends it when we are killed and cannot clean up.

    The thread that starts a child counts as its parent here: start children from a thread that outlives them.
    """
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []

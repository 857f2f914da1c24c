"""RocketMQ's administration tool, many commands in one JVM: starting one for each would cost seconds a command."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Final, Self

from tests.interop.artifacts import Unreachable, compile_java, fetch
from tests.interop.processes import ChildFailed
from tests.interop.rocketmq import java_command, make_home

COMMAND_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 10.0
END_MARK: Final = "\x04"
SHELL_SOURCE: Final = Path(__file__).parent / "java" / "AdminShell.java"


class MqAdmin:
    """`run("topicList")` returns what `mqadmin topicList -n <nameserver>` prints, stack traces included."""

    def __init__(self, nameserver: str) -> None:
        if shutil.which("java") is None:
            raise Unreachable("java is not installed: install a Java 17 runtime")
        libraries = fetch("server-5.5.0")
        classes = compile_java(SHELL_SOURCE, libraries)
        self._nameserver = nameserver
        self.home = make_home()
        """Working directory of the tool: what it exports with a relative path lands here."""
        command = java_command(libraries, "AdminShell", home=self.home, heap_mb=256)
        position = command.index("-cp") + 1
        command[position] = f"{classes}:{command[position]}"
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=self.home,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="mqadmin-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, *arguments: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([*arguments, "-n", self._nameserver]) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        printed: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise ChildFailed(
                    f"mqadmin {arguments[0]} did not end within {COMMAND_SECONDS_MAX:.0f} s: {''.join(printed)[-500:]}"
                ) from None
            if line is None:
                raise ChildFailed(f"the JVM of mqadmin ended during {arguments[0]}: {''.join(printed)[-500:]}")
            if line.strip() == END_MARK:
                return "".join(printed)
            printed.append(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
        self._reader.join(STOP_SECONDS_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

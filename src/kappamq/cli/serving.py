"""Running servers: event loop, logs, signals, and an orderly end."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from kappamq.cli.options import LogLevel

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def start_logging(level: LogLevel) -> None:
    """Log to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _OneLine(logging.Formatter):
    """Puts a traceback on the line of its message, so that every line of a log is one event."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " | ")


def serve(work: Coroutine[Any, Any, None]) -> None:
    """Run a server until it is done, on uvloop where that is installed."""
    _allow_many_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


def _allow_many_files() -> None:
    """Use all the descriptors that the system grants: every connection and every open queue file takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def stop_event(*, with_parent: bool = False) -> asyncio.Event:
    """An event that is set by Ctrl-C and SIGTERM and, with `with_parent`, when standard input ends.

    A second signal ends the process at once: the first one may be stuck in an orderly stop.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), _watch_parent, loop, stopping)
    return stopping


def _watch_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        stopping.set()


def keep_startup_objects() -> None:
    """Take what is there once a server is ready out of garbage collection: looking at all of it takes 10 to 30 ms."""
    gc.collect()
    gc.freeze()


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of several waits ends; raise what made it end."""
    async with asyncio.TaskGroup() as tasks:
        running = {tasks.create_task(_run(wait), name=f"wait {number}") for number, wait in enumerate(waits)}
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


async def _run(wait: Callable[[], Awaitable[object]]) -> None:
    await wait()

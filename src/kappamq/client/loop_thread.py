"""An event loop in a thread of its own, for fronts that block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

from kappamq.errors import UsageError

Front = TypeVar("Front")
Value = TypeVar("Value")

_WATCH_SECONDS: Final = 1.0


class LoopThread(Generic[Front]):
    """Runs one asyncio front from `open` to `close` in a thread that is joined, never abandoned.

    A program that ends without `close` is noticed: the front then closes by itself, so that the program can end.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Front]], *, name: str) -> None:
        self._make = make
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._entered: Future[Front] = Future()
        self._left: Future[None] = Future()
        self._finish: Callable[[Front], Coroutine[Any, Any, None]] | None = None

    @property
    def is_open(self) -> bool:
        return self._thread is not None and self._entered.done() and not self._left.done()

    def open(self) -> Front:
        """Start the thread and enter the front. Raises what entering raises."""
        if self._thread is not None:
            return self._entered.result()
        self._thread = threading.Thread(target=self._run, name=self._name)
        self._thread.start()
        try:
            return self._entered.result()
        except BaseException:
            self._request_stop()
            self._thread.join()
            raise

    def close(self, finish: Callable[[Front], Coroutine[Any, Any, None]] | None = None) -> None:
        """Leave the front, after running `finish` in its loop, and end the thread. Raises what leaving raises."""
        if self._thread is None:
            return
        self._finish = finish
        self._request_stop()
        self._thread.join()
        error = self._left.exception()
        if error is not None:
            raise error

    def call(self, work: Callable[[Front], Coroutine[Any, Any, Value]]) -> Value:
        """Result of a coroutine of the front. Interrupting the wait (Ctrl-C) cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def start(self, work: Callable[[Front], Coroutine[Any, Any, Value]]) -> "Future[Value]":
        """Begin a coroutine of the front, without waiting for it."""
        front, loop = self._current()
        return asyncio.run_coroutine_threadsafe(work(front), loop)

    def run_soon(self, work: Callable[[], None]) -> None:
        """Run a plain function in the loop, from any thread."""
        _, loop = self._current()
        loop.call_soon_threadsafe(work)

    @property
    def front(self) -> Front:
        """The asyncio object; touch it from the loop's thread only."""
        return self._current()[0]

    def _current(self) -> tuple[Front, asyncio.AbstractEventLoop]:
        if not self.is_open or self._loop is None:
            raise UsageError(f"{self._name} is not open: use it inside 'with', or call open() first")
        return self._entered.result(), self._loop

    def _request_stop(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not self._left.done():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                pass  # The loop has just ended by itself.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._main())
            self._left.set_result(None)
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread must reach the threads that wait.
            self._left.set_exception(error)
            if not self._entered.done():
                self._entered.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self._make() as front:
            self._entered.set_result(front)
            while not self._stop.is_set() and threading.main_thread().is_alive():
                try:
                    async with asyncio.timeout(_WATCH_SECONDS):
                        await self._stop.wait()
                except TimeoutError:
                    pass
            if self._finish is not None:
                await self._finish(front)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory

"""Logs on one line, and waiting for the first of several ends."""

import asyncio
import logging
import os
import signal

import pytest

from kappamq.cli.options import LogLevel
from kappamq.cli.serving import first_of, serve, start_logging, stop_event


def test_first_of_ends_with_the_first() -> None:
    async def scenario() -> None:
        done = asyncio.Event()
        done.set()
        async with asyncio.timeout(30):
            await first_of(asyncio.Event().wait, done.wait)

    asyncio.run(scenario())


def test_first_of_raises_what_ended_it() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        async with asyncio.timeout(30):
            await first_of(asyncio.Event().wait, fail)

    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(scenario())
    assert group.group_contains(ValueError, match="broken")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def scenario() -> None:
        stopping = stop_event()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(30):
            await stopping.wait()

    try:
        serve(scenario())
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(number, before)


def test_a_log_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        start_logging(LogLevel.INFO)
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("test").exception("it\nfailed")
        logging.getLogger("test").debug("not shown")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "ERROR test it | failed" in shown
    assert "ValueError: broken" in shown

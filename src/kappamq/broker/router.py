"""Request code → handler; error → reply. The one place of the broker that outlives a bug in a handler."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeAlias

from kappamq.errors import KappaError
from kappamq.net.connection import Connection
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import code_of

log = logging.getLogger(__name__)

Answer: TypeAlias = "Command | None"
"""A reply, or `None` from a handler that answers later by itself, or never."""

Handler: TypeAlias = Callable[[Connection, Command], "Answer | Coroutine[None, None, Answer]"]


class Router:
    """Calls the handler of a request and sends what it answers."""

    def __init__(self, *, tasks: asyncio.TaskGroup) -> None:
        self._handlers: dict[int, Handler] = {}
        self._tasks = tasks

    def serve(self, *tables: Mapping[int, Handler]) -> None:
        """Take requests from now on; a code may have one handler only."""
        for table in tables:
            assert not self._handlers.keys() & table.keys(), "two handlers for one request code"
            self._handlers.update(table)

    def __call__(self, connection: Connection, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            answer_error(
                connection,
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
            return
        try:
            answer = handler(connection, request)
        except Exception as fault:  # noqa: BLE001 - a bug in one handler must not close the others' connection
            answer_fault(connection, request, fault)
            return
        if answer is None:
            return
        if isinstance(answer, Command):
            answer_request(connection, request, answer)
        else:
            self._tasks.create_task(self._finish(connection, request, answer), name=f"request-{request.code}")

    async def _finish(self, connection: Connection, request: Command, work: Coroutine[None, None, Answer]) -> None:
        try:
            answer = await work
        except Exception as fault:  # noqa: BLE001 - as above
            answer_fault(connection, request, fault)
            return
        if answer is not None:
            answer_request(connection, request, answer)


def answer_request(connection: Connection, request: Command, answer: Command) -> None:
    """Send a reply, unless the request was one-way."""
    if not request.is_one_way:
        connection.reply(answer)


def answer_fault(connection: Connection, request: Command, fault: Exception) -> None:
    """Send what an error means to the peer; one that nobody foresaw is logged with its trace."""
    if isinstance(fault, KappaError):
        answer_error(connection, request, code_of(fault), str(fault))
        return
    log.error("request failed: a bug code=%d peer=%s", request.code, connection.peer, exc_info=fault)
    answer_error(connection, request, ResponseCode.SYSTEM_ERROR, f"{type(fault).__name__}: {fault}")


def answer_error(connection: Connection, request: Command, code: int, remark: str) -> None:
    if not request.is_one_way:
        connection.reply(request.reply(code, remark))

"""Running users' functions: `async def` on the event loop, plain ones in threads, and what they raise as a value."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Generic, TypeVar, cast

Value = TypeVar("Value")


class Raised(Generic[Value]):
    """What a user's function raised instead of returning."""

    def __init__(self, error: Exception) -> None:
        self.error = error


async def call_user(
    function: Callable[..., Value | Awaitable[Value]], *arguments: object, threads: Executor | None = None
) -> "Value | Raised[Value]":
    """Result of a user's function, or what it raised. Cancelling passes through to an `async def`."""
    try:
        if inspect.iscoroutinefunction(function):
            return cast(Value, await function(*arguments))
        result = await asyncio.get_running_loop().run_in_executor(threads, partial(function, *arguments))
        if inspect.isawaitable(result):  # A plain function may return one, such as a partial of a coroutine function.
            return await result
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and the client must outlive it.
        return Raised(error)
    return result

"""`kappamq up`: a name server and brokers in one go."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kappamq import __version__
from kappamq.cli.options import Flush, FlushOption, LogLevel, LogLevelOption
from kappamq.cli.output import print_json_line
from kappamq.errors import KappaError

if TYPE_CHECKING:
    from kappamq.nameserver.app import NameServerSettings

BROKERS_MAX: Final = 64
BROKER_PORT: Final = 10911
BROKER_PORT_STEP: Final = 10
"""Each broker also takes the port two below its own, and one above is kept for replication."""
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0


def up(
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=BROKERS_MAX, help="How many brokers.")] = 1,
    data: Annotated[Path, typer.Option("--data", help="Directory for everything that is kept.")] = Path("kappamq-data"),
    flush: FlushOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the name server; 0: any.")] = 9876,
    broker_port: Annotated[
        int | None,
        typer.Option("--broker-port", min=0, max=65535, help="Port of the first broker; 0: any. With --port 0: any."),
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Name of the cluster.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON object when ready.")] = False,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Start a name server and brokers on this machine; Ctrl-C stops them. One broker is one process."""
    from kappamq.cli.nameserver import nameserver_settings
    from kappamq.cli.serving import serve, start_logging

    start_logging(log_level)
    settings = nameserver_settings(
        config=None, listen=f"127.0.0.1:{port}", kv=data.absolute() / "nameserver" / "kvConfig.json", insecure=False
    )
    data = data.absolute()
    first_port = broker_port if broker_port is not None else (BROKER_PORT if port else 0)
    plans = [
        _Plan(
            name=f"broker-{number + 1}",
            listen=f"127.0.0.1:{first_port + number * BROKER_PORT_STEP if first_port else 0}",
            data=data / f"broker-{number + 1}",
            cluster=cluster,
            flush=flush,
            log_level=log_level,
        )
        for number in range(brokers)
    ]
    serve(_serve(settings, plans, as_json=as_json))


@dataclass(frozen=True, slots=True)
class _Plan:
    """One broker that is to be started."""

    name: str
    listen: str
    data: Path
    cluster: str | None
    flush: Flush | None
    log_level: LogLevel


@dataclass(frozen=True, slots=True)
class _Running:
    """One broker that runs. `wait` ends, with an error, when it stops by itself."""

    name: str
    address: str
    data: Path
    pid: int
    wait: Callable[[], Any]


async def _serve(settings: "NameServerSettings", plans: Sequence[_Plan], *, as_json: bool) -> None:
    from kappamq.cli.serving import first_of, keep_startup_objects, stop_event
    from kappamq.nameserver.app import NameServer

    stopping = stop_event()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(NameServer(settings))
        running: list[_Running] = []
        if len(plans) == 1:
            running.append(await _start_here(stack, plans[0], server.address))
        else:
            children = [_Child(plan, server.address) for plan in plans]
            for child in children:
                await stack.enter_async_context(child)
            running += await asyncio.gather(*(child.ready() for child in children))
        _announce(server.address, running, as_json=as_json)
        keep_startup_objects()
        await first_of(stopping.wait, *(broker.wait for broker in running))
        if not as_json:
            print("stopping", flush=True)


async def _start_here(stack: AsyncExitStack, plan: _Plan, nameserver: str) -> _Running:
    from kappamq.broker.app import Broker
    from kappamq.cli.broker import broker_overrides, broker_settings

    overrides = broker_overrides(
        listen=plan.listen,
        nameserver=nameserver,
        data=plan.data,
        name=plan.name,
        cluster=plan.cluster,
        flush=plan.flush,
        insecure=False,
    )
    broker = await stack.enter_async_context(Broker(broker_settings(overrides, config=None)))
    return _Running(plan.name, broker.address, plan.data, os.getpid(), broker.wait)


class _Child:
    """A broker in a process of its own, which also ends when we do."""

    def __init__(self, plan: _Plan, nameserver: str) -> None:
        self._plan = plan
        self._nameserver = nameserver
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "_Child":
        plan = self._plan
        arguments = ["--listen", plan.listen, "--nameserver", self._nameserver, "--data", str(plan.data)]
        arguments += ["--name", plan.name, "--log-level", plan.log_level.value, "--json", "--stop-with-parent"]
        if plan.cluster is not None:
            arguments += ["--cluster", plan.cluster]
        if plan.flush is not None:
            arguments += ["--flush", plan.flush.value]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kappamq",
            "broker",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C reaches the whole group of processes; only we decide when the brokers stop.
            start_new_session=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if process.stdin is not None:
            process.stdin.close()

    async def ready(self) -> _Running:
        """Wait until the broker says where it listens. Raises `KappaError` when it does not."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                line = await process.stdout.readline()
        except TimeoutError:
            raise KappaError(f"{self._plan.name} was not ready after {START_SECONDS_MAX:.0f} s: see its log") from None
        if not line:
            code = await process.wait()
            raise KappaError(f"{self._plan.name} ended with code {code} instead of starting: its message is above")
        value = json.loads(line)
        return _Running(self._plan.name, value["address"], self._plan.data, value["pid"], self._wait)

    async def _wait(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        raise KappaError(f"{self._plan.name} ended by itself with code {code}: see its log; all others are stopped too")


def _announce(nameserver: str, running: Sequence[_Running], *, as_json: bool) -> None:
    if as_json:
        brokers = [
            {"name": broker.name, "address": broker.address, "data": str(broker.data), "pid": broker.pid}
            for broker in running
        ]
        print_json_line({"nameserver": nameserver, "brokers": brokers, "pid": os.getpid(), "version": __version__})
        return
    print(f"name server  {nameserver}")
    for broker in running:
        print(f"{broker.name:<12} {broker.address}  data in {broker.data}")
    print(f"ready: clients use the name server {nameserver}; Ctrl-C stops", flush=True)

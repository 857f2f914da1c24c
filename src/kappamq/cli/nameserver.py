"""`kappamq nameserver`: run a name server."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.options import Insecure, LogLevel, LogLevelOption, SettingsFile, split_listen
from kappamq.cli.output import print_json_line

if TYPE_CHECKING:
    from kappamq.nameserver.app import NameServerSettings

SECTION = "nameserver"


def nameserver(
    listen: Annotated[str | None, typer.Option("--listen", help="host:port; port 0 takes a free one.")] = None,
    kv: Annotated[Path | None, typer.Option("--kv", help="File that keeps key-value settings.")] = None,
    config: SettingsFile = None,
    insecure: Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a name server: brokers register there, clients ask it where topics live."""
    from kappamq.cli.serving import serve, start_logging

    start_logging(log_level)
    settings = nameserver_settings(config=config, listen=listen, kv=kv, insecure=insecure)
    serve(_serve(settings, as_json=as_json))


def nameserver_settings(
    *, config: Path | None, listen: str | None, kv: Path | None, insecure: bool
) -> "NameServerSettings":
    """Settings of a name server from a file, the environment and flags."""
    from kappamq.nameserver.app import NameServerSettings
    from kappamq.settings import load

    overrides: dict[str, object] = {"kv_path": kv, "insecure": insecure or None}
    if listen is not None:
        overrides["listen_host"], overrides["listen_port"] = split_listen(listen)
    return load(NameServerSettings, section=SECTION, file=config, environment=os.environ, overrides=overrides)


async def _serve(settings: "NameServerSettings", *, as_json: bool) -> None:
    from kappamq.cli.serving import first_of, keep_startup_objects, stop_event
    from kappamq.nameserver.app import NameServer

    stopping = stop_event()
    async with NameServer(settings) as server:
        if as_json:
            print_json_line({"nameserver": server.address, "pid": os.getpid()})
        else:
            print(f"name server ready at {server.address}", flush=True)
        keep_startup_objects()
        await first_of(stopping.wait, server.wait)

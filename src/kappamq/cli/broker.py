"""`kappamq broker`: run a broker."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kappamq.cli.options import Flush, FlushOption, Insecure, LogLevel, LogLevelOption, SettingsFile, split_listen
from kappamq.cli.output import print_json_line

if TYPE_CHECKING:
    from kappamq.broker.settings import BrokerSettings

log = logging.getLogger(__name__)

SECTION: Final = "broker"
ROCKETMQ_SUFFIXES: Final = (".conf", ".properties")


def broker(
    listen: Annotated[str | None, typer.Option("--listen", help="host:port; port 0 takes a free one.")] = None,
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            envvar=["KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"],
            help="Name servers to register at, host:port with ';' between them.",
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Store directory.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the broker.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Name of its cluster.")] = None,
    flush: FlushOption = None,
    config: SettingsFile = None,
    insecure: Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
    stop_with_parent: Annotated[bool, typer.Option("--stop-with-parent", hidden=True)] = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a broker: it keeps messages and hands them out. Flags win over the environment, that over the file."""
    from kappamq.cli.serving import serve, start_logging

    start_logging(log_level)
    overrides = broker_overrides(
        listen=listen,
        nameserver=nameserver,
        data=data,
        name=name,
        cluster=cluster,
        flush=flush,
        insecure=insecure,
    )
    settings = broker_settings(overrides, config=config)
    serve(_serve(settings, as_json=as_json, stop_with_parent=stop_with_parent))


def broker_overrides(
    *,
    listen: str | None,
    nameserver: str | None,
    data: Path | None,
    name: str | None,
    cluster: str | None,
    flush: Flush | None,
    insecure: bool,
) -> dict[str, object]:
    """Flags under the names of the settings; those not given are `None`."""
    overrides: dict[str, object] = {
        "nameservers": nameserver,
        "data": data,
        "name": name,
        "cluster": cluster,
        "flush": flush.value if flush is not None else None,
        "insecure": insecure or None,
    }
    if listen is not None:
        overrides["listen_host"], overrides["listen_port"] = split_listen(listen)
    return overrides


def broker_settings(overrides: Mapping[str, object], *, config: Path | None) -> "BrokerSettings":
    """Settings of a broker from a file of either kind, the environment and flags."""
    from kappamq.broker.rocketmq_keys import settings_from_conf
    from kappamq.broker.settings import BrokerSettings
    from kappamq.settings import load

    if config is None or config.suffix not in ROCKETMQ_SUFFIXES:
        return load(BrokerSettings, section=SECTION, file=config, environment=os.environ, overrides=overrides)
    values, ignored = settings_from_conf(config)
    if ignored:
        log.warning("settings without a meaning here are ignored file=%s keys=%s", config, ",".join(sorted(ignored)))
    return load(BrokerSettings, section=SECTION, values=values, environment=os.environ, overrides=overrides)


async def _serve(settings: "BrokerSettings", *, as_json: bool, stop_with_parent: bool) -> None:
    from kappamq.broker.app import Broker
    from kappamq.cli.serving import first_of, keep_startup_objects, stop_event

    stopping = stop_event(with_parent=stop_with_parent)
    async with Broker(settings) as running:
        if as_json:
            print_json_line(
                {"name": settings.name, "address": running.address, "data": str(settings.data), "pid": os.getpid()}
            )
        else:
            print(f"broker {settings.name} ready at {running.address}, data in {settings.data}", flush=True)
        keep_startup_objects()
        await first_of(stopping.wait, running.wait)

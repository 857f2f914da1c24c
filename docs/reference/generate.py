"""Writes the reference pages beside it from the code: `make docs`. A test fails when a page is stale."""

import ast
import inspect
import sys
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from kappamq.broker.settings import BrokerSettings
from kappamq.cli.main import app
from kappamq.client.settings import ClusterSettings, ConsumerSettings, ProducerSettings
from kappamq.nameserver.app import NameServerSettings
from kappamq.net.connection import ConnectionLimits
from kappamq.net.server import ServerLimits
from kappamq.store.settings import StoreSettings

HERE = Path(__file__).parent
SETTINGS: dict[str, type[Any]] = {
    "Broker": BrokerSettings,
    "Store of a broker (`[broker.store]`)": StoreSettings,
    "Limits of a server": ServerLimits,
    "Limits of one connection": ConnectionLimits,
    "Name server": NameServerSettings,
    "Client: cluster": ClusterSettings,
    "Client: producer": ProducerSettings,
    "Client: consumer": ConsumerSettings,
}


def settings_page() -> str:
    """Every setting with its type, default and meaning."""
    parts = ["# Settings\n\nGenerated from the code by `make docs`.\n"]
    for title, kind in SETTINGS.items():
        meanings = _meanings(kind)
        parts.append(
            f"\n## {title}\n\n{inspect.getdoc(kind)}\n\n| Setting | Type | Default | Meaning |\n|---|---|---|---|\n"
        )
        for each in fields(kind):
            shown = str(each.type).replace("|", "or") if not isinstance(each.type, type) else each.type.__name__
            meaning = " ".join(meanings.get(each.name, "").split()).replace("|", "\\|")
            parts.append(f"| `{each.name}` | {shown} | {_default(each)} | {meaning} |\n")
    return "".join(parts)


def _default(each: Any) -> str:
    if each.default is not MISSING:
        return f"`{each.default!r}`".replace("|", "\\|")
    return "required" if each.default_factory is MISSING else "made at start"


def _meanings(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(sys.modules[kind.__module__])).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    found: dict[str, str] = {}
    for before, node in pairwise(body):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
        ):
            found[before.target.id] = str(node.value.value)
    return found


def cli_page() -> str:
    """Every command with its options."""
    parts = ["# Command line\n\nGenerated from the code by `make docs`. Every command has `--help`.\n"]
    _describe(typer.main.get_command(app), ["kappamq"], parts)
    return "".join(parts)


def _describe(command: Any, path: list[str], parts: list[str]) -> None:
    members = getattr(command, "commands", None)
    if members is not None:
        for name in sorted(members):
            _describe(members[name], [*path, name], parts)
        return
    first, _, rest = inspect.cleandoc(command.help or "").partition("\f")
    del rest
    parts.append(f"\n## {' '.join(path)}\n\n{first.strip()}\n\n| Argument or option | Meaning |\n|---|---|\n")
    for parameter in command.params:
        name = ", ".join(parameter.opts) if parameter.param_type_name == "option" else (parameter.name or "").upper()
        meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
        parts.append(f"| `{name}` | {meaning} |\n")


PAGES = {"settings.md": settings_page, "cli.md": cli_page}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (HERE / page).write_text(write())
        print(f"wrote {page}")

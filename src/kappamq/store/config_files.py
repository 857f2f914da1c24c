"""Files under `config/`: RocketMQ's JSON dialect, each with the previous content beside it as `.bak`."""

import os
from pathlib import Path
from typing import Any

from kappamq.errors import RemoteProtocolError
from kappamq.model import fastjson


def load_config(path: Path) -> dict[str, Any] | None:
    """Content of a config file, or of its `.bak` when the file is missing or damaged; `None` when both are."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            value = fastjson.loads(candidate.read_bytes())
        except (FileNotFoundError, RemoteProtocolError):
            continue
        if isinstance(value, dict):
            return value
    return None


def save_config(path: Path, value: Any) -> None:
    """Replace a config file durably: a crash at any point leaves the old or the new content to be loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(fastjson.dumps(value, pretty=True))
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(path.name + ".bak"))
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

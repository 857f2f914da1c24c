"""Key-value settings that brokers and tools share through the name server.

With a path they are kept as RocketMQ's `kvConfig.json`: `{"configTable":{"<namespace>":{"<key>":"<value>"}}}`.
"""

import os
from pathlib import Path
from typing import Final

from kappamq.errors import NotFound, StorageError, UsageError
from kappamq.model import fastjson

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Topic → `brokerA:4;brokerB:4`: the fixed queues of ordered topics."""

TEXT_CHARACTERS_MAX: Final = 64 * 1024
"""Longest namespace, key or value."""
ENTRIES_MAX: Final = 10_000
"""Most entries of all namespaces together."""


class KeyValues:
    """Namespaces of keys and values. Changes are on disk when a method returns.

    The file is small (see the limits) and changed only by administrators, so it is written on the caller's thread.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = _load(path) if path is not None else {}

    def get(self, namespace: str, key: str) -> str:
        """Raises `NotFound`."""
        try:
            return self._table[namespace][key]
        except KeyError:
            raise NotFound(f"No config item, Namespace: {namespace} Key: {key}") from None

    def namespace(self, namespace: str) -> dict[str, str]:
        """All keys of a namespace; empty when there is none."""
        return dict(self._table.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        if not namespace or not key:
            raise UsageError("namespace or key is null: give both")
        if max(len(namespace), len(key), len(value)) > TEXT_CHARACTERS_MAX:
            raise UsageError(f"a namespace, key or value is longer than {TEXT_CHARACTERS_MAX} characters")
        changed = {name: dict(entries) for name, entries in self._table.items()}
        changed.setdefault(namespace, {})[key] = value
        if sum(map(len, changed.values())) > ENTRIES_MAX:
            raise UsageError(f"there are {ENTRIES_MAX} entries, which is the limit: delete some first")
        self._replace(changed)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; nothing happens when it is not there."""
        if key not in self._table.get(namespace, {}):
            return
        changed = {name: dict(entries) for name, entries in self._table.items()}
        del changed[namespace][key]
        if not changed[namespace]:
            del changed[namespace]
        self._replace(changed)

    def _replace(self, table: dict[str, dict[str, str]]) -> None:
        """Write first: when the disk refuses, memory still says what the file says."""
        if self._path is not None:
            _save(self._path, table)
        self._table = table


def _load(path: Path) -> dict[str, dict[str, str]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as fault:
        raise StorageError(f"cannot read {path} ({fault.strerror}): check its permissions") from None
    document = fastjson.loads(text) if text.strip() else {}
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict) and document != {}:
        raise StorageError(f"{path} is not a key-value file: move it away, or restore {path}.bak")
    return {
        str(namespace): {str(key): str(value) for key, value in entries.items()}
        for namespace, entries in (table or {}).items()
    }


def _save(path: Path, table: dict[str, dict[str, str]]) -> None:
    """Replace the file whole; the previous one stays beside it as `.bak`, as RocketMQ does."""
    text = fastjson.dumps({"configTable": table}).encode()
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            backup = path.with_name(path.name + ".bak")
            backup.unlink(missing_ok=True)
            os.link(path, backup)
        os.replace(temporary, path)
    except OSError as fault:
        raise StorageError(f"cannot write {path} ({fault.strerror}): the change is not made") from None

"""The broker's tables on disk: loaded at start, saved after changes, off the event loop."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kappamq.errors import StorageError
from kappamq.model.fastjson import TableText
from kappamq.store.config_files import load_config, save_config

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 2.0


class ConfigFile:
    """One table and its file. `changed` is cheap; a task writes soon after, one write for many changes."""

    def __init__(self, path: Path, content: Callable[[], dict[str, Any]], *, table: str | None = None) -> None:
        """`table` names the member of the content with one entry for each topic or group."""
        self._path = path
        self._content = content
        self._table = table
        self._entries = TableText()
        self._change = asyncio.Event()
        self._changes = 0
        self._saved = 0
        """How many of the changes are on disk."""
        self._lock = asyncio.Lock()

    def load(self) -> dict[str, Any] | None:
        return load_config(self._path)

    def changed(self) -> None:
        """The table differs from its file."""
        self._changes += 1
        self._change.set()

    async def save(self) -> None:
        """Write the table now; returns when it is on disk."""
        async with self._lock:
            await self._save()

    async def saved(self) -> None:
        """Return when all changes so far are on disk. Those who wait at the same time share a write."""
        changes = self._changes
        while self._saved < changes:
            async with self._lock:
                if self._saved < changes:
                    await self._save()

    async def _save(self) -> None:
        self._change.clear()
        changes = self._changes
        value = self._content()  # A snapshot: the table may change while the thread writes.
        writing = asyncio.get_running_loop().run_in_executor(None, self._write, value)
        try:
            await asyncio.shield(writing)  # A thread cannot be stopped …
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # … and two that write one file at once spoil it.
            raise
        except (OSError, StorageError):
            self._change.set()
            raise
        self._saved = changes

    def _write(self, value: dict[str, Any]) -> None:
        if self._table is not None:
            value[self._table] = self._entries.of(value[self._table])
        save_config(self._path, value)

    async def save_if_changed(self) -> None:
        if self._change.is_set():
            await self.save()

    async def keep_saved(self) -> None:
        """Write after every burst of changes, until cancelled."""
        while True:
            await self._change.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            try:
                await self.save_if_changed()
            except (OSError, StorageError) as fault:
                log.error("table could not be saved: will try again file=%s fault=%s", self._path.name, fault)
                await asyncio.sleep(RETRY_SECONDS)

"""Keys reach the index a moment after their messages are visible, in a thread: its pages may wait for the disk."""

import asyncio
import logging
from typing import Final

from kappamq.errors import StorageError
from kappamq.store.store import Store

log = logging.getLogger(__name__)

INDEX_SECONDS: Final = 0.05


class Indexing:
    """Lets one thread at a time work on the index."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lock = asyncio.Lock()
        """Held while the index changes: whoever deletes index files takes it."""

    async def run_forever(self) -> None:
        """Keep the index up to date, until cancelled."""
        while True:
            await asyncio.sleep(INDEX_SECONDS)
            try:
                if self._store.is_index_behind:
                    await self.catch_up()
            except StorageError as fault:
                log.warning("the key index could not be written: will try again fault=%s", fault)

    async def catch_up(self) -> None:
        """Index what is published now. When cancelled, it is done all the same: the store may be closed after this."""
        async with self.lock:
            work = asyncio.get_running_loop().run_in_executor(None, self._store.index_published)
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await work
                raise

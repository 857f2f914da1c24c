"""The compiled way to make a log durable: a thread that only syncs, and takes no turn in the interpreter for it.

`Store.flush` does the same from any thread of Python; between its sync and the news of it there are two waits for the
interpreter, which the event loop is using.
"""

import os
from typing import TYPE_CHECKING

from kappamq.store.files import SYNCING_INTERFACE

if TYPE_CHECKING:
    from kappamq.store._syncing import Syncer


def make_syncer() -> "Syncer | None":
    """`None` where it was not compiled, or from older sources."""
    if os.environ.get("KAPPAMQ_KERNEL") == "python":
        return None
    try:
        from kappamq.store import _syncing
    except ImportError:
        return None
    return _syncing.Syncer() if _syncing.INTERFACE == SYNCING_INTERFACE else None

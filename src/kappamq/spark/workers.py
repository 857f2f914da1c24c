"""The Python processes in which Spark runs tasks: one after the other, many tasks in each."""

import gc
import sys
from types import ModuleType
from typing import Final

_DAEMON: Final = "pyspark.daemon"


def keep_loaded(main: ModuleType | None = None) -> None:
    """Take what is loaded by now out of sight of the garbage collector, once, where Spark runs one task after another.

    Spark's workers collect garbage after each task, before they take the next. To visit the tens of thousands of
    objects of modules, which are never garbage, took longer than to read or write some ten thousand rows. `main` is the
    main module of this process; programs that are no such worker keep their garbage collector as it is.
    """
    spec = getattr(main or sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _DAEMON and not gc.get_freeze_count():
        gc.freeze()

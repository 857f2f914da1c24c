"""How the suite is dealt out to workers (`make test`): what shares something expensive stays together.

Without workers (`pytest tests/unit`) the order alone changes, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parent

# One worker keeps the Java processes of the interop tests, the other the Spark session: neither can be shared.
GROUPS = ("interop", "spark")
# The rest, longest first, so that no long file is left over for the end.
ORDER = (*GROUPS, "faults", "e2e", "property", "fuzz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first; the same on every worker, as the controller requires."""
    items.sort(key=_rank)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Takes part only when there are workers."""
    return _ByGroup(config, log)


class _ByGroup(LoadScopeScheduling):  # type: ignore[misc] # The package has no types.
    """A directory of GROUPS goes to one worker, and so does any other file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        kind = file.split("/")[1]
        return kind if kind in GROUPS else file


def _rank(item: pytest.Item) -> int:
    kind = item.path.relative_to(TESTS).parts[0]
    return ORDER.index(kind) if kind in ORDER else len(ORDER)

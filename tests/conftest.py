"""How the suite is dealt out to workers (`make test`): what shares something expensive stays together, longest first.

Without workers (`pytest tests/unit`) the order alone changes, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

TESTS: Final = Path(__file__).parent

# An example that takes long says something of the machine, which others use as well, and nothing of the code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# What needs processes of its own beside the Spark session of its worker: about half of the time of tests/spark.
SPARK_PROCESSES: Final = frozenset(
    f"tests/spark/test_{name}.py" for name in ("connect", "on_a_cluster", "java", "on_rocketmq", "read_by_java")
)
# Longest first, so that no long file is left over for the end; a directory stands for its other files.
ORDER: Final = (
    "tests/spark",
    "tests/spark processes",
    "tests/interop/test_java_on_kappamq.py",
    "tests/interop/test_message_kinds_on_kappamq.py",
    "tests/interop/test_client_on_rocketmq.py",
    "tests/interop/test_mqadmin_on_kappamq.py",
    "tests/interop",
    "tests/faults",
    "tests/e2e",
    "tests/property",
    "tests/fuzz",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first; the same on every worker, as the controller requires."""
    items.sort(key=lambda item: _rank(_scope(item.nodeid)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Takes part only when there are workers."""
    return _ByScope(config, log)


class _ByScope(LoadScopeScheduling):  # type: ignore[misc] # The package has no types.
    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def _scope(nodeid: str) -> str:
    """What goes to one worker: a file, or files that share a Spark session."""
    file = nodeid.partition("::")[0]
    if file in SPARK_PROCESSES:
        return "tests/spark processes"
    return "tests/spark" if file.startswith("tests/spark/") else file


def _rank(scope: str) -> int:
    for name in (scope, scope.rpartition("/")[0]):
        if name in ORDER:
            return ORDER.index(name)
    return len(ORDER)

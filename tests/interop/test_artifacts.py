"""The cache of fetched programs: filled once, never half, and loud about what cannot be had. Needs no network."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.interop.artifacts import Unreachable, cached, fetch, run_tool
from tests.interop.conftest import skip_loudly


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAPPAMQ_INTEROP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_two_at_once_fill_once(cache: Path) -> None:
    fills: list[Path] = []

    def fill(directory: Path) -> None:
        fills.append(directory)
        (directory / "jar").write_text("whole")

    threads = [threading.Thread(target=cached, args=("thing-1", fill)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(fills) == 1
    assert (cache / "thing-1" / "jar").read_text() == "whole"


def test_a_failed_fill_leaves_nothing(cache: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "jar").write_text("half")
        raise Unreachable("the registry is away")

    with pytest.raises(Unreachable, match="the registry is away"):
        cached("thing-1", fail)
    assert [path.name for path in cache.iterdir()] == ["fetch.lock"]


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="mvn is not installed"):
        fetch("client-5.5.0")


def test_a_failing_tool_tells_its_last_words() -> None:
    with pytest.raises(Unreachable, match="away for good"):
        run_tool(["sh", "-c", "echo away for good; exit 3"], seconds_max=10, advice="none")
    with pytest.raises(Unreachable, match="did not finish within 0 s"):
        run_tool(["sleep", "30"], seconds_max=0.1, advice="none")


def test_a_skip_is_loud() -> None:
    with (
        pytest.warns(pytest.PytestWarning, match="INTEROP NOT PROVEN: no Java"),
        pytest.raises(pytest.skip.Exception, match="INTEROP NOT PROVEN: no Java"),
    ):
        skip_loudly(Unreachable("no Java"))

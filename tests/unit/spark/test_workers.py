"""Frozen objects are those of the whole process: each test thaws them."""

import gc
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from kappamq.spark.workers import keep_loaded


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def program(name: str | None) -> ModuleType:
    module = ModuleType("__main__")
    module.__spec__ = None if name is None else ModuleSpec(name, None)
    return module


def test_a_worker_no_longer_visits_what_is_loaded() -> None:
    loaded: list[dict[str, int]] = [{}]  # A container that the collector would visit.
    keep_loaded(program("pyspark.daemon"))
    assert gc.get_freeze_count() > 0
    assert not any(each is loaded for each in gc.get_objects())


def test_objects_of_later_tasks_stay_in_sight() -> None:
    keep_loaded(program("pyspark.daemon"))
    later: list[dict[str, int]] = [{}]
    keep_loaded(program("pyspark.daemon"))
    assert any(each is later for each in gc.get_objects())


@pytest.mark.parametrize("name", [None, "pytest.__main__", "pyspark.worker"])
def test_other_programs_keep_their_collector(name: str | None) -> None:
    keep_loaded(program(name))
    assert gc.get_freeze_count() == 0


def test_this_process_is_no_worker() -> None:
    keep_loaded()
    assert gc.get_freeze_count() == 0

import sys

import pytest

from kappamq.spark.sessions import KEPT_MEMORY, LOOPBACK, is_on_this_machine, prepare_environment

PYTHON = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "spark://127.0.0.1:7077", "spark://localhost:7077"]
)
def test_spark_on_this_machine_stays_here_and_keeps_its_memory(master: str) -> None:
    environment: dict[str, str] = {}
    prepare_environment(environment, master)
    assert is_on_this_machine(master)
    assert environment == {**PYTHON, "SPARK_LOCAL_IP": LOOPBACK, **KEPT_MEMORY}


@pytest.mark.parametrize("master", ["spark://10.0.0.5:7077", "yarn", "k8s://https://10.0.0.5:6443"])
def test_other_machines_only_hear_of_the_python(master: str) -> None:
    environment: dict[str, str] = {}
    prepare_environment(environment, master)
    assert not is_on_this_machine(master)
    assert environment == PYTHON


def test_what_is_set_already_stays() -> None:
    own = dict.fromkeys((*PYTHON, "SPARK_LOCAL_IP", *KEPT_MEMORY), "mine")
    environment = {**own, "PATH": "/bin"}
    prepare_environment(environment, "local[2]")
    assert environment == {**own, "PATH": "/bin"}


def test_kept_memory_is_given_as_bytes() -> None:
    """The C library ignores a value that it cannot read, and nobody would notice but for the time it takes."""
    assert all(value.isdecimal() for value in KEPT_MEMORY.values())
    assert all(name.startswith("MALLOC_") and name.endswith("_") for name in KEPT_MEMORY)

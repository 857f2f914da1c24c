import os
import subprocess
from pathlib import Path

import pytest

from kappamq.errors import ConfigError
from kappamq.spark import java


def test_a_missing_java_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    with pytest.raises(ConfigError, match="install OpenJDK 17 or 21, or run pip install"):
        java.ensure_java()


def test_java_home_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java.ensure_java()
    assert "SPARK_HOME" not in os.environ or os.environ["SPARK_HOME"]


def package(where: Path, last_line: str) -> Path:
    (where / "bin").mkdir(parents=True)
    (where / "jars").mkdir()
    (where / "bin" / "other").touch()
    script = f"""#!/usr/bin/env bash
CMD=(printf '<%s>' {java.MISSING_MODULE} "a b")
{last_line}
"""
    (where / "bin" / java.LAUNCH_SCRIPT).write_text(script)
    return where


def test_the_launch_script_leaves_the_missing_module_out(tmp_path: Path) -> None:
    pyspark = package(tmp_path / "pyspark", 'exec "${CMD[@]}"')
    for _ in range(2):
        home = java.make_spark_home(pyspark, tmp_path / "cache")
    assert (home / "jars").resolve() == pyspark / "jars"
    assert sorted(path.name for path in (home / "bin").iterdir()) == ["other", "spark-class"]
    printed = subprocess.run([home / "bin" / "spark-class"], capture_output=True, text=True, check=True).stdout
    assert printed == "<a b>"


def test_an_unknown_launch_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install OpenJDK"):
        java.make_spark_home(package(tmp_path / "pyspark", "java"), tmp_path / "cache")

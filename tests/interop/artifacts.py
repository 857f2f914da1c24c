"""The real RocketMQ's programs: fetched by Maven coordinates, compiled once, kept in a cache.

Everything lands in `.cache/interop/` of the checkout (or in `KAPPAMQ_INTEROP_CACHE`), one directory per artifact
set and version. A directory appears there by one rename, so that a reader never sees half of it; fetching is under
a lock, so that two test runs at once fetch once. What cannot be had raises `Unreachable`, which tests turn into a skip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

CHECKOUT: Final = Path(__file__).resolve().parents[2]
FETCH_SECONDS_MAX: Final = 600
COMPILE_SECONDS_MAX: Final = 300
ROCKETMQ_GROUP: Final = "org.apache.rocketmq"


class Unreachable(Exception):
    """A tool or an artifact is not to be had here; the reason says which, and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSet:
    """Artifacts of one RocketMQ version that are fetched together, with all they depend on."""

    version: str
    artifacts: tuple[str, ...]


ARTIFACT_SETS: Final[dict[str, ArtifactSet]] = {
    "client-4.9.8": ArtifactSet(version="4.9.8", artifacts=("rocketmq-client",)),
    "client-5.5.0": ArtifactSet(version="5.5.0", artifacts=("rocketmq-client",)),
    "server-5.5.0": ArtifactSet(
        version="5.5.0", artifacts=("rocketmq-namesrv", "rocketmq-broker", "rocketmq-tools", "rocketmq-example")
    ),
    "server-4.9.7": ArtifactSet(version="4.9.7", artifacts=("rocketmq-namesrv", "rocketmq-broker")),
}


def cache_directory() -> Path:
    """Where fetched and compiled programs stay between runs."""
    chosen = os.environ.get("KAPPAMQ_INTEROP_CACHE")
    return Path(chosen).resolve() if chosen else CHECKOUT / ".cache" / "interop"


def fetch(name: str) -> Path:
    """Return the directory with the jars of one of ARTIFACT_SETS, fetching them if they are not there yet."""
    wanted = ARTIFACT_SETS[name]

    def fill(directory: Path) -> None:
        pom = directory / "pom.xml"
        pom.write_text(_pom(name, wanted), encoding="utf-8")
        run_tool(
            ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"],
            seconds_max=FETCH_SECONDS_MAX,
            advice="check that Maven's registry can be reached",
        )

    return cached(name, fill)


def compile_java(source: Path, libraries: Path) -> Path:
    """Compile one Java source file against a directory of jars; return the directory with its classes."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]

    def fill(directory: Path) -> None:
        run_tool(
            ["javac", "-nowarn", "-proc:none", "-cp", f"{libraries}/*", "-d", str(directory), str(source)],
            seconds_max=COMPILE_SECONDS_MAX,
            advice="a Java 17 development kit is needed",
            failure=AssertionError,
        )

    return cached(f"{source.stem}-{libraries.name}-{digest}", fill)


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return `name` in the cache; let `fill` make it in a temporary directory first if it is missing."""
    place = cache_directory() / name
    if place.is_dir():
        return place
    cache_directory().mkdir(parents=True, exist_ok=True)
    # One lock for all names: Maven's own local repository is not safe for two writers either.
    with _locked(cache_directory() / "fetch.lock"):
        if place.is_dir():
            return place
        unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".part", dir=cache_directory()))
        try:
            fill(unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return place


def run_tool(
    command: list[str],
    *,
    seconds_max: float,
    advice: str,
    failure: type[Exception] = Unreachable,
    directory: Path | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Run a program to its end and return what it printed; a missing or failing program raises with its last words."""
    if shutil.which(command[0]) is None:
        raise Unreachable(f"{command[0]} is not installed: {advice}")
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds_max,
            check=False,
            cwd=directory,
            env=environment,
        )
    except subprocess.TimeoutExpired as late:
        raise failure(f"{command[0]} did not finish within {seconds_max:.0f} s: {advice}") from late
    if done.returncode != 0:
        raise failure(f"{command[0]} failed with {done.returncode} ({advice}): {_last_words(done.stdout)}")
    return done.stdout


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-12:])[-2000:]


def _pom(name: str, wanted: ArtifactSet) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{ROCKETMQ_GROUP}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape(wanted.version)}</version></dependency>"
        for artifact in wanted.artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>kappamq.interop</groupId><artifactId>{escape(name)}</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield

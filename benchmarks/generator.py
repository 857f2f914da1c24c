"""The load generator: C, compiled on demand, one JSON object per run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.results import CACHE, Json

SOURCES: Final = Path(__file__).parent / "native"
COMPILE_SECONDS_MAX: Final = 120
# On top of warm-up, window and drain: connecting, asking for offsets, waiting for them to settle.
EXTRA_SECONDS_MAX: Final = 60
DRAIN_SECONDS: Final = 5.0


class GeneratorFailed(Exception):
    """The generator could not be built, could not reach the broker, or got answers that do not add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One workload. The same values give the same bytes, but for ids and times."""

    mode: str = "send"
    connections: int = 1
    in_flight: int = 1
    body_bytes: int = 128
    batch: int = 1
    topics: int = 1
    queues: int = 8  # Of each topic.
    max_messages: int = 32
    header: str = "json"
    rate: float = 0.0  # Requests per second; 0 means as many as are answered.
    once: bool = False

    @property
    def title(self) -> str:
        shape = f"{self.connections} x {self.in_flight}"
        if self.mode == "pull":
            return f"pull {self.max_messages}, {shape}"
        batch = f"batch {self.batch}, " if self.batch > 1 else ""
        rate = f", {self.rate:g} requests/s" if self.rate else ""
        topics = f", {self.topics:,} topics" if self.topics > 1 else ""
        header = ", binary" if self.header == "binary" else ""
        return f"send {batch}{self.body_bytes} B, {shape}{topics}{rate}{header}"


def build() -> Path:
    """Return the compiled generator, compiling it when its sources have changed."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    program = CACHE / f"generator-{digest}"
    if program.is_file():
        return program
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise GeneratorFailed(f"the C compiler {compiler!r} is not installed: install one or set CC")
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_suffix(f".{os.getpid()}.part")
    files = [str(source) for source in sources if source.suffix == ".c"]
    done = subprocess.run(
        [compiler, "-std=c11", "-O2", "-Wall", "-Wextra", *files, "-o", str(unfinished)],
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise GeneratorFailed(f"the load generator does not compile:\n{done.stderr}")
    unfinished.rename(program)
    return program


def run(
    load: Load,
    address: str,
    topic: str,
    *,
    seconds: float,
    warmup_seconds: float = 1.0,
    drain_seconds: float = DRAIN_SECONDS,
    create: bool = False,
) -> Json:
    """Run one workload against the broker at `address` and return what the generator measured.

    Raises GeneratorFailed when the broker is not there or goes away. A reply with an error code is a result, not a
    failure: see `check`.
    """
    command = [str(build()), load.mode, "--address", address, "--topic", topic, *_flags(load)]
    command += ["--seconds", str(seconds), "--warmup", str(warmup_seconds), "--drain", str(drain_seconds)]
    command += ["--create"] if create else []
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds + warmup_seconds + drain_seconds + EXTRA_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise GeneratorFailed(f"the generator did not end in time ({load.title} at {address})") from late
    if done.returncode != 0:
        raise GeneratorFailed(f"{load.title} at {address}: {done.stderr.strip()}")
    outcome: Json = json.loads(done.stdout)
    return outcome


def echo(connections: int, in_flight: int, *, message_bytes: int, seconds: float) -> Json:
    """What a server that only answers reaches in this shape, without any broker. Raises GeneratorFailed."""
    shape = {"connections": connections, "in-flight": in_flight, "body": message_bytes, "seconds": seconds}
    flags = [text for name, value in shape.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [str(build()), "echo", *flags, "--warmup", str(seconds / 5)],
        capture_output=True,
        text=True,
        timeout=seconds * 2 + EXTRA_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise GeneratorFailed(f"echo: {done.stderr.strip()}")
    outcome: Json = json.loads(done.stdout)
    return outcome


def refusals(outcome: Json) -> str:
    """What the broker answered instead of doing it, by reply code, with the first remark; empty when nothing."""
    return f"refused {outcome['errors']} {outcome['first_remark']}".rstrip() if outcome["errors"] else ""


def faults(outcome: Json) -> list[str]:
    """What no broker may do, however busy it is: leave requests open, mix up replies or records, lose a message."""
    found = [f"{name} {outcome[name]}" for name in ("unanswered", "unmatched", "malformed") if outcome[name]]
    if outcome["mode"] == "send":
        stored = outcome["stored_after"] - outcome["stored_before"]
        acknowledged = outcome["total_count"] + outcome["stored_anyway"]
        # What was refused or stays open may be stored all the same: only the other direction is always a loss.
        if stored < acknowledged or (stored > acknowledged and not outcome["errors"] and not outcome["unanswered"]):
            found.append(f"{acknowledged} messages acknowledged, but the queues grew by {stored}")
    return found


def check(outcome: Json) -> None:
    """Raise GeneratorFailed unless every request was answered well and the queues hold just what was acknowledged."""
    found = [*filter(None, [refusals(outcome)]), *faults(outcome)]
    if found:
        raise GeneratorFailed(f"{outcome['mode']} on {outcome['topic']}: {'; '.join(found)}")


def _flags(load: Load) -> list[str]:
    values: dict[str, object] = {
        "queues": load.queues,
        "connections": load.connections,
        "in-flight": load.in_flight,
        "body": load.body_bytes,
        "header": load.header,
    }
    if load.mode == "send":
        values |= {"batch": load.batch, "rate": load.rate, "topics": load.topics}
    else:
        values["max-messages"] = load.max_messages
    flags = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    return [*flags, "--once"] if load.once else flags

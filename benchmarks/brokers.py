"""The two brokers under measurement, as child processes: RocketMQ 5.5.0 and ours, with the same promises to clients.

`durable` answers a send after the record is on disk (RocketMQ: SYNC_FLUSH), `async` after it is in the page cache
(RocketMQ: ASYNC_FLUSH). Everything else of RocketMQ is left as it ships, on a JVM set up for service: the tests'
own JVM flags are for quick starts and would make it look slow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.resources import Usage, usage_of
from tests.interop.artifacts import Unreachable, cache_directory, fetch
from tests.interop.processes import Child, ChildFailed
from tests.interop.rocketmq import DISK_SETTINGS, JAVA_17_FLAGS, free_port_triple, make_home

OURS: Final = "kappamq"
ROCKETMQ: Final = "rocketmq"
KINDS: Final = (OURS, ROCKETMQ)
FLUSHES: Final = ("durable", "async")

ROCKETMQ_SET: Final = "server-5.5.0"
ROCKETMQ_FLUSH: Final = {"durable": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}
SERVICE_JVM_FLAGS: Final = (
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:+AlwaysPreTouch",
    "-XX:MaxDirectMemorySize=2g",
)
READY_SECONDS_MAX: Final = 90.0
ROUTE_SECONDS_MAX: Final = 60.0
FREE_DISK_BYTES_MIN: Final = 8 * 1024**3
REQUEST_ROUTE: Final = 105


class Unavailable(Exception):
    """A broker, or the disk under it, cannot be used here; the reason says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """One broker with its name server."""

    kind: str
    flush: str
    name: str
    address: str
    nameserver: str
    pid: int
    all_pids: tuple[int, ...]
    start_seconds: float

    def usage(self) -> Usage:
        """What the broker process has used since its start; the name server is not included."""
        return usage_of(self.pid)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let a frozen broker run for the length of a `with` block."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.freeze()

    def freeze(self) -> None:
        """Stop its processes without ending them, so that it takes nothing from the other while that is measured."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.all_pids:
            os.kill(pid, number)


def why_unavailable(kind: str) -> str | None:
    """The reason why this broker cannot run here, or None."""
    if kind == ROCKETMQ:
        if shutil.which("java") is None:
            return "java is not installed (17 is needed)"
        if not (cache_directory() / ROCKETMQ_SET).is_dir() and shutil.which("mvn") is None:
            return "its jars are not in the cache, and mvn, which would fetch them, is not installed"
        return None
    program = _our_program()
    if not program.is_file():
        return f"{program.name} is not installed beside {sys.executable}: run make first"
    asked = subprocess.run([str(program), "up", "--help"], capture_output=True, timeout=30, check=False)
    return None if asked.returncode == 0 else "`kappamq up` does not run"


def available(kinds: Sequence[str]) -> list[str]:
    """Those of `kinds` that can run here; says on standard error which cannot, and raises Unavailable if none can."""
    able: list[str] = []
    for kind in kinds:
        reason = why_unavailable(kind)
        if reason is None:
            able.append(kind)
        else:
            print(f"{kind} is left out: {reason}", file=sys.stderr)
    if not able:
        raise Unavailable("none of the brokers can run here")
    return able


def chosen_kinds(only: str | None) -> Sequence[str]:
    """What `--only ours|rocketmq` means; both without it."""
    return KINDS if only is None else (OURS if only == "ours" else only,)


@contextmanager
def running(kind: str, flush: str, directory: Path) -> Iterator[RunningBroker]:
    """Run a broker, with its store in `directory`, for the length of a `with` block."""
    start = _our_broker if kind == OURS else _rocketmq
    try:
        with start(flush, directory) as broker:
            try:
                yield broker
            finally:
                broker.thaw()  # A stopped process would not even notice that it is asked to end.
    except (ChildFailed, Unreachable) as failure:
        raise Unavailable(str(failure)) from failure


def check_disk(directory: Path) -> None:
    """Raise Unavailable when the next measurement might fill the disk."""
    free = shutil.disk_usage(directory).free
    if free < FREE_DISK_BYTES_MIN:
        raise Unavailable(f"{free / 1e9:.1f} GB are free under {directory}: make room or give another --directory")


def wait_for_route(nameserver: str, topic: str) -> None:
    """Return as soon as the name server knows a route for the topic."""
    deadline = time.monotonic() + ROUTE_SECONDS_MAX
    while ask(nameserver, REQUEST_ROUTE, {"topic": topic})[0] != 0:
        if time.monotonic() > deadline:
            raise Unavailable(f"{nameserver} has no route for {topic} after {ROUTE_SECONDS_MAX:.0f} s")
        time.sleep(0.2)


def java_command(main_class: str, *arguments: str, home: Path, flags: Sequence[str]) -> list[str]:
    """The command line of a program among RocketMQ's jars."""
    classes = f"{home}/conf:{fetch(ROCKETMQ_SET)}/*"
    return ["java", *JAVA_17_FLAGS, *flags, f"-Duser.home={home}", "-cp", classes, main_class, *arguments]


@contextmanager
def java_home() -> Iterator[Path]:
    """A temporary home directory for one JVM."""
    home = make_home()
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _our_program() -> Path:
    return Path(sys.executable).parent / "kappamq"


@contextmanager
def _our_broker(flush: str, directory: Path) -> Iterator[RunningBroker]:
    command = [str(_our_program()), "up", "--port", "0", "--data", str(directory), "--flush", flush, "--json"]
    started = time.monotonic()
    child = Child("kappamq up", command, environment={}, directory=directory)
    try:
        ready = json.loads(child.wait_for('"nameserver"', seconds_max=READY_SECONDS_MAX))
        start_seconds = time.monotonic() - started
        broker = ready["brokers"][0]
        yield RunningBroker(
            kind=OURS,
            flush=flush,
            name=broker["name"],
            address=broker["address"],
            nameserver=ready["nameserver"],
            pid=broker["pid"],
            all_pids=tuple({child.process.pid, *(each["pid"] for each in ready["brokers"])}),
            start_seconds=round(start_seconds, 3),
        )
    finally:
        child.stop()


@contextmanager
def _rocketmq(flush: str, directory: Path) -> Iterator[RunningBroker]:
    fetch(ROCKETMQ_SET)  # Not part of the time it takes to start.
    with ExitStack() as stack:
        home = stack.enter_context(java_home())
        ports = {"namesrv": free_port_triple()}
        while abs((broker_port := free_port_triple()) - ports["namesrv"]) < 4:
            pass
        nameserver = f"127.0.0.1:{ports['namesrv']}"
        address = f"127.0.0.1:{broker_port}"
        settings = {"listenPort": str(ports["namesrv"]), "bindAddress": "127.0.0.1"}
        main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
        first = _start_java(stack, main_class, settings, home, ("-Xmx256m",))
        started = time.monotonic()
        settings = _rocketmq_settings(flush, directory, nameserver, broker_port)
        main_class = "org.apache.rocketmq.broker.BrokerStartup"
        second = _start_java(stack, main_class, settings, home, SERVICE_JVM_FLAGS)
        yield RunningBroker(
            kind=ROCKETMQ,
            flush=flush,
            name=settings["brokerName"],
            address=address,
            nameserver=nameserver,
            pid=second.process.pid,
            all_pids=(first.process.pid, second.process.pid),
            start_seconds=round(time.monotonic() - started, 3),
        )


def _rocketmq_settings(flush: str, directory: Path, nameserver: str, port: int) -> dict[str, str]:
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": nameserver,
        "storePathRootDir": str(directory),
        "storePathCommitLog": str(directory / "commitlog"),
        "flushDiskType": ROCKETMQ_FLUSH[flush],
        **DISK_SETTINGS,
    }


def _start_java(stack: ExitStack, main_class: str, settings: dict[str, str], home: Path, flags: Sequence[str]) -> Child:
    conf = home / f"{main_class.rpartition('.')[2]}.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    command = java_command(main_class, "-c", str(conf), home=home, flags=flags)
    child = Child(main_class, command, environment={"ROCKETMQ_HOME": str(home)}, directory=home)
    stack.callback(child.kill)  # Nobody needs the store afterwards, and an orderly end takes seconds.
    child.wait_for("boot success", seconds_max=READY_SECONDS_MAX)
    return child


def ask(address: str, code: int, fields: dict[str, str]) -> tuple[int, bytes]:
    """Send one request without a body and return code and body of its reply."""
    header = json.dumps(
        {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 513}
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rb") as replies:
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        length, header_length = struct.unpack(">II", replies.read(8))
        reply = json.loads(replies.read(header_length & 0xFFFFFF))
        body = replies.read(length - 4 - (header_length & 0xFFFFFF))
    return int(reply["code"]), body

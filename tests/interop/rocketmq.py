"""Real RocketMQ name servers and brokers, as child processes on free loopback ports.

Knows nothing of pytest and nothing of kappamq. Each server has a home of its own (settings, logs, and the store unless
a path is given), is ready when its constructor returns, and is gone when its `with` block ends.
"""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.interop.artifacts import Unreachable, fetch
from tests.interop.frames import ask
from tests.interop.processes import Child, ChildFailed

__all__ = [
    "Broker",
    "Cluster",
    "NameServer",
    "Unreachable",
    "await_registered",
    "free_port_triple",
    "start_cluster",
]

READY_SECONDS_MAX: Final = 150.0
START_ATTEMPTS_MAX: Final = 4
REGISTERED_SECONDS_MAX: Final = 90.0
PROBE_PAUSE_SECONDS: Final = 0.1
GET_BROKER_CLUSTER_INFO: Final = 106

# RocketMQ reaches into the JDK; Java 17 refuses that unless told otherwise.
JAVA_17_FLAGS: Final = (
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
# Short-lived test processes on few cores: a simple collector and the quick compiler start fastest.
FRUGAL_FLAGS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# Below the ephemeral range, so that no outgoing connection takes a port between our test and the server's bind.
PORT_RANGE: Final = range(20_000, 32_000)

# The test machine's disk may be nearly full, which would make the broker delete or refuse.
DISK_SETTINGS: Final = {
    "diskMaxUsedSpaceRatio": "95",
    "cleanFileForciblyEnable": "false",
    "diskSpaceWarningLevelRatio": "98",
    "diskSpaceCleanForciblyRatio": "97",
}
# It refuses sends that wait longer than 200 ms for a thread: on a crowded machine that says nothing.
PATIENCE_SETTINGS: Final = {"waitTimeMillsInSendQueue": "10000", "waitTimeMillsInPullQueue": "10000"}
# RocketMQ: once a transaction was decided, the thread that notes decisions in batches waits for the interval since the
# last one, and when that has passed not at all: it takes a whole processor. With a long interval, and batches that are
# full with one decision, it sleeps until there is one.
DECISION_SETTINGS: Final = {"transactionOpBatchInterval": "86400000", "transactionOpMsgMaxSize": "1"}
# 4.9 reads its logging settings from conf/ and refuses to start without them; 5.x looks for a resource of this name
# before the chatty one in its own jars, and for it in a logback whose package it has renamed.
LOGBACK_FILES: Final = {
    "logback_namesrv.xml": "",
    "logback_broker.xml": "",
    "rmq.logback.xml": "org.apache.rocketmq.logging.",
}
LOGBACK_TEXT: Final = """<configuration>
<statusListener class="{package}ch.qos.logback.core.status.NopStatusListener"/>
<appender name="console" class="{package}ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %p %logger{{20}} %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""


def java_command(libraries: Path, main_class: str, *arguments: str, home: Path, heap_mb: int) -> list[str]:
    """The command line of one JVM of ours."""
    return [
        "java",
        *JAVA_17_FLAGS,
        *FRUGAL_FLAGS,
        f"-Xmx{heap_mb}m",
        "-XX:MaxDirectMemorySize=512m",
        f"-Duser.home={home}",
        "-cp",
        f"{home}/conf:{libraries}/*",
        main_class,
        *arguments,
    ]


def free_port_triple() -> int:
    """Return a port p with p, p-2 and p+1 free just now: a broker's main, fast and replication ports."""
    for _ in range(200):
        port = random.choice(PORT_RANGE)
        if all(_is_free(candidate) for candidate in (port - 2, port, port + 1)):
            return port
    raise ChildFailed("no three free ports near each other below 32000: end some servers")


class NameServer:
    """One real name server. `address` is `127.0.0.1:port`."""

    def __init__(self, version: str = "5.5.0", *, settings: Mapping[str, str] | None = None) -> None:
        self._libraries = _server_libraries(version)
        self._home = make_home()
        self._settings = dict(settings or {})
        self._child, self.port = _start_somewhere(self._start)
        self.address = f"127.0.0.1:{self.port}"

    def _start(self, port: int) -> Child:
        settings = {"listenPort": str(port), "bindAddress": "127.0.0.1", **self._settings}
        conf = _write_settings(self._home / "namesrv.conf", settings)
        main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
        command = java_command(self._libraries, main_class, "-c", str(conf), home=self._home, heap_mb=128)
        return _start_ready("name server", command, self._home, "The Name Server boot success")

    def stop(self) -> None:
        self._child.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def kill(self) -> None:
        self._child.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def log_tail(self) -> str:
        return self._child.log_tail()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Broker:
    """One real broker. `address` is `127.0.0.1:port`; the store goes to `store` and outlives the process if given."""

    def __init__(
        self,
        nameserver: str,
        version: str = "5.5.0",
        *,
        name: str = "broker-a",
        broker_id: int = 0,
        cluster: str = "DefaultCluster",
        store: Path | None = None,
        port: int | None = None,
        flush: str = "ASYNC_FLUSH",
        commit_log_segment_bytes: int | None = None,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 384,
    ) -> None:
        self._libraries = _server_libraries(version)
        self._home = make_home()
        self.name = name
        self.cluster = cluster
        self.store = store if store is not None else self._home / "store"
        self._heap_mb = heap_mb
        self._settings = {
            "brokerClusterName": cluster,
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerRole": "ASYNC_MASTER" if broker_id == 0 else "SLAVE",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": nameserver,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "flushDiskType": flush,
            "autoCreateTopicEnable": "true",
            "enablePropertyFilter": "true",
            "traceTopicEnable": "true",
            **DISK_SETTINGS,
            **PATIENCE_SETTINGS,
            **DECISION_SETTINGS,
            **(settings or {}),
        }
        if commit_log_segment_bytes is not None:
            self._settings["mappedFileSizeCommitLog"] = str(commit_log_segment_bytes)
        if port is not None:
            self._child, self.port = self._start(port), port
        else:
            self._child, self.port = _start_somewhere(self._start)
        self.address = f"127.0.0.1:{self.port}"

    def _start(self, port: int) -> Child:
        conf = _write_settings(self._home / "broker.conf", {"listenPort": str(port), **self._settings})
        main_class = "org.apache.rocketmq.broker.BrokerStartup"
        command = java_command(self._libraries, main_class, "-c", str(conf), home=self._home, heap_mb=self._heap_mb)
        return _start_ready(f"broker {self.name}", command, self._home, "boot success")

    def stop(self) -> None:
        """Shut the broker down in order: it flushes, unregisters and removes its abort file."""
        self._child.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def kill(self) -> None:
        """End the broker at once, as a crash would."""
        self._child.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def log_tail(self) -> str:
        return self._child.log_tail()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One name server with one broker. `nameserver` is the address that clients are given."""

    version: str
    nameserver: str
    cluster_name: str
    broker_name: str
    broker_address: str
    name_server: NameServer
    broker: Broker


@contextmanager
def start_cluster(version: str = "5.5.0", *, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Run a real name server and broker of one version for the length of a `with` block."""
    with ExitStack() as stack:
        # Nobody needs these stores afterwards, and an orderly end of a broker takes seconds.
        name_server = NameServer(version)
        stack.callback(name_server.kill)
        broker = Broker(name_server.address, version, settings=settings)
        stack.callback(broker.kill)
        await_registered(name_server.address, broker.address)
        yield Cluster(
            version=version,
            nameserver=name_server.address,
            cluster_name=broker.cluster,
            broker_name=broker.name,
            broker_address=broker.address,
            name_server=name_server,
            broker=broker,
        )


def await_registered(nameserver: str, broker_address: str) -> None:
    """Wait until a name server knows a broker.

    RocketMQ: a 5.x broker's first registration goes to the name servers it is connected to at that moment, often none;
    the next one comes 10 s later.
    """
    deadline = time.monotonic() + REGISTERED_SECONDS_MAX
    while broker_address.encode() not in ask(nameserver, GET_BROKER_CLUSTER_INFO).body:
        if time.monotonic() > deadline:
            raise ChildFailed(f"broker {broker_address} is not known to name server {nameserver}: see its log_tail()")
        time.sleep(PROBE_PAUSE_SECONDS)


def _server_libraries(version: str) -> Path:
    if shutil.which("java") is None:
        raise Unreachable("java is not installed: install a Java 17 runtime")
    return fetch(f"server-{version}")


def make_home() -> Path:
    """A temporary home directory for one JVM, with quiet logging set up in `conf`."""
    home = Path(tempfile.mkdtemp(prefix="rocketmq-"))
    conf = home / "conf"
    conf.mkdir()
    for name, package in LOGBACK_FILES.items():
        (conf / name).write_text(LOGBACK_TEXT.format(package=package), encoding="utf-8")
    return home


def _write_settings(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return path


def _start_ready(name: str, command: list[str], home: Path, ready_text: str) -> Child:
    child = Child(name, command, environment={"ROCKETMQ_HOME": str(home)}, directory=home)
    try:
        child.wait_for(ready_text, seconds_max=READY_SECONDS_MAX)
    except BaseException:
        child.kill()
        raise
    return child


def _start_somewhere(start: Callable[[int], Child]) -> tuple[Child, int]:
    for attempt in range(1, START_ATTEMPTS_MAX + 1):
        port = free_port_triple()
        try:
            return start(port), port
        except ChildFailed as failure:
            # Another process may take a port between our look and the server's bind; any other failure is real.
            if attempt == START_ATTEMPTS_MAX or "in use" not in str(failure):
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

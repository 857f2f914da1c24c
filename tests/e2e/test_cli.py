"""The command line as a user runs it: real processes, real ports, real files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq import __version__

COMMAND_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("KAPPAMQ_", "NAMESRV_"))}


def kappamq(*arguments: str, code: int = 0, stdin: str = "") -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "kappamq", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env=environment(),
        check=False,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


class Up:
    """A running `kappamq up --json`, or another server command that says in JSON when it is ready."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kappamq", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        self.ready: dict[str, Any] = json.loads(line)

    @property
    def nameserver(self) -> str:
        return str(self.ready["nameserver"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Stop in order; returns what else was printed on standard output."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=STOP_SECONDS_MAX)
        assert self.process.returncode == 0, err
        return out


@contextmanager
def up(*arguments: str) -> Iterator[Up]:
    running = Up(*arguments)
    try:
        yield running
        running.stop()
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up("up", "--port", "0", "--data", str(tmp_path_factory.mktemp("one"))) as running:
        yield running


def on(running: Up, *arguments: str, code: int = 0, stdin: str = "") -> str:
    return kappamq(*arguments, "-n", running.nameserver, code=code, stdin=stdin)


def test_up_says_where_everything_is(one: Up) -> None:
    assert set(one.ready) == {"nameserver", "brokers", "pid", "version"}
    assert one.ready["pid"] == one.process.pid
    assert one.ready["version"] == __version__
    [broker] = one.ready["brokers"]
    assert (broker["name"], broker["pid"]) == ("broker-1", one.process.pid)
    assert Path(broker["data"], "commitlog").is_dir()


def test_messages_from_send_to_consume(one: Up) -> None:
    sent = lines(on(one, "send", "orders", "a", "grün", "--tags", "x", "--keys", "k1", "-p", "c=d", "--json"))
    assert [each["status"] for each in sent] == ["OK", "OK"]
    found = lines(on(one, "consume", "orders", "--count", "2", "--json"))
    assert sorted(each["body"] for each in found) == ["a", "grün"]
    assert {(each["tags"], each["properties"]["c"]) for each in found} == {("x", "d")}
    again = on(one, "consume", "orders", "--group", "g1", "--count", "2", "--timeout", "20s")
    assert sorted(line.rpartition("] ")[2] for line in again.splitlines()) == ["a", "grün"]
    assert on(one, "consume", "orders", "--group", "g1", "--timeout", "1s") == ""
    shown = json.loads(on(one, "message", "show", sent[0]["offset_id"], "--json"))
    assert (shown["body"], shown["message_id"]) == ("a", sent[0]["message_id"])
    unique = on(one, "message", "show", sent[1]["message_id"], "--topic", "orders")
    assert unique.splitlines()[-1].split() == ["body", "grün"]
    assert len(json.loads(on(one, "message", "find", "orders", "k1", "--json"))) == 2


def test_many_lines_from_standard_input(one: Up) -> None:
    on(one, "topic", "create", "many", "--queues", "3")
    assert on(one, "send", "many", "-", "--quiet", stdin="".join(f"line {n}\n" for n in range(3000))) == "3000 sent\n"
    shown = json.loads(on(one, "topic", "show", "many", "--json"))
    assert shown["messages"] == 3000
    assert len(shown["queues"]) == 3


def test_a_topic_from_creation_to_deletion(one: Up) -> None:
    assert on(one, "topic", "create", "t1", "--queues", "3") == "topic t1 has 3 queues on broker-1\n"
    assert "t1" in on(one, "topic", "list").split()
    assert "TBW102" not in on(one, "topic", "list").split()
    assert "TBW102" in json.loads(on(one, "topic", "list", "--all", "--json"))
    assert on(one, "topic", "show", "t1").splitlines()[0].split() == ["topic", "t1"]
    assert "add --yes" in on(one, "topic", "delete", "t1", code=2)
    on(one, "topic", "delete", "t1", "--yes")
    assert "t1" not in on(one, "topic", "list").split()
    assert "t1" in on(one, "topic", "show", "t1", code=1)


def test_a_group_is_seen_and_moved(one: Up) -> None:
    on(one, "topic", "create", "moved", "--queues", "1")
    on(one, "send", "moved", "a", "b", "c")
    on(one, "consume", "moved", "--group", "g2", "--count", "3")
    [group] = [each for each in json.loads(on(one, "group", "list", "--json")) if each["group"] == "g2"]
    assert group == {"group": "g2", "members": 0, "lag": 0, "topics": ["moved"]}
    [reset] = json.loads(on(one, "group", "reset", "g2", "--topic", "moved", "--to", "first", "--json"))
    assert reset["committed_offset"] == 0
    assert json.loads(on(one, "group", "show", "g2", "--json"))["lag"] == 3
    assert on(one, "consume", "moved", "--group", "g2", "--count", "3").count("\n") == 3
    assert "known" in on(one, "group", "show", "nobody", code=1)


def test_the_cluster_is_shown(one: Up) -> None:
    [broker] = json.loads(on(one, "cluster", "--json"))
    assert broker["address"] == one.ready["brokers"][0]["address"]
    assert broker["fault"] is None
    assert "broker-1" in on(one, "cluster")


def test_data_survives_and_can_be_checked(tmp_path: Path) -> None:
    with up("up", "--port", "0", "--data", str(tmp_path)) as running:
        on(running, "send", "kept", "a", "b")
        assert running.stop(signal.SIGINT) == ""
    store = str(tmp_path / "broker-1")
    assert json.loads(kappamq("store", "check", store, "--json"))["records"] == 2
    assert [each["body"] for each in lines(kappamq("store", "dump", store, "--topic", "kept", "--json"))] == ["a", "b"]
    assert "a" in kappamq("store", "dump", store, "--count", "1")
    with up("up", "--port", "0", "--data", str(tmp_path)) as again:
        assert on(again, "consume", "kept", "--count", "2").count("\n") == 2


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    with up("up", "--port", "0", "--data", str(tmp_path)) as running:
        on(running, "send", "kept", "a", "b", "c")
    segment = tmp_path / "broker-1" / "commitlog" / "00000000000000000000"
    with open(segment, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 8)
    assert "broken invariants" in kappamq("store", "check", str(tmp_path / "broker-1"), code=1)


def test_several_brokers_are_several_processes(tmp_path: Path) -> None:
    with up("up", "--port", "0", "--brokers", "2", "--flush", "async", "--data", str(tmp_path)) as running:
        brokers = running.ready["brokers"]
        assert len({each["pid"] for each in brokers} | {running.process.pid}) == 3
        assert on(running, "topic", "create", "t", "--queues", "1") == "topic t has 1 queues on broker-1, broker-2\n"
        on(running, "send", "t", "x", "--count", "10", "-q")
        shown = json.loads(on(running, "topic", "show", "t", "--json"))
        assert [each["end"] for each in shown["queues"]] == [5, 5]
    for broker in brokers:
        await_gone(broker["pid"])


def test_brokers_end_with_a_killed_parent(tmp_path: Path) -> None:
    running = Up("up", "--port", "0", "--brokers", "2", "--data", str(tmp_path))
    running.process.kill()
    running.process.communicate()
    for broker in running.ready["brokers"]:
        await_gone(broker["pid"])


def test_one_broker_that_dies_stops_all(tmp_path: Path) -> None:
    running = Up("up", "--port", "0", "--brokers", "2", "--data", str(tmp_path))
    first, second = (each["pid"] for each in running.ready["brokers"])
    os.kill(first, signal.SIGKILL)
    _, err = running.process.communicate(timeout=STOP_SECONDS_MAX)
    assert running.process.returncode == 1
    assert "broker-1 ended by itself" in err
    await_gone(second)


def test_name_server_and_broker_as_commands_of_their_own(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=from-conf\nlistenPort=0\nstorePathRootDir={tmp_path / 'store'}\n")
    with (
        up("nameserver", "--listen", "0") as nameserver,
        up("broker", "--config", str(conf), "--nameserver", nameserver.nameserver, "--cluster", "c9") as broker,
    ):
        assert (broker.ready["name"], broker.ready["data"]) == ("from-conf", str(tmp_path / "store"))
        [view] = json.loads(on(nameserver, "cluster", "--json"))
        assert (view["cluster"], view["name"], view["address"]) == ("c9", "from-conf", broker.ready["address"])


def test_a_taken_port_is_one_sentence(one: Up, tmp_path: Path) -> None:
    port = one.nameserver.rpartition(":")[2]
    message = kappamq("up", "--port", port, "--data", str(tmp_path), code=1)
    assert message.startswith(f"kappamq: cannot listen on 127.0.0.1:{port}")
    assert message.count("\n") == 1


def test_a_store_in_use_is_one_sentence(one: Up) -> None:
    data = Path(one.ready["brokers"][0]["data"]).parent
    message = kappamq("up", "--port", "0", "--data", str(data), code=1)
    assert message.startswith("kappamq: ")
    assert message.count("\n") == 1


def await_gone(pid: int) -> None:
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


def test_ctrl_c_ends_consume_without_a_word(one: Up) -> None:
    on(one, "topic", "create", "watched", "--queues", "1")
    on(one, "send", "watched", "a")
    # Tests that were started in the background ignore the signal, and what they start would do so as well.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watching = subprocess.Popen(
            [sys.executable, "-m", "kappamq", "consume", "watched", "--group", "g3", "-n", one.nameserver],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with watching:
        try:
            assert watching.stdout is not None
            assert watching.stdout.readline().endswith(" a\n")
            watching.send_signal(signal.SIGINT)
            assert watching.communicate(timeout=STOP_SECONDS_MAX) == ("", "")
            assert watching.returncode == 0
        finally:
            watching.kill()
    assert on(one, "group", "show", "g3").splitlines()[0].split() == ["group", "g3"]

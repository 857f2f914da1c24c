"""What a user reads when a command fails, and the code that a script sees."""

import pytest
import typer

from kappamq import __version__
from kappamq.cli import main as main_module
from kappamq.cli.main import FAILED, MISUSED, main, run
from kappamq.errors import ConfigError, ConnectFailed, UsageError
from kappamq.kernel import KERNEL

Capture = pytest.CaptureFixture[str]


def test_version_names_the_kernel(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"kappamq {__version__} (kernel: {KERNEL})\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["topic", "lst"], "No such command 'lst'"),
        (["topic", "create"], "see `kappamq topic create --help`"),
        (["topic", "create", "x", "--queues", "many"], "--queues"),
        (["topic", "create", "x", "--permission", "all"], "use rw, r, w, none"),
        (["topic", "list", "--nosuch"], "--nosuch"),
        (["topic", "create", "no blanks"], "is not allowed"),
        (["topic", "list", "-n", "nohost"], "host:port"),
        (["topic", "delete", "x"], "add --yes"),
        (["group", "delete", "x"], "add --yes"),
        (["group", "reset", "g", "-t", "t", "--to", "someday"], "-2h for two hours ago"),
        (["send", "t"], "no body"),
        (["send", "t", "x", "--property", "novalue"], "name=value"),
        (["send", "t", "x", "--delay", "soon"], "500ms, 10s, 5m or 2h"),
        (["up", "--brokers", "0"], "--brokers"),
        (["broker", "--listen", "nowhere"], "host:port"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_code_2(arguments: list[str], text: str, capsys: Capture) -> None:
    assert run(arguments) == MISUSED
    shown = capsys.readouterr()
    assert text in shown.err
    assert shown.err.startswith("kappamq: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["topic", "list", "-n", "127.0.0.1:1"], "connect to 127.0.0.1:1 failed"),
        (["nameserver", "--listen", "0.0.0.0:0"], "--insecure"),
        (["broker", "--listen", "0.0.0.0:0"], "--insecure"),
        (["store", "check", "/nowhere"], "has no commit log"),
        (["store", "dump", "/nowhere"], "has no commit log"),
        (["broker", "--config", "/nowhere.toml"], "cannot read settings file"),
        (["nameserver", "--config", "/nowhere.toml"], "cannot read settings file"),
    ],
)
def test_a_failure_is_one_sentence_and_code_1(arguments: list[str], text: str, capsys: Capture) -> None:
    assert run(arguments) == FAILED
    shown = capsys.readouterr()
    assert text in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["topic"], ["store"]])
def test_no_command_shows_help(arguments: list[str], capsys: Capture) -> None:
    assert run(arguments) == MISUSED
    assert "Usage: kappamq" in capsys.readouterr().out


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "app", fail)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("fix\nthis"), 1, "kappamq: fix this\n"),
        (UsageError("fix the call"), 2, "kappamq: fix the call\n"),
        (ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [ConnectFailed("gone")])]), 1, "kappamq: gone\n"),
        (ValueError("oops"), 1, "kappamq: internal error (ValueError: oops): run it again with --debug"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Abort(), 130, ""),
        (typer.Exit(3), 3, ""),
        (typer.BadParameter("bad"), 2, "see `kappamq --help`"),
    ],
)
def test_every_error_becomes_a_sentence_and_a_code(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    failing(monkeypatch, error)
    assert run([]) == code
    shown = capsys.readouterr().err
    assert text in shown
    assert "Traceback" not in shown


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert run(["topic", "list", "--debug", "-n", "nohost"]) == MISUSED
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "kappamq: address 'nohost'" in shown
    failing(monkeypatch, ValueError("oops"))
    assert run(["--debug"]) == FAILED
    assert "Traceback" in capsys.readouterr().err
    assert run(["--", "--debug"]) == FAILED
    assert "Traceback" not in capsys.readouterr().err


def test_main_leaves_with_the_code() -> None:
    with pytest.raises(SystemExit) as leave:
        main(["nosuch"])
    assert leave.value.code == MISUSED

"""The `kappamq` command: its subcommands, and what a user reads when something fails."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, Final, NoReturn

import typer

from kappamq import __version__
from kappamq.cli import broker, cluster, consume, dlq, group, message, nameserver, send, store, topic, trace, up
from kappamq.errors import KappaError, UsageError
from kappamq.spark.cli import pipeline_app

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130

# typer shows click's exceptions under names that change; these are the public one's ancestors in every version.
_WrongCall: type[Exception]
_CommandFailed: type[Exception]
_WrongCall, _CommandFailed = typer.BadParameter.__mro__[1:3]

app = typer.Typer(
    name="kappamq",
    help="A durable message queue that speaks RocketMQ's protocol. Start with `kappamq up`.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("nameserver")(nameserver.nameserver)
app.command("broker")(broker.broker)
app.command("send")(send.send)
app.command("consume")(consume.consume)
app.command("cluster")(cluster.cluster)
app.command("trace")(trace.trace)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(message.app, name="message")
app.add_typer(dlq.app, name="dlq")
app.add_typer(store.app, name="store")
app.add_typer(pipeline_app, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
        from kappamq.kernel import KERNEL

        print(f"kappamq {__version__} (kernel: {KERNEL})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
) -> None:
    """A durable message queue that speaks RocketMQ's protocol. Start with `kappamq up`."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave the process with its exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command; returns 0, 1 when it failed, or 2 when it was called wrongly."""
    debug = _take_debug(arguments)
    logging.captureWarnings(True)
    try:
        outcome = app(args=arguments, prog_name="kappamq", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as leave:
        return leave.exit_code
    except _WrongCall as fault:
        return _say_misuse(fault)
    except _CommandFailed as fault:
        return _say(str(fault), FAILED)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough of it (`kappamq … | head`): not a failure, and nothing left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as fault:  # noqa: BLE001 - one of the two places that must outlive a bug.
        return _say_failure(fault, debug=debug)
    return outcome if isinstance(outcome, int) else 0


def _take_debug(arguments: list[str]) -> bool:
    """Take `--debug` out of the arguments, wherever it stands before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" not in arguments[:end]:
        return False
    arguments.remove("--debug")
    return True


def _say_misuse(fault: Any) -> int:
    """Say what is wrong with the call; a command without its arguments is answered with its help."""
    text = str(fault.format_message()).rstrip(".?")
    context = fault.ctx
    if type(fault).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        return MISUSED
    command = context.command_path if context is not None else "kappamq"
    return _say(f"{text}: see `{command} --help`", MISUSED)


def _say_failure(fault: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(fault)
    cause = _cause_of(fault)
    if cause is not None:
        return _say(str(cause), MISUSED if isinstance(cause, UsageError) else FAILED)
    hint = "" if debug else ": run it again with --debug and report what it prints"
    return _say(f"internal error ({type(fault).__name__}: {fault}){hint}", FAILED)


def _cause_of(fault: BaseException) -> KappaError | None:
    """The error that a user can do something about, also out of a group of several."""
    if isinstance(fault, KappaError):
        return fault
    if isinstance(fault, BaseExceptionGroup):
        return next((cause for inner in fault.exceptions if (cause := _cause_of(inner)) is not None), None)
    return None


def _say(sentence: str, code: int) -> int:
    one_line = " ".join(sentence.split())
    print(f"kappamq: {one_line}", file=sys.stderr)
    return code

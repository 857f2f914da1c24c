"""`kappamq pipeline …`: the jobs, on a Spark session of this machine."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN_MAX: Final = 1000
DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"

NameServer = Annotated[
    str,
    typer.Option(
        "--nameserver", "-n", envvar=["KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"], help="Name servers, with ';' between them."
    ),
]
Master = Annotated[str, typer.Option("--master", help="Spark master, for example local[4] or spark://host:7077.")]

pipeline_app = typer.Typer(help="Data pipeline jobs on Spark.", no_args_is_help=True)


@pipeline_app.command()
def archive(
    output: Annotated[Path, typer.Argument(help="Directory for Parquet files, by topic and day.")],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="A topic; may be given several times.")] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", help="Regular expression for topics.")] = None,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="Default: OUTPUT.checkpoint.")] = None,
    follow: Annotated[int | None, typer.Option("--follow", help="Go on, a batch in so many seconds.")] = None,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
) -> None:
    """Keep topics as Parquet, each message exactly once. Run it again to add what is new."""
    from kappamq.spark.jobs import archive as job

    if (topic is None) == (pattern is None):
        raise typer.BadParameter("give either --topic or --pattern")
    rows = job.run(
        _session("archive", master),
        nameserver,
        output=str(output),
        checkpoint=str(checkpoint or output.with_name(output.name + ".checkpoint")),
        topics=",".join(topic) if topic else None,
        pattern=pattern,
        follow_seconds=follow,
    )
    Console().print(f"{rows} messages archived in {output}")


@pipeline_app.command()
def replay(
    archived: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Directory that `archive` has written.")],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")] = None,
    start: Annotated[datetime | None, typer.Option("--from", help="Stored at or after this time (UTC).")] = None,
    end: Annotated[datetime | None, typer.Option("--to", help="Stored before this time (UTC).")] = None,
    into: Annotated[str | None, typer.Option("--into", help="Send all to this topic.")] = None,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
) -> None:
    """Send archived messages again."""
    from kappamq.spark.jobs import replay as job

    count = job.run(
        _session("replay", master),
        nameserver,
        archive=str(archived),
        topics=tuple(topic or ()),
        start=start.replace(tzinfo=UTC) if start else None,
        end=end.replace(tzinfo=UTC) if end else None,
        to_topic=into,
    )
    Console().print(f"{count} messages sent")


@pipeline_app.command("dead-letters")
def dead_letters(
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group; may be repeated.")] = None,
    redrive: Annotated[bool, typer.Option("--redrive", help="Send each to the topic it came from, too.")] = False,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
) -> None:
    """Count what consumer groups gave up on."""
    from kappamq.spark.jobs import dead_letters as job

    _show(job.run(_session("dead letters", master), nameserver, groups=tuple(group or ()), sends=redrive))


@pipeline_app.command()
def trace(nameserver: NameServer = DEFAULT_NAMESERVER, master: Master = "local[*]") -> None:
    """Show how long sending and consuming took, by group."""
    from kappamq.spark.jobs import trace as job

    _show(job.run(_session("trace", master), nameserver))


@pipeline_app.command()
def lag(
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group; may be repeated.")] = None,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
) -> None:
    """Show how far groups are behind."""
    from kappamq.spark.jobs import lag as job

    _show(job.run(_session("lag", master), nameserver, groups=tuple(group or ())))


@pipeline_app.command()
def verify(
    store: Annotated[Path, typer.Argument(help="Store directory, which holds commitlog.")],
    master: Master = "local[*]",
) -> None:
    """Check every record of a commit log. Fails when one is damaged."""
    from kappamq.spark.jobs import verify as job

    rows = _show(job.run(_session("verify", master), store))
    if any(row["damage"] for row in rows):
        raise typer.Exit(1)


@pipeline_app.command()
def rebuild(
    store: Annotated[Path, typer.Argument(help="Directory that holds commitlog.")],
    output: Annotated[Path, typer.Argument(help="Directory for the new consumequeue.")],
    master: Master = "local[*]",
) -> None:
    """Make consume queues from a commit log alone, so that it can be read with mode=files."""
    from kappamq.spark.jobs import rebuild as job

    count = job.run(_session("rebuild", master), store, output=output)
    Console().print(f"{count} entries written to {output / 'consumequeue'}")


def _session(name: str, master: str) -> "SparkSession":
    from kappamq.spark.sessions import local_session

    return local_session(f"kappamq {name}", master=master, settings={"spark.log.level": "ERROR"})


def _show(frame: "DataFrame") -> list[dict[str, Any]]:
    rows = [row.asDict() for row in frame.limit(ROWS_SHOWN_MAX).collect()]
    table = Table(*frame.columns)
    for row in rows:
        table.add_row(*_texts(row.values()))
    Console().print(table)
    return rows


def _texts(values: Iterable[Any]) -> list[str]:
    return ["" if value is None else str(value) for value in values]

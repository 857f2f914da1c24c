"""`kappamq pipeline …`: the jobs, on a Spark session of this machine, on a cluster or on a Connect server."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kappamq.errors import KappaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN_MAX: Final = 1000
PIPE_COLUMNS: Final = 400
"""Width of tables that do not go to a terminal: nothing is cut there."""
DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"


class ResultFormat(StrEnum):
    """Files that a result is kept in."""

    PARQUET = "parquet"
    JSON = "json"


NameServer = Annotated[
    str,
    typer.Option(
        "--nameserver", "-n", envvar=["KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"], help="Name servers, with ';' between them."
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        "--remote",
        envvar="KAPPAMQ_SPARK_MASTER",
        help="Spark master such as local[4] or spark://host:7077, or a Connect server such as sc://host:15002.",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, as key=value; may be given several times.")
]
TableFormat = Annotated[
    str, typer.Option("--format", help="parquet, or delta or iceberg, which need 'kappamq\\[lake]'.")
]
Output = Annotated[Path | None, typer.Option("--output", help="Directory to keep the result in; made anew.")]
OutputFormat = Annotated[ResultFormat, typer.Option("--format", help="Of the output.")]
IndexSlots = Annotated[
    int | None, typer.Option("--index-slots", help="Slots of an index file, if not the usual number.", min=1)
]
IndexEntries = Annotated[
    int | None, typer.Option("--index-entries", help="Entries of an index file, if not the usual number.", min=2)
]
DelayLevels = Annotated[
    str | None, typer.Option("--delay-levels", help="The broker's delay_levels, if not the usual ones: '1s 5s 10s'.")
]

pipeline_app = typer.Typer(help="Data pipeline jobs on Spark.", no_args_is_help=True)


@pipeline_app.command()
def archive(
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="Directory for the files, by topic and day, or a URL of one.")
    ],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="A topic; may be given several times.")] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", help="Regular expression for topics.")] = None,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="Default: OUTPUT.checkpoint.")] = None,
    follow: Annotated[
        int | None, typer.Option("--follow", help="Go on until Ctrl-C, a batch in so many seconds.", min=1)
    ] = None,
    table_format: TableFormat = "parquet",
    file_mb: Annotated[int, typer.Option("--file-mb", help="Size that files are to have, in MiB.", min=1)] = 128,
    batch_rows: Annotated[int, typer.Option("--batch-rows", help="Messages of one batch.", min=1)] = 1_000_000,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Keep topics as Parquet, Delta or Iceberg, each message exactly once. Run it again to add what is new.

    Example: kappamq pipeline archive lake --topic orders --format delta
    """
    from kappamq.spark.jobs import archive as job

    if (topic is None) == (pattern is None):
        raise typer.BadParameter("give either --topic or --pattern")
    with _session("archive", master, conf) as spark:
        rows = job.run(
            spark,
            nameserver,
            output=output,
            checkpoint=checkpoint or f"{output.rstrip('/')}.checkpoint",
            topics=",".join(topic) if topic else None,
            pattern=pattern,
            follow_seconds=follow,
            rows_per_batch=batch_rows,
            table_format=table_format,
            file_bytes=file_mb * 1024 * 1024,
            say=_say,
        )
    _print(f"{rows} messages archived in {output}")


@pipeline_app.command()
def replay(
    archived: Annotated[str, typer.Argument(metavar="ARCHIVE", help="Directory that `archive` has written.")],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")] = None,
    start: Annotated[datetime | None, typer.Option("--from", help="Stored at or after this time (UTC).")] = None,
    end: Annotated[datetime | None, typer.Option("--to", help="Stored before this time (UTC).")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="Only with this key; may be repeated.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag; may be repeated.")] = None,
    into: Annotated[str | None, typer.Option("--into", help="Send all to this topic.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of this replay: what it has sent, it does not send again.")
    ] = None,
    rate: Annotated[int | None, typer.Option("--rate", help="Messages per second at most.", min=1)] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Without a transaction: a task that fails and is repeated sends twice.")
    ] = False,
    table_format: TableFormat = "parquet",
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Send archived messages again. A second run sends only what the first one did not.

    Example: kappamq pipeline replay lake --topic orders --from 2024-05-01 --into orders-again --rate 1000
    """
    from kappamq.spark.jobs import replay as job

    with _session("replay", master, conf) as spark:
        count = job.run(
            spark,
            nameserver,
            archive=archived,
            topics=tuple(topic or ()),
            start=_utc(start),
            end=_utc(end),
            keys=tuple(key or ()),
            tags=tuple(tag or ()),
            to_topic=into,
            name=name,
            rate=rate,
            is_exact=not fast,
            table_format=table_format,
        )
    _print(f"{count} messages sent")


@pipeline_app.command("dead-letters")
def dead_letters(
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group; may be repeated.")] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only from this topic; may be repeated.")] = None,
    cause: Annotated[
        list[str] | None, typer.Option("--cause", help="Only if the cause contains this text; may be repeated.")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="Only with this key; may be repeated.")] = None,
    start: Annotated[datetime | None, typer.Option("--from", help="Given up at or after this time (UTC).")] = None,
    end: Annotated[datetime | None, typer.Option("--to", help="Given up before this time (UTC).")] = None,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Send each of these to the topic it came from, too.")
    ] = False,
    output: Output = None,
    output_format: OutputFormat = ResultFormat.PARQUET,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Count what consumer groups gave up on. A letter that was sent again is not sent a second time.

    Example: kappamq pipeline dead-letters --group billing --cause Timeout --redrive
    """
    from kappamq.spark.jobs import dead_letters as job

    with _session("dead letters", master, conf) as spark:
        letters = job.choose(
            job.read(spark, nameserver, tuple(group or ())),
            topics=tuple(topic or ()),
            causes=tuple(cause or ()),
            keys=tuple(key or ()),
            start=_utc(start),
            end=_utc(end),
        ).cache()
        sent = job.send(spark, nameserver, letters) if redrive else None
        found = job.summarise(letters)
        _keep(found, output, output_format)
        _show(found, otherwise="no dead letters")
    if sent is not None:
        _print(f"{sent} letters sent again")


@pipeline_app.command()
def trace(
    window: Annotated[str, typer.Option("--window", help="Length of a line of the second table.")] = "5 minutes",
    output: Output = None,
    output_format: OutputFormat = ResultFormat.PARQUET,
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Show how long sending and consuming took, by group, and how long messages were on their way.

    The output has both tables, in the directories groups and latencies.

    Example: kappamq pipeline trace
    """
    from kappamq.spark.jobs import trace as job

    with _session("trace", master, conf) as spark:
        for name, frame in zip(("groups", "latencies"), job.run(spark, nameserver, window=window), strict=True):
            _keep(frame, output and output / name, output_format)
            _show(frame, otherwise=f"no {name}: clients send traces when they are told to (trace=True)")


@pipeline_app.command()
def lag(
    group: Annotated[list[str] | None, typer.Option("--group", help="Only this group; may be repeated.")] = None,
    every: Annotated[float, typer.Option("--every", help="Seconds from one sample to the next.", min=1)] = 10,
    times: Annotated[int, typer.Option("--times", help="Number of samples.", min=1)] = 1,
    output: Annotated[Path | None, typer.Option("--output", help="Directory to which samples are added.")] = None,
    table_format: Annotated[str, typer.Option("--format", help="Of the output: parquet or json.")] = "parquet",
    nameserver: NameServer = DEFAULT_NAMESERVER,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Show how far groups are behind, in messages and in seconds, by queue and over time; at the end by topic.

    Example: kappamq pipeline lag --group billing --every 30 --times 20 --output lag
    """
    from kappamq.spark.jobs import lag as job

    with _session("lag", master, conf) as spark:
        samples = job.run(
            spark,
            nameserver,
            groups=tuple(group or ()),
            every_seconds=every,
            times=times,
            output=str(output) if output is not None else None,
            table_format=table_format,
        )
        if _show(samples.orderBy("at", "group", "topic", "broker", "queueId"), otherwise="no group has any progress"):
            _show(job.build(samples), otherwise="")


@pipeline_app.command()
def verify(
    store: Annotated[Path, typer.Argument(help="Store directory, which holds commitlog.")],
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    delay_levels: DelayLevels = None,
    output: Output = None,
    output_format: OutputFormat = ResultFormat.PARQUET,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Check every record, queue entry and key of a store, which may be in use. Code 1, and a list, if any is wrong.

    Example: kappamq pipeline verify /data/broker-a
    """
    from kappamq.spark.jobs import verify as job

    options = _store_options(index_slots, index_entries, delay_levels)
    with _session("verify", master, conf) as spark:
        report = job.run(spark, store, **options)
        _keep(spark.createDataFrame(list(report.findings), job.SCHEMA), output, output_format)
    _print(
        f"{report.records} records in {report.segments} segments, {report.queues} queues, {report.keys} keys: "
        f"{len(report.findings) or 'nothing'} wrong"
    )
    for finding in report.findings:
        _print(f"{finding.kind}: {finding.file}: log offset {finding.offset}: {finding.words}")
    if not report.is_sound:
        raise typer.Exit(1)


@pipeline_app.command()
def rebuild(
    store: Annotated[Path, typer.Argument(help="Directory that holds commitlog.")],
    output: Annotated[Path, typer.Argument(help="Directory for the new consumequeue and index.")],
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Only consume queues.")] = False,
    delay_levels: DelayLevels = None,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Make consume queues and key index from a commit log alone, byte for byte as a broker would.

    Example: kappamq pipeline rebuild /data/broker-a /data/rebuilt
    """
    from kappamq.spark.jobs import rebuild as job

    options = _store_options(index_slots, index_entries, delay_levels)
    with _session("rebuild", master, conf) as spark:
        made = job.run(spark, store, output=output, has_index=not no_index, **options)
    _print(
        f"{made.queue_entries} entries written to {output / 'consumequeue'}, "
        f"{made.index_entries} to {made.index_files} files in {output / 'index'}"
    )


@pipeline_app.command("spark-cluster")
def spark_cluster(
    workers: Annotated[int, typer.Option("--workers", help="Workers, of one core each.", min=1)] = 2,
    memory: Annotated[str, typer.Option("--memory", help="Memory of a worker, for its executor.")] = "512m",
) -> None:
    """Run a Spark cluster on this machine until Ctrl-C: a master and workers, on free ports.

    Example: kappamq pipeline spark-cluster --workers 2
    """
    from kappamq.spark.standalone import start_standalone

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    console = Console(soft_wrap=True)
    console.print(f"Starting a master and {workers} workers of Spark …")
    with start_standalone(workers=workers, worker_memory=memory) as cluster:
        settings = " ".join(f"--conf {key}={value}" for key, value in cluster.settings.items())
        console.print(f"Master: {cluster.master}\nPage:   {cluster.ui}")
        console.print(f"Use it: kappamq pipeline archive lake --topic orders --master {cluster.master} {settings}")
        ended.wait()
    console.print("Spark has ended.")


@contextmanager
def _session(name: str, master: str, conf: list[str] | None) -> "Iterator[SparkSession]":
    """A session for a job. What Spark says of a failure becomes one sentence."""
    from kappamq.spark.sessions import CONNECT_SCHEME, open_session

    # Somebody watches: Spark's bar shows how many tasks are done.
    settings = {"spark.ui.showConsoleProgress": "true"} if sys.stderr.isatty() else {}
    for each in conf or []:
        key, separator, value = each.partition("=")
        if not separator or not key.startswith("spark."):
            raise typer.BadParameter(f"--conf {each}: write a setting of Spark as key=value, such as spark.cores.max=4")
        settings[key] = value
    session = open_session(f"kappamq {name}", master=master, settings=settings)
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from kappamq.spark.jobs.frames import reason_of
    from kappamq.spark.jobs.watching import watched

    # A terminal shows Spark's bar, which Connect clients do not have.
    is_remote = master.startswith(CONNECT_SCHEME)
    shows_bar = sys.stderr.isatty() and not is_remote
    try:
        with nullcontext() if shows_bar else watched(session, _say, is_remote=is_remote):
            yield session
    except PySparkException as fault:
        raise KappaError(reason_of(str(fault))) from fault
    except Py4JJavaError as fault:
        raise KappaError(reason_of(str(fault.java_exception))) from fault


def _keep(frame: "DataFrame", output: Path | None, output_format: ResultFormat) -> None:
    """Write a result to a directory that does not exist yet."""
    if output is not None:
        frame.write.format(output_format.value).mode("errorifexists").save(str(output))


def _store_options(index_slots: int | None, index_entries: int | None, delay_levels: str | None) -> dict[str, Any]:
    from kappamq.spark.log_records import parse_delay_levels

    given: dict[str, Any] = {"index_slots": index_slots, "index_entries": index_entries}
    if delay_levels is not None:
        given["delay_levels_ms"] = parse_delay_levels(delay_levels)
    return {name: value for name, value in given.items() if value is not None}


def _show(frame: "DataFrame", *, otherwise: str) -> bool:
    """Print a frame as a table, or what to say of an empty one; returns whether there was anything."""
    rows = frame.limit(ROWS_SHOWN_MAX).collect()
    if not rows:
        _print(otherwise)
        return False
    table = Table(box=None, pad_edge=False)
    for name in frame.columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        # Causes and topics are no markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(table)
    return True


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float):
        return f"{value:.1f}"
    return "" if value is None else str(value)


def _print(text: str) -> None:
    Console(soft_wrap=True, markup=False, highlight=False).print(text)


def _say(text: str) -> None:
    """What happens meanwhile; results have standard output for themselves."""
    print(text, file=sys.stderr, flush=True)


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None else None

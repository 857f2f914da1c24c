"""`kappamq dlq`: look at dead letters and send them once more."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, AsJson, NameServers, administer, parse_moment
from kappamq.cli.output import body_text, message_value, moment, print_json, print_table

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin
    from kappamq.admin.dead_letters import DeadLetter, DeadLetterSummary, Redrive, Selection

SHOWN_MAX: Final = 10_000

app = typer.Typer(
    help="Look at dead letters, the messages that a group gave up, and redrive them.", no_args_is_help=True
)

GroupName = Annotated[str, typer.Argument(help="Group that gave the messages up.")]
Since = Annotated[str | None, typer.Option("--since", help="Given up at this time or later, for example -2h.")]
Until = Annotated[str | None, typer.Option("--until", help="Given up before.")]
Key = Annotated[str | None, typer.Option("--key", help="Only those that carry this key.")]
Tag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]


@app.command("list")
def list_groups(as_json: AsJson = False, nameserver: NameServers = DEFAULT_NAMESERVER) -> None:
    """List the groups that have dead letters."""

    async def action(admin: "Admin") -> "list[DeadLetterSummary]":
        return await admin.dead_letters.overview()

    found = administer(nameserver, action)
    if as_json:
        print_json(
            [
                {
                    "group": each.group,
                    "count": each.count,
                    "oldest_at_ms": each.oldest_at_ms,
                    "newest_at_ms": each.newest_at_ms,
                }
                for each in found
            ]
        )
        return
    rows = ((each.group, each.count, moment(each.oldest_at_ms), moment(each.newest_at_ms)) for each in found)
    print_table(("group", "dead letters", "oldest", "newest"), rows)


@app.command()
def show(
    group: GroupName,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    tag: Tag = None,
    count: Annotated[int, typer.Option("--count", min=1, max=SHOWN_MAX, help="Most messages to print.")] = 64,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Show dead letters of a group, oldest first: where each came from, how often it was tried, and why it failed."""
    selection = _selection(since, until, key, tag)

    async def action(admin: "Admin") -> "list[DeadLetter]":
        found: list[DeadLetter] = []
        async for letter in admin.dead_letters.read(group, selection):
            found.append(letter)
            if len(found) == count:
                break
        return found

    found = administer(nameserver, action)
    if as_json:
        print_json([_value(each) for each in found])
        return
    rows = (
        (
            moment(each.message.stored_at_ms),
            each.origin_topic,
            each.origin_id,
            " ".join(each.message.keys) or None,
            each.message.tags,
            each.message.retry_count,
            each.cause,
            body_text(each.message.body),
        )
        for each in found
    )
    print_table(("given up", "origin topic", "origin id", "keys", "tag", "retries", "cause", "body"), rows)


@app.command()
def redrive(
    group: GroupName,
    to: Annotated[str | None, typer.Option("--to", help="Topic to send to, instead of the one each came from.")] = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    tag: Tag = None,
    again: Annotated[bool, typer.Option("--again", help="Also those that were redriven before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Send dead letters of a group back to the topics they came from. The dead letters stay where they are."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    selection = _selection(since, until, key, tag)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("redriving", total=None)

        async def action(admin: "Admin") -> "Redrive":
            return await admin.dead_letters.redrive(
                group,
                selection,
                to=to,
                again=again,
                is_dry=dry_run,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )

        report = administer(nameserver, action)
    _print_report(report, as_json=as_json)


def _print_report(report: "Redrive", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "group": report.group,
                "selected": report.selected,
                "skipped": report.skipped,
                "sent": dict(report.sent),
                "dry_run": report.is_dry,
            }
        )
        return
    if report.sent:
        verb = "would be sent" if report.is_dry else "sent"
        print_table(("topic", verb), sorted(report.sent.items()))
    verb = "would be redriven" if report.is_dry else "redriven"
    skipped = f", {report.skipped} left out (redriven before: add --again)" if report.skipped else ""
    print(f"{report.sent_count} of {report.selected} dead letters of {report.group} {verb}{skipped}")


def _selection(since: str | None, until: str | None, key: str | None, tag: str | None) -> "Selection":
    from kappamq.admin.dead_letters import Selection

    now = datetime.now(UTC)
    since_ms, until_ms = (
        round(parse_moment(text, now=now).timestamp() * 1000) if text is not None else None for text in (since, until)
    )
    return Selection(since_ms=since_ms, until_ms=until_ms, key=key, tag=tag)


def _value(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "origin_topic": letter.origin_topic,
        "origin_id": letter.origin_id,
        "cause": letter.cause,
        **message_value(letter.message),
    }

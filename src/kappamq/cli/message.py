"""`kappamq message`: look at stored messages."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, AsJson, NameServers, administer, parse_moment
from kappamq.cli.output import body_text, message_facts, message_value, moment, print_facts, print_json, print_table

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin
    from kappamq.model.message import StoredMessage

app = typer.Typer(help="Look at stored messages.", no_args_is_help=True)


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="Offset id, or unique id together with --topic.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Topic to search for a unique id.")] = None,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Show one message."""

    async def action(admin: "Admin") -> "StoredMessage":
        return await admin.messages.show(message_id, topic=topic)

    found = administer(nameserver, action)
    if as_json:
        print_json(message_value(found))
    else:
        print_facts(message_facts(found))


@app.command()
def find(
    topic: Annotated[str, typer.Argument(help="Topic to search.")],
    key: Annotated[str, typer.Argument(help="Key that the messages carry.")],
    since: Annotated[str | None, typer.Option("--since", help="Stored after, for example -2h.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stored before.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=64, help="Most messages to print.")] = 64,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Find messages by key, oldest first."""
    now = datetime.now(UTC)
    begin_ms = round(parse_moment(since, now=now).timestamp() * 1000) if since else 0
    end_ms = round(parse_moment(until, now=now).timestamp() * 1000) if until else None

    async def action(admin: "Admin") -> "list[StoredMessage]":
        return await admin.messages.find(topic, key, count_max=count, begin_ms=begin_ms, end_ms=end_ms)

    found = administer(nameserver, action)
    if as_json:
        print_json([message_value(each) for each in found])
        return
    rows = (
        (
            each.message_id,
            each.broker,
            each.queue_id,
            each.queue_offset,
            moment(each.stored_at_ms),
            body_text(each.body),
        )
        for each in found
    )
    print_table(("message id", "broker", "queue", "offset", "stored", "body"), rows)

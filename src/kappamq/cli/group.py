"""`kappamq group`: list, show, move and delete consumer groups."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, AsJson, NameServers, administer, parse_moment
from kappamq.cli.output import moment, print_facts, print_json, print_table
from kappamq.cli.topic import confirm

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin
    from kappamq.admin.groups import Target
    from kappamq.admin.values import GroupSummary, GroupView, QueueReset

app = typer.Typer(help="List, show, move and delete consumer groups.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(help="Name of the group.")]


@app.command("list")
def list_groups(as_json: AsJson = False, nameserver: NameServers = DEFAULT_NAMESERVER) -> None:
    """List groups with their members and how far they are behind."""

    async def action(admin: "Admin") -> "list[GroupSummary]":
        return await admin.groups.overview()

    groups = administer(nameserver, action)
    if as_json:
        print_json(
            [
                {"group": each.name, "members": each.members, "lag": each.lag, "topics": list(each.topics)}
                for each in groups
            ]
        )
        return
    rows = ((each.name, each.members, each.lag, each.message_model, ", ".join(each.topics)) for each in groups)
    print_table(("group", "members", "lag", "model", "topics"), rows)


@app.command()
def show(group: GroupName, as_json: AsJson = False, nameserver: NameServers = DEFAULT_NAMESERVER) -> None:
    """Show who consumes in a group and how far it is on every queue."""

    async def action(admin: "Admin") -> "GroupView":
        return await admin.groups.show(group)

    view = administer(nameserver, action)
    if as_json:
        print_json(_view_value(view))
        return
    members = view.members
    print_facts(
        [
            ("group", view.name),
            ("lag", view.progress.lag),
            ("per second", view.progress.per_second),
            ("model", members.message_model),
            ("subscriptions", ", ".join(f"{topic} [{text}]" for topic, text in members.subscriptions.items()) or None),
            *(("member", f"{each.client_id} {each.address} {each.language}") for each in members.connections),
        ]
    )
    print()
    print_table(
        ("topic", "broker", "queue", "committed", "next", "lag", "in flight", "consumed until"),
        (
            (
                each.queue.topic,
                each.queue.broker,
                each.queue.queue_id,
                each.committed_offset,
                each.end,
                each.lag,
                each.inflight,
                moment(each.consumed_at_ms),
            )
            for each in view.progress.queues
        ),
    )


@app.command()
def reset(
    group: GroupName,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic on which the group moves.")],
    to: Annotated[str, typer.Option("--to", help="first, last, or a time: 2026-01-31T12:00, ms since 1970, -2h.")],
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Make a group continue elsewhere on a topic, also while it consumes."""
    target: Target = "first" if to == "first" else "last" if to == "last" else parse_moment(to, now=datetime.now(UTC))

    async def action(admin: "Admin") -> "list[QueueReset]":
        return await admin.groups.reset(group, topic, target)

    resets = administer(nameserver, action)
    if as_json:
        print_json(
            [
                {
                    "broker": each.queue.broker,
                    "queue_id": each.queue.queue_id,
                    "committed_offset": each.committed_offset,
                }
                for each in resets
            ]
        )
        return
    rows = ((each.queue.broker, each.queue.queue_id, each.committed_offset) for each in resets)
    print_table(("broker", "queue", "continues at"), rows)


@app.command()
def delete(
    group: GroupName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep its progress.")] = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Delete a group with its retry and dead-letter topics."""
    confirm(f"Delete group {group}, its progress and its retry topics?", yes=yes)

    async def action(admin: "Admin") -> None:
        await admin.groups.delete(group, keep_offsets=keep_offsets)

    administer(nameserver, action)
    print(f"group {group} is deleted")


def _view_value(view: "GroupView") -> dict[str, Any]:
    return {
        "group": view.name,
        "lag": view.progress.lag,
        "per_second": view.progress.per_second,
        "message_model": view.members.message_model,
        "subscriptions": dict(view.members.subscriptions),
        "members": [
            {
                "client_id": each.client_id,
                "address": each.address,
                "language": each.language,
                "version": each.version,
            }
            for each in view.members.connections
        ],
        "queues": [
            {
                "topic": each.queue.topic,
                "broker": each.queue.broker,
                "queue_id": each.queue.queue_id,
                "committed_offset": each.committed_offset,
                "end": each.end,
                "lag": each.lag,
            }
            for each in view.progress.queues
        ],
    }

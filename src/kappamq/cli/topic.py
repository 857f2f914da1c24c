"""`kappamq topic`: create, list, show and delete topics."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, AsJson, ClusterName, NameServers, administer, parse_pairs
from kappamq.cli.output import moment, print_facts, print_json, print_table
from kappamq.errors import UsageError

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin
    from kappamq.admin.values import TopicView
    from kappamq.model.route import TopicRoute

app = typer.Typer(help="Create, list, show and delete topics.", no_args_is_help=True)

PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
TopicName = Annotated[str, typer.Argument(help="Name of the topic.")]


@app.command()
def create(
    topic: TopicName,
    queues: Annotated[int, typer.Option("--queues", "-q", help="Queues on each broker.")] = 8,
    permission: Annotated[str, typer.Option("--permission", help="rw, r, w or none.")] = "rw",
    order: Annotated[bool, typer.Option("--order", help="Mark the topic as ordered.")] = False,
    attributes: Annotated[list[str] | None, typer.Option("--attribute", help="name=value, repeatable.")] = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Create a topic on every master of a cluster, or change it."""
    if permission not in PERMISSIONS:
        raise UsageError(f"--permission {permission!r} is unknown: use {', '.join(PERMISSIONS)}")
    given = parse_pairs(attributes or [], option="--attribute")

    async def action(admin: "Admin") -> "TopicRoute":
        return await admin.topics.create(
            topic,
            queues=queues,
            permission=PERMISSIONS[permission],
            order=order,
            attributes=given,
            cluster=cluster,
        )

    route = administer(nameserver, action)
    if as_json:
        print_json({"topic": topic, **_route_value(route)})
    else:
        print(f"topic {topic} has {queues} queues on {', '.join(broker.name for broker in route.brokers)}")


@app.command("list")
def list_topics(
    include_system: Annotated[
        bool, typer.Option("--all", "-a", help="Also system, retry and dead-letter topics.")
    ] = False,
    cluster: ClusterName = None,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """List topics, one on each line."""

    async def action(admin: "Admin") -> list[str]:
        return await admin.topics.names(cluster=cluster, include_system=include_system)

    names = administer(nameserver, action)
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(name)


@app.command()
def show(topic: TopicName, as_json: AsJson = False, nameserver: NameServers = DEFAULT_NAMESERVER) -> None:
    """Show where a topic lives, what its queues hold and who consumes it."""

    async def action(admin: "Admin") -> "TopicView":
        return await admin.topics.show(topic)

    view = administer(nameserver, action)
    if as_json:
        print_json(_view_value(view))
        return
    print_facts(
        [
            ("topic", view.name),
            ("messages", view.message_count),
            ("groups", ", ".join(view.groups) or None),
            *((f"broker {broker.name}", ", ".join(broker.addresses.values())) for broker in view.route.brokers),
            *((f"permission on {queues.broker}", _permission_text(queues.permission)) for queues in view.route.queues),
        ]
    )
    print()
    print_table(
        ("broker", "queue", "first", "next", "messages", "last stored"),
        (
            (each.queue.broker, each.queue.queue_id, each.start, each.end, each.count, moment(each.updated_at_ms))
            for each in view.queues
        ),
    )


@app.command()
def delete(
    topic: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cluster: ClusterName = None,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Delete a topic and its messages on every broker of a cluster."""
    confirm(f"Delete topic {topic} and all its messages?", yes=yes)

    async def action(admin: "Admin") -> None:
        await admin.topics.delete(topic, cluster=cluster)

    administer(nameserver, action)
    print(f"topic {topic} is deleted")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal `--yes` must be given."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this cannot be undone and there is no terminal to ask on: add --yes")
    if not typer.confirm(question):
        raise typer.Abort


def _permission_text(permission: int) -> str:
    return next((name for name, value in PERMISSIONS.items() if value == permission & 6), str(permission))


def _route_value(route: "TopicRoute") -> dict[str, Any]:
    return {
        "brokers": [
            {"name": broker.name, "cluster": broker.cluster, "addresses": broker.addresses} for broker in route.brokers
        ],
        "queues": [
            {
                "broker": queues.broker,
                "read_queues": queues.read_queues,
                "write_queues": queues.write_queues,
                "permission": queues.permission,
            }
            for queues in route.queues
        ],
    }


def _view_value(view: "TopicView") -> dict[str, Any]:
    return {
        "topic": view.name,
        "messages": view.message_count,
        "groups": list(view.groups),
        "route": _route_value(view.route),
        "queues": [
            {
                "broker": each.queue.broker,
                "queue_id": each.queue.queue_id,
                "start": each.start,
                "end": each.end,
                "updated_at_ms": each.updated_at_ms,
            }
            for each in view.queues
        ],
    }

"""`kappamq trace`: the life of one message."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, AsJson, NameServers, administer
from kappamq.cli.output import moment, print_json, print_table
from kappamq.model.names import TRACE_TOPIC

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin
    from kappamq.admin.traces import Step


def trace(
    message_id: Annotated[str, typer.Argument(help="Unique id of the message.")],
    trace_topic: Annotated[str, typer.Option("--trace-topic", help="Topic that clients trace to.")] = TRACE_TOPIC,
    as_json: AsJson = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Show what happened to a message: who sent it, who handled it, how long it took and how it ended."""

    async def action(admin: "Admin") -> "list[Step]":
        return await admin.traces.of(message_id, trace_topic=trace_topic)

    steps = administer(nameserver, action)
    if as_json:
        print_json([asdict(step) for step in steps])
        return
    rows = (
        (
            moment(step.at_ms or 0),
            step.what,
            step.group,
            step.topic,
            step.client,
            step.cost_ms,
            step.retry_count,
            step.status,
        )
        for step in steps
    )
    print_table(("time", "what", "group", "topic", "client", "ms", "retries", "status"), rows)

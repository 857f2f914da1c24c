"""`kappamq consume`: print the messages of a topic."""

import asyncio
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, NameServers, parse_duration, run_client
from kappamq.cli.output import body_text, message_value, print_json_line

if TYPE_CHECKING:
    from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
    from kappamq.model.message import StoredMessage

READER_GROUP: Final = "TOOLS_CONSUMER"
"""Exists on every broker; we never commit offsets for it."""
POLL_SECONDS: Final = 1.0


class Start(StrEnum):
    """Where reading begins when there is no progress to go on from."""

    FIRST = "first"
    LAST = "last"


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this group and commit; else just look."),
    ] = None,
    expression: Annotated[str, typer.Option("--tags", help="Tags to select, for example 'a || b'.")] = "*",
    start: Annotated[Start, typer.Option("--from", help="Where to begin without progress.")] = Start.FIRST,
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after so many; 0: go on until Ctrl-C.")] = 0,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Stop when nothing came for so long, for example 5s.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each message.")] = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Print the messages of a topic as they come."""
    patience = parse_duration(timeout) if timeout is not None else None
    try:
        run_client(
            _consume(
                nameserver,
                topic,
                group=group,
                expression=expression,
                start=start,
                count=count,
                patience=patience,
                as_json=as_json,
            )
        )
    except KeyboardInterrupt:
        return  # The usual end of this command, not a failure.


async def _consume(
    nameserver: str,
    topic: str,
    *,
    group: str | None,
    expression: str,
    start: Start,
    count: int,
    patience: timedelta | None,
    as_json: bool,
) -> None:
    from kappamq.client.aio.cluster import Cluster
    from kappamq.client.aio.lite_pull_consumer import LitePullConsumer

    async with Cluster(nameserver) as cluster:
        queues = await cluster.queues_of(topic)  # Raises for a topic that does not exist, instead of waiting for it.
        consumer = (
            LitePullConsumer(group=group, topics={topic: expression}, start_from=start.value, cluster=cluster)
            if group is not None
            else LitePullConsumer(
                group=READER_GROUP, queues=queues, auto_commit=False, start_from=start.value, cluster=cluster
            )
        )
        async with consumer:
            await _print_all(consumer, count=count, patience=patience, as_json=as_json)


async def _print_all(consumer: "LitePullConsumer", *, count: int, patience: timedelta | None, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    printed = 0
    last_at = loop.time()
    while not count or printed < count:
        messages = await consumer.poll(timeout=POLL_SECONDS, messages_max=count - printed if count else None)
        if messages:
            last_at = loop.time()
        elif patience is not None and loop.time() - last_at >= patience.total_seconds():
            return
        for message in messages:
            _print(message, as_json=as_json)
        printed += len(messages)


def _print(message: "StoredMessage", *, as_json: bool) -> None:
    if as_json:
        print_json_line(message_value(message))
        return
    tags = f" [{message.tags}]" if message.tags else ""
    place = f"{message.broker}:{message.queue_id}@{message.queue_offset}"
    print(f"{place}{tags} {body_text(message.body)}", flush=True)

"""`kappamq send`: send messages."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, NameServers, parse_duration, parse_pairs, run_client
from kappamq.cli.output import print_json_line
from kappamq.errors import UsageError

if TYPE_CHECKING:
    from asyncio import Future

    from kappamq.client.core.receipts import SendReceipt
    from kappamq.model.message import Message

GROUP: Final = "kappamq-cli"
INFLIGHT_MAX: Final = 1000
"""Messages on the way at once when many are sent."""


def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    bodies: Annotated[list[str] | None, typer.Argument(help="Bodies; '-' sends every line of standard input.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Tag that consumers select by.")] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Keys to find the message by, with blanks between.")
    ] = None,
    properties: Annotated[list[str] | None, typer.Option("--property", "-p", help="name=value, repeatable.")] = None,
    sharding_key: Annotated[str | None, typer.Option("--order-by", help="Equal values go to one queue.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Deliver later, for example 10s or 5m.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Send each body so many times.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the number of messages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each message.")] = False,
    nameserver: NameServers = DEFAULT_NAMESERVER,
) -> None:
    """Send messages and print where each was stored."""
    from kappamq.model.message import Message

    if not bodies:
        raise UsageError("no body: write `kappamq send TOPIC BODY`, or '-' to send every line of standard input")
    extra = parse_pairs(properties or [], option="--property")
    waiting = parse_duration(delay) if delay is not None else None
    messages = (
        Message(topic, body, tags=tags, keys=keys or (), properties=extra)
        for body in _bodies(bodies)
        for _ in range(count)
    )
    sent = run_client(
        _send(nameserver, messages, sharding_key=sharding_key, delay=waiting, quiet=quiet, as_json=as_json)
    )
    if quiet:
        print(f"{sent} sent")


def _bodies(given: list[str]) -> Iterator[bytes]:
    for body in given:
        if body == "-":
            for line in sys.stdin.buffer:
                yield line.rstrip(b"\r\n")
        else:
            yield body.encode("utf-8", "surrogateescape")


async def _send(
    nameserver: str,
    messages: "Iterator[Message]",
    *,
    sharding_key: str | None,
    delay: timedelta | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Keep a bounded number of sends on the way; print receipts in the order of sending."""
    from kappamq.client.aio.producer import Producer

    waiting: list[Future[SendReceipt]] = []
    sent = 0

    async def settle() -> None:
        for receipt in waiting:
            _print(await receipt, quiet=quiet, as_json=as_json)
        waiting.clear()

    async with Producer(nameserver, group=GROUP) as producer:
        for message in messages:
            if sent == 0:
                # The first one waits, so that a wrong topic or address is told once and not a thousand times.
                _print(
                    await producer.send(message, sharding_key=sharding_key, delay=delay), quiet=quiet, as_json=as_json
                )
            else:
                waiting.append(producer.send_soon(message, sharding_key=sharding_key, delay=delay))
            sent += 1
            if len(waiting) >= INFLIGHT_MAX:
                await settle()
        await settle()
    return sent


def _print(receipt: "SendReceipt", *, quiet: bool, as_json: bool) -> None:
    if quiet:
        return
    queue = receipt.queue
    if as_json:
        print_json_line(
            {
                "status": receipt.status.name,
                "message_id": receipt.message_id,
                "offset_id": receipt.offset_id,
                "topic": queue.topic,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "queue_offset": receipt.queue_offset,
            }
        )
        return
    note = "" if receipt.is_ok else f"  stored, but {receipt.status.name}"
    print(f"{receipt.message_id}  {queue.broker} queue {queue.queue_id} offset {receipt.queue_offset}{note}")

"""A client of a broker that speaks the protocol and decides nothing: for tests of what a broker does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from kappamq.model.message import StoredMessage
from kappamq.model.properties import encode_properties
from kappamq.model.record import decode_records
from kappamq.model.subscription import ConsumerMembership, Heartbeat, Subscription
from kappamq.net.connection import Connection
from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import encode_heartbeat
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    EndTransactionRequest,
    HeartbeatRequest,
    MaxOffsetRequest,
    PullRequest,
    Request,
    SendBackRequest,
    SendReply,
    SendRequest,
    decode_fields,
)

CALL_MS: Final = 30_000
PULL_MS: Final = 1000


class RawClient:
    """One connection to one broker; requests of the broker wait in `asked`."""

    def __init__(self, dialer: Dialer, address: str, asked: asyncio.Queue[tuple[Connection, Command]]) -> None:
        self._dialer = dialer
        self.address = address
        self.asked = asked

    async def call(self, request: Request | Command, *, body: bytes = b"") -> Command:
        """Reply, whatever its code."""
        command = request.command(body=body) if isinstance(request, Request) else request
        return await self._dialer.call_raw(self.address, command, timeout_ms=CALL_MS)

    async def ask(self, request: Request, *, body: bytes = b"") -> Command:
        """Reply, which must be a success."""
        return await self._dialer.call(self.address, request.command(body=body), timeout_ms=CALL_MS)

    async def heartbeat(
        self, client_id: str, *, producers: tuple[str, ...] = (), consumers: tuple[str, ...] = ()
    ) -> None:
        memberships = tuple(
            ConsumerMembership(group=group, subscriptions=(Subscription(topic="any", sub_string="*"),))
            for group in consumers
        )
        heartbeat = Heartbeat(client_id=client_id, producer_groups=producers, consumers=memberships)
        await self.ask(HeartbeatRequest(), body=encode_heartbeat(heartbeat))

    async def send(
        self,
        topic: str,
        body: bytes,
        more: Mapping[str, str] | None = None,
        *,
        queue_id: int = 0,
        group: str = "producers",
        flags: int = 0,
        **properties: str,
    ) -> SendReply:
        request = SendRequest(
            producer_group=group,
            topic=topic,
            queue_id=queue_id,
            flags=flags,
            born_at_ms=time.time_ns() // 1_000_000,
            properties=encode_properties({**properties, **(more or {})}),
        )
        return decode_fields((await self.ask(request, body=body)).fields, SendReply)

    async def pull(
        self, topic: str, queue_id: int = 0, start: int = 0, *, wait_ms: int = PULL_MS
    ) -> list[StoredMessage]:
        """Messages from `start`; an empty list when none came in time."""
        request = PullRequest(
            group="readers",
            topic=topic,
            queue_id=queue_id,
            start=start,
            count_max=32,
            flags=PullRequest.SUSPEND | PullRequest.SUBSCRIPTION,
            suspend_ms=wait_ms,
            subscription="*",
            expression_type="TAG",
        )
        reply = await self.call(request)
        return list(decode_records(reply.body)) if reply.code == ResponseCode.SUCCESS else []

    async def await_messages(
        self, topic: str, count: int = 1, *, queue_id: int = 0, start: int = 0, seconds_max: float = 40.0
    ) -> list[StoredMessage]:
        """Exactly `count` messages of a queue."""
        deadline = time.monotonic() + seconds_max
        found: list[StoredMessage] = []
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages in {topic}-{queue_id}"
            found += await self.pull(topic, queue_id, start + len(found), wait_ms=200)
            if not found:
                await asyncio.sleep(0.02)  # A topic that does not exist yet is refused at once.
        assert len(found) == count, [message.body[:20] for message in found]
        return found

    async def has_topic(self, topic: str) -> bool:
        """Whether the broker knows a topic."""
        request = PullRequest(group="readers", topic=topic, queue_id=0, start=0, count_max=1, flags=4, subscription="*")
        return (await self.call(request)).code != ResponseCode.TOPIC_NOT_EXIST

    async def max_offset(self, topic: str, queue_id: int = 0) -> int:
        reply = await self.ask(MaxOffsetRequest(topic=topic, queue_id=queue_id))
        return int(reply.fields["offset"])

    async def send_back(
        self, log_offset: int, group: str, *, delay_level: int = 0, retry_count_max: int | None = None, cause: str = ""
    ) -> Command:
        return await self.call(
            SendBackRequest(
                log_offset=log_offset,
                group=group,
                delay_level=delay_level,
                retry_count_max=retry_count_max,
                cause=cause or None,
            )
        )

    async def end(
        self, half: SendReply, decision: int, *, group: str = "producers", from_check: bool = False, **changes: int
    ) -> Command:
        """Decide a transaction and wait for the answer (Java does not wait)."""
        request = EndTransactionRequest(
            producer_group=group,
            half_queue_offset=changes.get("queue_offset", half.queue_offset),
            half_log_offset=changes.get("log_offset", int(half.offset_id[-16:], 16)),
            decision=decision,
            from_check=from_check,
            message_id=half.transaction_id or "",
        )
        return await self.call(request)


class RawClients:
    """Makes clients; all close with it. Use as an async context manager."""

    def __init__(self) -> None:
        self._dialers: list[Dialer] = []

    async def __aenter__(self) -> RawClients:
        return self

    async def __aexit__(self, *_: object) -> None:
        for dialer in self._dialers:
            await dialer.close()

    def connect(self, address: str) -> RawClient:
        """A client with a connection of its own."""
        asked: asyncio.Queue[tuple[Connection, Command]] = asyncio.Queue()
        dialer = Dialer(lambda connection, command: asked.put_nowait((connection, command)))
        self._dialers.append(dialer)
        return RawClient(dialer, address, asked)

"""Single sends of one turn of the event loop: written together, so that many cost little more than `send_all`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.inflight import InFlight
from kappamq.client.aio.runs import PLAIN_BODY_BYTES_MAX, Target, begin_sends
from kappamq.client.core.preparing import Prepared
from kappamq.client.core.receipts import SendReceipt, SendStatus, receipt_of
from kappamq.errors import KappaError
from kappamq.kernel.client_reference import SendReplied
from kappamq.model.message import Queue
from kappamq.net.connection import RunWaiter
from kappamq.wire.command import Command


class Posted(Struct, gc=False):
    """A message that is written when the event loop has been around."""

    prepared: Prepared
    target: Target
    timeout_ms: int
    outcome: "asyncio.Future[SendReceipt]"
    on_error: "OnError | None" = None
    """Decides what becomes of a background send that failed; without it the outcome is the error."""


OnError: TypeAlias = Callable[[Posted, float, KappaError], None]
"""Gets what failed, when it was written, and why."""


class Outbox:
    """Collects first attempts, and writes those for one broker in one go, in the order in which they were posted.

    Whoever writes sends to given queues otherwise calls `write` first: nobody overtakes.
    """

    def __init__(
        self, cluster: Cluster, find_target: Callable[[Queue, bytes], Target | None], *, inflight: InFlight
    ) -> None:
        """`inflight` counts background sends."""
        self._cluster = cluster
        self._find_target = find_target
        self._inflight = inflight
        self._posted: list[Posted] = []
        self._targets: dict[int, Target] = {}
        """By identity of the queue, for as long as nothing is written: hashing a queue costs more than all else."""

    def post(
        self, prepared: Prepared, queue: Queue, *, timeout_ms: int, on_error: OnError | None = None
    ) -> "asyncio.Future[SendReceipt] | None":
        """Future of the receipt of one attempt; `None` when the message must be written by itself, or connected for.

        `timeout_ms` counts from the moment of writing.
        """
        if not _is_plain(prepared):
            return None
        if not prepared.properties.isascii():
            prepared.properties.encode()  # Raises here, where the caller sees it.
        target = self._targets.get(id(queue))
        if target is None:
            target = self._find_target(queue, b"%d" % self._cluster.clock.now_ms())
            if target is None:
                return None
            self._targets[id(queue)] = target
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[SendReceipt] = loop.create_future()
        if not self._posted:
            loop.call_soon(self.write)
        self._posted.append(Posted(prepared, target, timeout_ms, outcome, on_error))
        return outcome

    def write(self) -> None:
        """Write what was posted."""
        if not self._posted:
            return
        posted, self._posted = self._posted, []
        self._targets.clear()
        groups: dict[tuple[int, int], list[Posted]] = {}
        for each in posted:
            key = id(each.target.connection), each.timeout_ms
            group = groups.get(key)
            if group is None:
                groups[key] = [each]
            else:
                group.append(each)
        for group in groups.values():
            PostedRun(group, self._inflight).write()


def _is_plain(prepared: Prepared) -> bool:
    """Whether its request differs from others for the same queue in body, properties and times only."""
    return (
        not (prepared.flags or prepared.flag or prepared.is_batch or prepared.is_reply)
        and prepared.retry_count_max is None
        and type(prepared.body) is bytes
        and len(prepared.body) <= PLAIN_BODY_BYTES_MAX
    )


class PostedRun(RunWaiter):
    """Messages that went out together: gives each outcome to whoever waits for it."""

    __slots__ = ("_inflight", "_open", "_posted", "_request_id", "_started")

    def __init__(self, posted: list[Posted], inflight: InFlight) -> None:
        self._posted = posted
        self._open: list[Posted | None] = list(posted)
        """Those whose outcome is not known yet, in their places."""
        self._inflight = inflight
        self._request_id = 0
        self._started = asyncio.get_running_loop().time()

    def write(self) -> None:
        posted = self._posted
        connection = posted[0].target.connection
        try:
            self._request_id, frames = begin_sends(
                self,
                connection,
                texts=[each.prepared.properties for each in posted],
                bodies=[each.prepared.body for each in posted],
                templates=[each.target.around for each in posted],
                timeout_ms=posted[0].timeout_ms,
            )
        except KappaError as error:
            self.set_exception(error)
        else:
            connection.write_at_once(frames)

    def set_stored(self, replies: Sequence[SendReplied], /) -> None:
        waiting, first, in_background = self._open, self._request_id, 0
        for request_id, offset_id, queue_id, queue_offset, transaction_id, region, is_traced, _ in replies:
            posted = waiting[request_id - first]
            if posted is None:
                continue
            waiting[request_id - first] = None
            in_background += posted.on_error is not None
            if posted.outcome.done():
                continue
            queue = posted.target.queue
            if queue.queue_id != queue_id:
                queue = Queue(queue.topic, queue.broker, queue_id)
            message_id = posted.prepared.message_id
            posted.outcome.set_result(
                SendReceipt(
                    SendStatus.OK, message_id, offset_id, queue, queue_offset, transaction_id, None, region, is_traced
                )
            )
        if in_background:
            self._inflight.end(in_background)

    def set_result(self, reply: Command, /) -> None:
        at = reply.request_id - self._request_id
        posted = self._open[at]
        if posted is None:
            return
        try:
            receipt = receipt_of(reply, posted.prepared.message_id, posted.target.queue, posted.target.address)
        except KappaError as error:
            self._fail(at, error)
            return
        self._open[at] = None
        if not posted.outcome.done():
            posted.outcome.set_result(receipt)
        if posted.on_error is not None:
            self._inflight.end(1)

    def set_exception(self, error: BaseException, /) -> None:
        """All that are left have the same deadline and the same connection: what ends one ends all."""
        assert isinstance(error, KappaError), "connections fail with errors of ours"
        for at in range(len(self._open)):
            self._fail(at, error)

    def _fail(self, at: int, error: KappaError) -> None:
        posted, self._open[at] = self._open[at], None
        if posted is None:
            return
        if posted.on_error is not None:
            posted.on_error(posted, self._started, error)
        elif not posted.outcome.done():
            posted.outcome.set_exception(error)

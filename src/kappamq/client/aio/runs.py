"""Many sends at once: plain messages go out in runs, without a future, a task and a header of its own for each."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from msgspec.json import Encoder

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.publishing import Publisher, Publishers
from kappamq.client.core.preparing import check_destination, plain_properties
from kappamq.client.core.receipts import SendReceipt, receipt_of
from kappamq.client.settings import ProducerSettings
from kappamq.errors import ConnectionLost, KappaError
from kappamq.kernel import encode_sends
from kappamq.kernel.columns_reference import Column
from kappamq.model.message import Message, Queue
from kappamq.net.connection import Connection
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.header_codec import encode_header

log = logging.getLogger(__name__)

RUN_MAX: Final = 256
"""Most messages that are encoded before the event loop gets its turn."""
PLAIN_BODY_BYTES_MAX: Final = 64 * 1024

_FRAME = Struct(">iI")
_encode_text = Encoder().encode

_BORN, _PROPERTIES, _OPAQUE = "@born@", "@properties@", b'"opaque":0,'
"""Marks in the model of a header. No group or topic holds an `@`."""


class SendTemplate:
    """The header of a send to one queue, around time, properties and request id."""

    def __init__(self, command: Command, *, born_at_name: str, properties_name: str) -> None:
        command.fields[born_at_name] = _BORN
        command.fields[properties_name] = _PROPERTIES
        header = encode_header(command)
        head, rest = header.split(_BORN.encode())
        middle, rest = rest.split(f'"{_PROPERTIES}"'.encode())
        before, after = rest.split(_OPAQUE)
        self._head, self._middle = head, middle
        self._before, self._after = before + b'"opaque":', b"," + after

    def around(self, born_at: bytes) -> tuple[bytes, bytes, bytes]:
        """What stands before the text of the properties, between it and the request id, and after that."""
        return self._head + born_at + self._middle + b'"', b'"' + self._before, self._after

    def frame(self, born_at: bytes, properties: bytes, request_id: int, body: bytes) -> bytes:
        """Bytes of one request; `properties` are encoded as JSON."""
        header = b"".join(
            (
                self._head,
                born_at,
                self._middle,
                properties,
                self._before,
                b"%d" % request_id,
                self._after,
            )
        )
        return b"".join((_FRAME.pack(len(header) + len(body) + 4, len(header)), header, body))


class Outcomes:
    """What became of the messages of one call, in their order."""

    def __init__(self) -> None:
        self._receipts: list[SendReceipt | None] = []
        self._errors: dict[int, BaseException] = {}
        self._open = 0
        self._waiter: asyncio.Future[None] | None = None

    def expect(self) -> int:
        """Number of the next message."""
        self._receipts.append(None)
        self._open += 1
        return len(self._receipts) - 1

    def succeed(self, number: int, receipt: SendReceipt) -> None:
        self._receipts[number] = receipt
        self._end_one()

    def fail(self, number: int, error: BaseException) -> None:
        self._errors[number] = error
        self._end_one()

    def follow(self, number: int, outcome: "asyncio.Future[SendReceipt]") -> None:
        """Take over what a future will tell."""

        def end(done: "asyncio.Future[SendReceipt]") -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                self.fail(number, error)
            else:
                self.succeed(number, done.result())

        outcome.add_done_callback(end)

    def _end_one(self) -> None:
        self._open -= 1
        if not self._open and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def all(self) -> list[SendReceipt]:
        """All receipts, once the last message has one. Raises the error of the first message that failed."""
        if self._open:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._errors:
            raise self._errors[min(self._errors)]
        return [receipt for receipt in self._receipts if receipt is not None]


class Run:
    """What the messages that are sent together have in common."""

    __slots__ = ("begun", "on_end", "on_error", "outcomes", "started", "timeout_ms")

    def __init__(
        self,
        outcomes: Outcomes,
        timeout_ms: int,
        *,
        on_end: Callable[[], None],
        on_error: Callable[["Sending", BaseException], None],
    ) -> None:
        self.outcomes = outcomes
        self.timeout_ms = timeout_ms
        self.begun = 0
        self.started = asyncio.get_running_loop().time()
        self.on_end = on_end
        self.on_error = on_error


class Target(NamedTuple):
    """A queue, and the way to it."""

    queue: Queue
    address: str
    connection: Connection
    template: SendTemplate


class Sending:
    """One message under way: a connection gives the reply to it, as to a future."""

    __slots__ = ("message", "message_id", "number", "run", "target")

    def __init__(self, run: Run, number: int, message: Message, message_id: str, target: Target) -> None:
        self.run = run
        self.number = number
        self.message = message
        self.message_id = message_id
        self.target = target

    def done(self) -> bool:
        return False

    def set_result(self, reply: Command, /) -> None:
        run = self.run
        try:
            receipt = receipt_of(reply, self.message_id, self.target.queue, self.target.address)
        except KappaError as error:
            run.on_error(self, error)
            return
        run.outcomes.succeed(self.number, receipt)
        run.on_end()

    def set_exception(self, error: BaseException, /) -> None:
        self.run.on_error(self, error)


class RowRun:
    """Rows that are under way together: one waiter for the replies to all of them."""

    __slots__ = ("is_stored", "on_end", "request_id", "start")

    def __init__(self, start: int, count: int, *, on_end: Callable[[], None]) -> None:
        self.start = start
        self.is_stored = bytearray(count)
        self.request_id = 0
        self.on_end = on_end

    def done(self) -> bool:
        return False

    def set_result(self, reply: Command, /) -> None:
        if reply.code == ResponseCode.SUCCESS:
            self.is_stored[reply.request_id - self.request_id] = 1
        self.on_end()

    def set_exception(self, error: BaseException, /) -> None:
        log.info("row not acknowledged: left to the caller fault=%s", error)
        self.on_end()

    def lost(self) -> list[int]:
        """Rows that were not stored as safely as asked, as far as is known by now."""
        return [self.start + at for at, is_stored in enumerate(self.is_stored) if not is_stored]


class RunSender:
    """Encodes and writes plain messages: those without properties of their own, for a queue that is free to choose."""

    def __init__(
        self,
        cluster: Cluster,
        publishers: Publishers,
        settings: ProducerSettings,
        *,
        make_template: Callable[[Queue], SendTemplate],
    ) -> None:
        self._cluster = cluster
        self._publishers = publishers
        self._body_bytes_max = min(settings.compress_from_bytes - 1, settings.body_bytes_max, PLAIN_BODY_BYTES_MAX)
        self._make_template = make_template
        self._templates: dict[Queue, SendTemplate] = {}

    def send(self, messages: Sequence[Message], run: Run) -> list[tuple[int, Message]]:
        """Write the plain ones among the messages; returns the others, with their numbers."""
        others: list[tuple[int, Message]] = []
        topic: str | None = None
        publisher: Publisher | None = None
        born_at = b"%d" % self._cluster.clock.now_ms()
        targets: dict[int, Target | None] = {}
        for message, message_id in zip(messages, self._cluster.unique_ids.several(len(messages))):
            number = run.outcomes.expect()
            if message.topic != topic:
                topic, publisher = message.topic, self._publisher(message.topic)
            properties = None
            if publisher is not None and 0 < len(message.body) <= self._body_bytes_max:
                properties = plain_properties(message, message_id)
            if publisher is None or properties is None:
                others.append((number, message))
                continue
            queue = publisher.rotation.next()
            if id(queue) not in targets:
                targets[id(queue)] = self._target(queue)
            target = targets[id(queue)]
            if target is None:
                others.append((number, message))
                continue
            encoded = _encode_text(properties)
            sending = Sending(run, number, message, message_id, target)
            run.begun += 1
            try:
                request_id = target.connection.expect(sending, timeout_ms=run.timeout_ms)
            except KappaError as error:
                run.on_error(sending, error)
                continue
            target.connection.write(target.template.frame(born_at, encoded, request_id, message.body))
        return others

    def send_rows(
        self,
        topic: str,
        texts: Column,
        bodies: Column,
        *,
        start: int,
        count: int,
        timeout_ms: int,
        on_end: Callable[[], None],
    ) -> RowRun:
        """Write rows to the queues of one broker, in turn; `on_end` is called for each that is written."""
        run = RowRun(start, count, on_end=on_end)
        publisher = self._publisher(topic)
        turns = () if publisher is None else (publisher.rotation.next() for _ in publisher.queues)
        target = next((target for queue in turns if (target := self._target(queue)) is not None), None)
        if publisher is None or target is None:
            raise ConnectionLost(f"no connection to a broker of topic {topic!r}: try again")
        queues = [queue for queue in publisher.queues if queue.broker == target.queue.broker]
        first = queues.index(target.queue)
        born_at = b"%d" % self._cluster.clock.now_ms()
        templates = [self._template(queue).around(born_at) for queue in queues[first:] + queues[:first]]
        run.request_id = target.connection.expect_many(run, count, timeout_ms=timeout_ms)
        frames = encode_sends(texts, bodies, start=start, count=count, templates=templates, request_id=run.request_id)
        target.connection.write(frames)
        return run

    def _publisher(self, topic: str) -> Publisher | None:
        try:
            check_destination(topic)
        except KappaError:
            return None  # Whoever sends it otherwise says why not.
        return self._publishers.known(topic)

    def _target(self, queue: Queue) -> Target | None:
        """Where messages for a queue go now; `None` without a connection."""
        address = self._cluster.routes.addresses.master_of(queue.broker)
        connection = self._cluster.dialer.open_connection(address) if address is not None else None
        if address is None or connection is None:
            return None
        return Target(queue, address, connection, self._template(queue))

    def _template(self, queue: Queue) -> SendTemplate:
        template = self._templates.get(queue)
        if template is None:
            template = self._templates[queue] = self._make_template(queue)
        return template

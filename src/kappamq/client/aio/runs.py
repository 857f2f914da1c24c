"""Many sends at once: plain messages go out in runs, without a future, a task and a header of its own for each."""

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.publishing import Publisher, Publishers
from kappamq.client.core.batching import ITEM_BYTES
from kappamq.client.core.preparing import Prepared, check_destination, plain_properties
from kappamq.client.core.receipts import SendReceipt, SendStatus, receipt_of
from kappamq.client.settings import ProducerSettings
from kappamq.errors import ConnectionLost, KappaError
from kappamq.kernel import encode_batch_rows, encode_sends
from kappamq.kernel.client_reference import Column, SendReplied
from kappamq.model.message import Message, Queue
from kappamq.model.properties import Name, encode_properties
from kappamq.net.connection import Connection, RunWaiter
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.frame import encode_frame
from kappamq.wire.header_codec import encode_header

log = logging.getLogger(__name__)

RUN_MAX: Final = 256
"""Most messages that are encoded before the event loop gets its turn."""
PLAIN_BODY_BYTES_MAX: Final = 64 * 1024
ROWS_PER_REQUEST_MAX: Final = 1024
ROW_REQUEST_BYTES_MAX: Final = 512 * 1024
"""Less than any broker takes, and little enough to be stored while the next one is on its way."""
ROW_REQUESTS_AT_ONCE_MAX: Final = 16

_BORN, _PROPERTIES, _OPAQUE = "@born@", "@properties@", b'"opaque":0,'
"""Marks in the model of a header. No group or topic holds an `@`."""

_BATCH_PROPERTIES: Final = encode_properties({Name.WAIT: "true"})


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


class Outcomes:
    """What became of the messages of one call, in their order."""

    def __init__(self) -> None:
        self.receipts: list[SendReceipt | None] = []
        """Of all messages; whoever fills some in calls `end` for them."""
        self._errors: dict[int, BaseException] = {}
        self._open = 0
        self._waiter: asyncio.Future[None] | None = None

    def expect(self, count: int) -> range:
        """Numbers of the next messages."""
        first = len(self.receipts)
        self.receipts += [None] * count
        self._open += count
        return range(first, first + count)

    def succeed(self, number: int, receipt: SendReceipt) -> None:
        self.receipts[number] = receipt
        self.end(1)

    def fail(self, number: int, error: BaseException) -> None:
        self._errors[number] = error
        self.end(1)

    def follow(self, number: int, outcome: "asyncio.Future[SendReceipt]") -> None:
        """Take over what a future will tell."""

        def end(done: "asyncio.Future[SendReceipt]") -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                self.fail(number, error)
            else:
                self.succeed(number, done.result())

        outcome.add_done_callback(end)

    def end(self, count: int) -> None:
        """The outcome of so many more messages is known."""
        self._open -= count
        if not self._open and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def all(self) -> list[SendReceipt]:
        """All receipts, once the last message has one. Raises the error of the first message that failed."""
        if self._open:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._errors:
            raise self._errors[min(self._errors)]
        return [receipt for receipt in self.receipts if receipt is not None]


class Run:
    """What the messages that are sent together have in common."""

    __slots__ = ("begun", "on_end", "on_error", "outcomes", "started", "timeout_ms")

    def __init__(
        self,
        outcomes: Outcomes,
        timeout_ms: int,
        *,
        on_end: Callable[[int], None],
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
    around: tuple[bytes, bytes, bytes]
    """The header of a send, around properties and request id."""


Entry: TypeAlias = tuple[int, Message, str, Target, str]
"""Number, message, unique id, where it goes, text of its properties."""


class Sending(NamedTuple):
    """One message whose first attempt has failed."""

    run: Run
    number: int
    message: Message
    message_id: str


class MessageRun(RunWaiter):
    """Messages that are under way on one connection: one waiter for the replies to all of them."""

    __slots__ = ("_numbers", "_request_id", "messages", "run", "targets", "unique_ids")

    def __init__(self, run: Run, entries: "Sequence[Entry]") -> None:
        self.run = run
        numbers, self.messages, self.unique_ids, self.targets, _ = zip(*entries, strict=True)
        self._numbers = list(numbers)
        """Of the messages, or -1 once their outcome is known."""
        self._request_id = 0

    def write(self, texts: Sequence[str]) -> None:
        """Send all of them, with these properties; what cannot be sent has failed."""
        connection = self.targets[0].connection
        try:
            self._request_id, frames = begin_sends(
                self,
                connection,
                texts=texts,
                bodies=[message.body for message in self.messages],
                templates=[target.around for target in self.targets],
                timeout_ms=self.run.timeout_ms,
            )
        except KappaError as error:
            self.run.begun += len(self.messages)
            self.set_exception(error)
        else:
            self.run.begun += len(self.messages)
            connection.write(frames)

    def set_stored(self, replies: Sequence[SendReplied], /) -> None:
        targets, ids, numbers, first = self.targets, self.unique_ids, self._numbers, self._request_id
        receipts = self.run.outcomes.receipts
        for request_id, offset_id, queue_id, queue_offset, transaction_id, region, is_traced, _ in replies:
            at = request_id - first
            queue = targets[at].queue
            if queue.queue_id != queue_id:
                queue = Queue(queue.topic, queue.broker, queue_id)
            receipts[numbers[at]] = SendReceipt(
                SendStatus.OK, ids[at], offset_id, queue, queue_offset, transaction_id, None, region, is_traced
            )
            numbers[at] = -1
        self.run.outcomes.end(len(replies))
        self.run.on_end(len(replies))

    def set_result(self, reply: Command, /) -> None:
        at = reply.request_id - self._request_id
        target = self.targets[at]
        try:
            receipt = receipt_of(reply, self.unique_ids[at], target.queue, target.address)
        except KappaError as error:
            self._fail(at, error)
            return
        run = self.run
        run.outcomes.succeed(self._numbers[at], receipt)
        self._numbers[at] = -1
        run.on_end(1)

    def set_exception(self, error: BaseException, /) -> None:
        """All that are left have the same deadline and the same connection: what ends one ends all."""
        for at in range(len(self._numbers)):
            self._fail(at, error)

    def _fail(self, at: int, error: BaseException) -> None:
        number = self._numbers[at]
        if number >= 0:
            self._numbers[at] = -1
            self.run.on_error(Sending(self.run, number, self.messages[at], self.unique_ids[at]), error)


def begin_sends(
    waiter: RunWaiter,
    connection: Connection,
    *,
    texts: Sequence[str],
    bodies: Sequence[bytes],
    templates: Sequence[tuple[bytes, bytes, bytes]],
    timeout_ms: int,
) -> tuple[int, bytes]:
    """Expect the replies to sends with these properties and bodies: the first request id, and what is to be written."""
    count = len(bodies)
    columns = _text_column(texts), _column(bodies)
    request_id = connection.expect_many(waiter, count, timeout_ms=timeout_ms)
    return request_id, encode_sends(*columns, start=0, count=count, templates=templates, request_id=request_id)


def _column(values: Sequence[bytes]) -> Column:
    return array("i", accumulate(map(len, values), initial=0)).tobytes(), b"".join(values)


def _text_column(values: Sequence[str]) -> Column:
    joined = "".join(values)
    if joined.isascii():
        return array("i", accumulate(map(len, values), initial=0)).tobytes(), joined.encode()
    return _column([value.encode() for value in values])


class RowOutcomes:
    """What became of the rows of one call: those that are lost are for the caller."""

    def __init__(self, *, on_end: Callable[[int], None]) -> None:
        """`on_end` is called with the number of requests that have ended."""
        self._on_end = on_end
        self._open = 0
        self._lost: list[int] = []
        self._waiter: asyncio.Future[None] | None = None

    def begin(self, rows: range) -> "RowBatch":
        self._open += 1
        return RowBatch(rows, self)

    def lose(self, rows: range, reason: object) -> None:
        log.info("rows not acknowledged: left to the caller rows=%d reason=%s", len(rows), reason)
        self._lost += rows

    def end(self) -> None:
        self._open -= 1
        self._on_end(1)
        if not self._open and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def lost(self) -> list[int]:
        """Rows that are not known to be stored as safely as asked, once all requests have ended."""
        if self._open:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return sorted(self._lost)


class RowBatch:
    """Rows that travel in one request, waiting for the reply to it."""

    __slots__ = ("_outcomes", "_rows")

    def __init__(self, rows: range, outcomes: RowOutcomes) -> None:
        self._rows = rows
        self._outcomes = outcomes

    def done(self) -> bool:
        return False

    def set_result(self, reply: Command, /) -> None:
        if reply.code != ResponseCode.SUCCESS:
            self._outcomes.lose(self._rows, reply.remark or reply.code)
        self._outcomes.end()

    def set_exception(self, error: BaseException, /) -> None:
        self._outcomes.lose(self._rows, error)
        self._outcomes.end()


def split_rows(texts: Column, bodies: Column, count: int, *, rows_max: int, bytes_max: int) -> Iterator[range]:
    """Rows that fit into a request together. One row may be larger."""
    text_ends, body_ends = (memoryview(offsets).cast("B").cast("i") for offsets, _ in (texts, bodies))
    start = 0
    while start < count:
        end = min(start + rows_max, count)
        while end > start + 1 and _batch_bytes(text_ends, body_ends, start, end) > bytes_max:
            end = start + (end - start) // 2
        yield range(start, end)
        start = end


def _batch_bytes(text_ends: memoryview, body_ends: memoryview, start: int, end: int) -> int:
    data_bytes = text_ends[end] - text_ends[start] + body_ends[end] - body_ends[start]
    return int(data_bytes) + ITEM_BYTES * (end - start)


class RunSender:
    """Encodes and writes plain messages: those without properties of their own, for a queue that is free to choose."""

    def __init__(
        self,
        cluster: Cluster,
        publishers: Publishers,
        settings: ProducerSettings,
        *,
        make_command: Callable[[Prepared, Queue], Command],
        make_template: Callable[[Queue], SendTemplate],
    ) -> None:
        self._cluster = cluster
        self._publishers = publishers
        self._body_bytes_max = min(settings.compress_from_bytes - 1, settings.body_bytes_max, PLAIN_BODY_BYTES_MAX)
        self._make_command = make_command
        self._make_template = make_template
        self._templates: dict[Queue, SendTemplate] = {}

    def send(self, messages: Sequence[Message], run: Run) -> list[tuple[int, Message]]:
        """Write the plain ones among the messages; returns the others, with their numbers."""
        others: list[tuple[int, Message]] = []
        topic: str | None = None
        publisher: Publisher | None = None
        targets: dict[int, Target | None] = {}
        groups: dict[int, list[Entry]] = {}
        born_at = b"%d" % self._cluster.clock.now_ms()
        body_bytes_max = self._body_bytes_max
        numbers = run.outcomes.expect(len(messages))
        for number, message, unique_id in zip(numbers, messages, self._cluster.unique_ids.several(len(messages))):
            if message.topic != topic:
                topic, publisher = message.topic, self._publisher(message.topic)
            properties = None
            if publisher is not None and 0 < len(message.body) <= body_bytes_max:
                properties = plain_properties(message, unique_id)
            if publisher is None or properties is None:
                others.append((number, message))
                continue
            queue = publisher.rotation.next()
            if id(queue) not in targets:
                targets[id(queue)] = self.target(queue, born_at)
            target = targets[id(queue)]
            if target is None:
                others.append((number, message))
                continue
            entry = (number, message, unique_id, target, properties)
            group = groups.get(id(target.connection))
            if group is None:
                groups[id(target.connection)] = [entry]
            else:
                group.append(entry)
        for entries in groups.values():
            MessageRun(run, entries).write([entry[-1] for entry in entries])
        return others

    def send_rows(
        self, topic: str, texts: Column, bodies: Column, rows: range, outcomes: RowOutcomes, *, timeout_ms: int
    ) -> None:
        """Write rows as one batch, to the queue whose turn it is. Raises when nothing is written."""
        publisher = self._publisher(topic)
        turns = () if publisher is None else (publisher.rotation.next() for _ in publisher.queues)
        found = next(((queue, way[1]) for queue in turns if (way := self._way(queue)) is not None), None)
        if found is None:
            raise ConnectionLost(f"no connection to a broker of topic {topic!r}: try again")
        queue, connection = found
        body = encode_batch_rows(texts, bodies, start=rows.start, count=len(rows))
        command = self._make_command(Prepared(topic, "", body, _BATCH_PROPERTIES, 0, is_batch=True), queue)
        batch = outcomes.begin(rows)
        try:
            command.request_id = connection.expect(batch, timeout_ms=timeout_ms)
        except KappaError as error:
            batch.set_exception(error)
            return
        connection.write(encode_frame(command))

    def _publisher(self, topic: str) -> Publisher | None:
        try:
            check_destination(topic)
        except KappaError:
            return None  # Whoever sends it otherwise says why not.
        return self._publishers.known(topic)

    def target(self, queue: Queue, born_at: bytes) -> Target | None:
        """Where messages for a queue go now; `None` without a connection."""
        way = self._way(queue)
        return None if way is None else Target(queue, *way, self._template(queue).around(born_at))

    def _way(self, queue: Queue) -> tuple[str, Connection] | None:
        """Address and connection of the broker of a queue."""
        address = self._cluster.routes.addresses.master_of(queue.broker)
        connection = self._cluster.dialer.open_connection(address) if address is not None else None
        return None if address is None or connection is None else (address, connection)

    def _template(self, queue: Queue) -> SendTemplate:
        template = self._templates.get(queue)
        if template is None:
            template = self._templates[queue] = self._make_template(queue)
        return template

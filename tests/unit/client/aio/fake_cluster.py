"""A name server and brokers in memory, on real sockets, whose answers a test can script."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar

from kappamq.model.ids import offset_id, pack_host
from kappamq.model.properties import Name, decode_properties, property_of
from kappamq.model.record import NewRecord, decode_record
from kappamq.model.route import BrokerAddresses, TopicQueues, TopicRoute
from kappamq.model.selector import Selector
from kappamq.net.connection import Connection
from kappamq.net.server import Server
from kappamq.wire.batch import decode_batch
from kappamq.wire.bodies import (
    decode_heartbeat,
    decode_queue_set,
    encode_consumer_ids,
    encode_locked_queues,
    encode_route,
)
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    ConsumerListRequest,
    PullRequest,
    QueryOffsetRequest,
    SendBackRequest,
    SendRequest,
    UnregisterClientRequest,
    UpdateOffsetRequest,
    decode_fields,
)

QUEUES = 2
HOST = pack_host("127.0.0.1", 1)

Scripted = int | Callable[[Connection, Command], None]
"""An error code to answer with, or a function that answers (or does not)."""


def close_connection(connection: Connection, request: Command) -> None:
    """Scripted answer: hang up."""
    connection.abort("scripted")


def ignore(connection: Connection, request: Command) -> None:
    """Scripted answer: none."""
    connection.settle()


class FakeBroker:
    """One broker: keeps records in lists, remembers every request, answers as scripted first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.requests: list[Command] = []
        self.records: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.first_offset: dict[tuple[str, int], int] = defaultdict(int)
        self.committed: dict[tuple[str, str, int], int] = {}
        self.sent_back: list[SendBackRequest] = []
        self.members: dict[str, dict[Connection, str]] = defaultdict(dict)
        self.locks: dict[tuple[str, str, int], str] = {}
        self._script: dict[int, deque[Scripted]] = defaultdict(deque)
        self._parked: dict[tuple[str, int], list[tuple[Connection, Command]]] = defaultdict(list)
        self.server = Server(self._on_request, on_lost=self._on_lost)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def restart(self) -> None:
        """Stop serving, and serve again on the same port; what was stored and committed survives."""
        await self.server.stop()
        self._parked.clear()
        self.server = Server(self._on_request, on_lost=self._on_lost)
        await self.server.__aenter__()
        await self.server.listen("127.0.0.1", self.port)

    def script(self, code: int, *answers: Scripted) -> None:
        """Answer the next requests of this code so."""
        self._script[code].extend(answers)

    def requests_of(self, code: int) -> list[Command]:
        return [request for request in self.requests if request.code == code]

    def store(self, topic: str, queue_id: int, body: bytes, properties: str = "", *, retry_count: int = 0) -> int:
        """Append a record and wake pulls that wait for it; returns its queue offset."""
        records = self.records[topic, queue_id]
        log_offset = sum(map(len, self.records.values())) * 1000
        queue_offset = self.first_offset[topic, queue_id] + len(records)
        record = NewRecord(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties.encode(),
            born_at_ms=1,
            born_host=HOST,
            store_host=HOST,
            retry_count=retry_count,
        )
        records.append(
            record.encode(queue_offset=queue_offset, log_offset=log_offset, stored_at_ms=2, append_crc=False)
        )
        for connection, request in self._parked.pop((topic, queue_id), []):
            if connection.is_open:
                self._pull(connection, request)
        return queue_offset

    def release(self, topic: str, queue_id: int) -> None:
        """Answer pulls that wait."""
        for connection, request in self._parked.pop((topic, queue_id), []):
            self._pull(connection, request, may_park=False)

    def notify_members(self, group: str) -> None:
        for connection in list(self.members[group]):
            fields = {"consumerGroup": group}
            connection.send(Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields=fields))

    def _on_lost(self, connection: Connection) -> None:
        for members in self.members.values():
            members.pop(connection, None)

    def _on_request(self, connection: Connection, request: Command) -> None:
        self.requests.append(request)
        if self._script[request.code]:
            answer = self._script[request.code].popleft()
            if callable(answer):
                answer(connection, request)
            else:
                connection.reply(request.reply(answer, "scripted"))
            return
        handler = self._HANDLERS.get(request.code)
        if handler is not None:
            handler(self, connection, request)
        elif not request.is_one_way:
            connection.reply(request.reply())

    def _send(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, SendRequest)
        items = (
            [(item.body, item.properties.decode()) for item in decode_batch(request.body)]
            if header.batch
            else [(request.body, header.properties)]
        )
        offsets = [
            self.store(header.topic, header.queue_id, body, properties, retry_count=header.retry_count)
            for body, properties in items
        ]
        if request.is_one_way:
            return
        fields = {
            "msgId": ",".join(offset_id(HOST, offset) for offset in offsets),
            "queueId": str(header.queue_id),
            "queueOffset": str(offsets[0]),
        }
        connection.reply(request.reply(fields=fields))

    def _pull(self, connection: Connection, request: Command, *, may_park: bool = True) -> None:
        header = decode_fields(request.fields, PullRequest)
        place = (header.topic, header.queue_id)
        records, first = self.records[place], self.first_offset[place]
        end = first + len(records)
        if header.flags & PullRequest.COMMIT_OFFSET:
            self.committed[header.group, header.topic, header.queue_id] = header.committed_offset
        code, next_offset, body = int(ResponseCode.SUCCESS), header.start, b""
        if not first <= header.start <= end:
            code, next_offset = ResponseCode.PULL_OFFSET_MOVED, first if header.start < first else end
        elif header.start == end:
            if may_park and header.flags & PullRequest.SUSPEND:
                self._parked[place].append((connection, request))
                return
            code = ResponseCode.PULL_NOT_FOUND
        else:
            found = records[header.start - first :][: header.count_max]
            next_offset = header.start + len(found)
            selector = Selector.parse(header.subscription, header.expression_type)
            wanted = [record for record in found if selector.matches(_properties(record))]
            body = b"".join(wanted)
            code = ResponseCode.SUCCESS if wanted else ResponseCode.PULL_RETRY_IMMEDIATELY
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(first),
            "maxOffset": str(end),
        }
        connection.reply(request.reply(code, fields=fields, body=body))

    def _query_offset(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, QueryOffsetRequest)
        offset = self.committed.get((header.group, header.topic, header.queue_id))
        if offset is None:
            connection.reply(request.reply(ResponseCode.QUERY_NOT_FOUND))
        else:
            connection.reply(request.reply(fields={"offset": str(offset)}))

    def _update_offset(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, UpdateOffsetRequest)
        self.committed[header.group, header.topic, header.queue_id] = header.committed_offset
        if not request.is_one_way:
            connection.reply(request.reply())

    def _bound(self, connection: Connection, request: Command) -> None:
        place = (request.fields["topic"], int(request.fields["queueId"]))
        first = self.first_offset[place]
        is_min = request.code == RequestCode.GET_MIN_OFFSET
        connection.reply(request.reply(fields={"offset": str(first if is_min else first + len(self.records[place]))}))

    def _heartbeat(self, connection: Connection, request: Command) -> None:
        heartbeat = decode_heartbeat(request.body)
        for consumer in heartbeat.consumers:
            self.members[consumer.group][connection] = heartbeat.client_id
        connection.reply(request.reply())

    def _unregister(self, connection: Connection, request: Command) -> None:
        header = decode_fields(request.fields, UnregisterClientRequest)
        if header.consumer_group is not None:
            self.members[header.consumer_group].pop(connection, None)
        connection.reply(request.reply())

    def _member_ids(self, connection: Connection, request: Command) -> None:
        group = decode_fields(request.fields, ConsumerListRequest).consumer_group
        connection.reply(request.reply(body=encode_consumer_ids(self.members[group].values())))

    def _send_back(self, connection: Connection, request: Command) -> None:
        self.sent_back.append(decode_fields(request.fields, SendBackRequest))
        connection.reply(request.reply())

    def _lock(self, connection: Connection, request: Command) -> None:
        group, client_id, queues = decode_queue_set(request.body)
        held = [
            queue
            for queue in queues
            if self.locks.setdefault((group, queue.topic, queue.queue_id), client_id) == client_id
        ]
        connection.reply(request.reply(body=encode_locked_queues(held)))

    def _unlock(self, connection: Connection, request: Command) -> None:
        group, client_id, queues = decode_queue_set(request.body)
        for queue in queues:
            if self.locks.get((group, queue.topic, queue.queue_id)) == client_id:
                del self.locks[group, queue.topic, queue.queue_id]
        connection.reply(request.reply())

    _HANDLERS: ClassVar[dict[int, Callable[[FakeBroker, Connection, Command], None]]] = {
        RequestCode.SEND_MESSAGE_V2: _send,
        RequestCode.SEND_BATCH_MESSAGE: _send,
        RequestCode.SEND_REPLY_MESSAGE_V2: _send,
        RequestCode.PULL_MESSAGE: _pull,
        RequestCode.QUERY_CONSUMER_OFFSET: _query_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: _update_offset,
        RequestCode.GET_MIN_OFFSET: _bound,
        RequestCode.GET_MAX_OFFSET: _bound,
        RequestCode.HEART_BEAT: _heartbeat,
        RequestCode.UNREGISTER_CLIENT: _unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _member_ids,
        RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
        RequestCode.LOCK_BATCH_MQ: _lock,
        RequestCode.UNLOCK_BATCH_MQ: _unlock,
    }


class FakeCluster:
    """A name server that knows every topic on every broker, and the brokers. Use as an async context manager."""

    def __init__(self, *names: str, queues: int = QUEUES) -> None:
        self.brokers = [FakeBroker(name) for name in names or ("broker-a",)]
        self.broker = self.brokers[0]
        self.queues = queues
        self.missing_topics: set[str] = set()
        self.route_requests: list[str] = []
        self._server = Server(self._on_request)
        self.nameserver = ""

    async def __aenter__(self) -> FakeCluster:
        await self._server.__aenter__()
        self.nameserver = f"127.0.0.1:{await self._server.listen('127.0.0.1', 0)}"
        for broker in self.brokers:
            await broker.server.__aenter__()
            broker.port = await broker.server.listen("127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            await broker.server.stop()
        await self._server.stop()

    def _on_request(self, connection: Connection, request: Command) -> None:
        topic = request.fields.get("topic", "")
        self.route_requests.append(topic)
        if topic in self.missing_topics:
            connection.reply(request.reply(ResponseCode.TOPIC_NOT_EXIST))
            return
        route = TopicRoute(
            tuple(BrokerAddresses(broker.name, "cluster", {0: broker.address}) for broker in self.brokers),
            tuple(TopicQueues(broker.name, self.queues, self.queues, 6) for broker in self.brokers),
        )
        connection.reply(request.reply(body=encode_route(route, standard=True)))


async def eventually(holds: Callable[[], bool], *, seconds_max: float = 30.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds_max):
        while not holds():
            await asyncio.sleep(0.005)


def tag_of(record: bytes) -> str | None:
    return property_of(decode_record(record).properties_text, Name.TAGS)


def _properties(record: bytes) -> dict[str, str]:
    return decode_properties(decode_record(record).properties_text)

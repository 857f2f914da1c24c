"""One client of a cluster: its id, its connections, its routes, its heartbeats, and typed calls to the brokers.

Producers and consumers register here as members. Members of one `Cluster` share its connections and its client id.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from enum import Enum
from types import TracebackType
from typing import Final

from msgspec import Struct

from kappamq.client.aio.callbacks import Callbacks, ConsumerMember, ProducerMember
from kappamq.client.aio.identity import UniqueIds, client_id, local_ip
from kappamq.client.aio.routes import NameServers, Routes, parse_addresses
from kappamq.client.aio.tasks import OwnedTasks
from kappamq.client.core.receiving import decode_pull
from kappamq.client.core.routing import contact_of, subscribe_queues
from kappamq.client.settings import ClusterSettings
from kappamq.clock import Clock, SystemClock
from kappamq.errors import (
    CallTimeout,
    KappaError,
    NotFound,
    Refused,
    RemoteProtocolError,
    TransportError,
)
from kappamq.model.ids import parse_offset_id
from kappamq.model.message import Queue, StoredMessage
from kappamq.model.names import retry_topic
from kappamq.model.properties import Name
from kappamq.model.subscription import Heartbeat
from kappamq.net.connection import Connection
from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import (
    decode_consumer_ids,
    decode_locked_queues,
    encode_heartbeat,
    encode_object,
    encode_queue_set,
)
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import error_of
from kappamq.wire.headers import (
    CheckClientRequest,
    ConsumerListRequest,
    EarliestTimeRequest,
    FieldsType,
    HeartbeatRequest,
    LockQueuesRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetReply,
    PullReply,
    PullRequest,
    QueryMessageRequest,
    QueryOffsetRequest,
    Request,
    SearchOffsetRequest,
    TimestampReply,
    UnlockQueuesRequest,
    UnregisterClientRequest,
    UpdateOffsetRequest,
    ViewMessageRequest,
    decode_fields,
)

log = logging.getLogger(__name__)

QUERY_TIMEOUT_MS: Final = 6_000
OFFSET_TIMEOUT_MS: Final = 5_000
PULL_MARGIN_MS: Final = 10_000
"""How much later than asked a broker may answer a pull that waited: its sweep runs every 5 s."""
LOCK_TIMEOUT_MS: Final = 1_000
QUERY_MESSAGES_MAX: Final = 64


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = int(ResponseCode.SUCCESS)
    NOTHING_NEW = int(ResponseCode.PULL_NOT_FOUND)
    NOTHING_MATCHED = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


_STATUS_BY_CODE: Final = {status.value: status for status in PullStatus}


class RawPull(Struct, frozen=True):
    """Records of one queue as they came, and where to go on. `body` is decoded by `decode_pull` or `decode_records`."""

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int


class Cluster:
    """A connection to a cluster through its name servers. Use as an async context manager.

    Everything here belongs to one event loop. `client_id` is known after entering.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        settings: ClusterSettings | None = None,
        is_stream: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or ClusterSettings()
        self.clock = clock or SystemClock()
        self._is_stream = is_stream
        self._addresses = parse_addresses(name_servers)
        self.tasks = OwnedTasks()
        self._callbacks = Callbacks(self.tasks)
        self.dialer = Dialer(self._callbacks.on_request, on_open=self._on_open)
        self.name_servers = NameServers(
            self._addresses,
            self.dialer,
            timeout_ms=self.settings.call_timeout_ms,
            start=random.randrange(len(self._addresses)),
        )
        self.routes = Routes(self.name_servers)
        self.client_id = ""
        self.unique_ids: UniqueIds
        self._suggested: dict[Queue, int] = {}
        self._broker_versions: dict[str, int] = {}
        self._is_open = False

    # ── Life cycle ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> "Cluster":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the heartbeats and the refreshing of routes. Contacts nobody yet."""
        if self._is_open:
            return
        ip = self.settings.client_ip
        if ip is None:
            ip = await asyncio.to_thread(local_ip, self._addresses[0])
        self.client_id = client_id(
            ip, instance=self.settings.instance, unit=self.settings.unit, is_stream=self._is_stream
        )
        self.unique_ids = UniqueIds(ip, clock=self.clock)
        await self.tasks.open()
        self._is_open = True
        self.tasks.start(self._refresh_routes(), name="routes")
        self.tasks.start(self._find_missing_routes(), name="missing routes")
        self.tasks.start(self._beat(), name="heartbeats")

    async def close(self) -> None:
        """End all tasks and close all connections. Members leave before, on their own."""
        self._is_open = False
        try:
            await self.tasks.close()
        finally:
            await self.dialer.close()

    @property
    def is_open(self) -> bool:
        return self._is_open

    # ── Members and heartbeats ──────────────────────────────────────────────────────────────────────────────────────

    async def join_producer(self, member: ProducerMember) -> None:
        """Register a producer group and tell the brokers. Raises `UsageError` when the group is here already."""
        self._callbacks.add_producer(member)
        await self.heartbeat()

    async def join_consumer(self, member: ConsumerMember) -> None:
        """Register a consumer group. Its first heartbeat is the caller's: subscriptions come first."""
        self._callbacks.add_consumer(member)

    async def leave_producer(self, member: ProducerMember) -> None:
        self._callbacks.remove_producer(member)
        await self._unregister(producer_group=member.group)

    async def leave_consumer(self, member: ConsumerMember) -> None:
        self._callbacks.remove_consumer(member)
        await self._unregister(consumer_group=member.group)

    async def _unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Tell every broker we are connected to, within a deadline; those that cannot be told notice by themselves."""
        request = UnregisterClientRequest(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        calls = [
            self.call(address, request)
            for address in self._heartbeat_addresses(all_brokers=True)
            if self.dialer.open_connection(address) is not None
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, KappaError):
                log.info("not unregistered group=%s fault=%s", producer_group or consumer_group, outcome)

    async def heartbeat(self) -> None:
        """Tell every broker who we are, all at once; what fails is logged and comes again with the next one."""
        body = self._heartbeat_body()
        if body is None:
            return
        await asyncio.gather(*(self._heartbeat_one(address, body) for address in self._heartbeat_addresses()))

    def _heartbeat_addresses(self, *, all_brokers: bool = False) -> list[str]:
        return self.routes.addresses.heartbeat_addresses(
            has_consumers=all_brokers or bool(self._callbacks.consumer_groups())
        )

    def _heartbeat_body(self) -> bytes | None:
        consumers = tuple(member.membership() for member in self._callbacks.consumers())
        producers = tuple(self._callbacks.producer_groups())
        if not consumers and not producers:
            return None
        return encode_heartbeat(Heartbeat(client_id=self.client_id, consumers=consumers, producer_groups=producers))

    async def _heartbeat_one(self, address: str, body: bytes) -> None:
        try:
            reply = await self.call(address, HeartbeatRequest(), body=body)
        except CallTimeout:
            log.warning("no answer to a heartbeat: connection closed address=%s", address)
            self.dialer.drop(address, "closed: no answer to a heartbeat")
        except KappaError as fault:
            log.warning("heartbeat failed address=%s fault=%s", address, fault)
        else:
            self._broker_versions[address] = reply.version

    def _on_open(self, address: str, connection: Connection) -> None:
        """Brokers know us by connection: the heartbeat is the first thing a new one carries."""
        if address in self._addresses or address not in self._heartbeat_addresses():
            return
        body = self._heartbeat_body()
        if body is not None:
            waiter = connection.begin(HeartbeatRequest().command(body=body), timeout_ms=self.settings.call_timeout_ms)
            waiter.add_done_callback(_drop_outcome)
            for member in self._callbacks.consumers():
                member.on_members_changed()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_interval_ms / 1000)
            await self.heartbeat()

    async def _refresh_routes(self) -> None:
        while True:
            await asyncio.sleep(self.settings.route_interval_ms / 1000)
            for address in await self.routes.refresh_all():
                self.dialer.drop(address, "closed: no route leads there any more")

    async def _find_missing_routes(self) -> None:
        """Ask often for topics that do not exist yet: a new group's retry topic appears moments after its start."""
        while True:
            await asyncio.sleep(self.settings.missing_route_interval_ms / 1000)
            for topic in self.routes.missing():
                await self.routes.refresh_quietly(topic)

    # ── Calling brokers ─────────────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self, address: str, request: Request, *, body: bytes = b"", timeout_ms: int | None = None
    ) -> Command:
        """Reply with a success code; a failure code raises what it stands for."""
        reply = await self.call_raw(address, request.command(body=body), timeout_ms=timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise error_of(reply, address)
        return reply

    async def call_raw(self, address: str, command: Command, *, timeout_ms: int | None = None) -> Command:
        """Reply with any code. A server that is about to go away is asked once more on a new connection."""
        timeout_ms = timeout_ms if timeout_ms is not None else self.settings.call_timeout_ms
        reply = await self.dialer.call_raw(address, command, timeout_ms=timeout_ms)
        if reply.code == ResponseCode.GO_AWAY:
            self.dialer.drop(address, "closed: the server goes away")
            reply = await self.dialer.call_raw(address, command, timeout_ms=timeout_ms)
        return reply

    async def ask(
        self, address: str, request: Request, kind: type[FieldsType], *, timeout_ms: int | None = None
    ) -> FieldsType:
        """Typed header of a successful reply."""
        return decode_fields((await self.call(address, request, timeout_ms=timeout_ms)).fields, kind)

    async def master_of(self, queue: Queue) -> str:
        """Address of the master of a queue's broker. Raises `TransportError` when there is none now."""
        address = self.routes.addresses.master_of(queue.broker)
        if address is None:
            await self.routes.refresh_quietly(queue.topic)
            address = self.routes.addresses.master_of(queue.broker)
        if address is None:
            raise TransportError(f"broker {queue.broker!r} has no master now: wait for it, or check the name servers")
        return address

    def broker_version(self, address: str) -> int:
        """Version that a broker announced in its last heartbeat reply; 0 when not known."""
        return self._broker_versions.get(address, 0)

    # ── Topics and offsets ──────────────────────────────────────────────────────────────────────────────────────────

    async def queues_of(self, topic: str) -> list[Queue]:
        """Readable queues of a topic, sorted, as a name server tells them now. Raises `TopicNotFound`."""
        return subscribe_queues(topic, await self.routes.refresh(topic))

    async def min_offset(self, queue: Queue) -> int:
        """Offset of the oldest message that is still there."""
        request = MinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(await self.master_of(queue), request, OffsetReply)).offset

    async def max_offset(self, queue: Queue) -> int:
        """Offset that the next message will get."""
        request = MaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(await self.master_of(queue), request, OffsetReply)).offset

    async def search_offset(self, queue: Queue, at_ms: int) -> int:
        """Offset of the first message stored at or after a time; the end of the queue if there is none."""
        request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms)
        return (await self.ask(await self.master_of(queue), request, OffsetReply)).offset

    async def earliest_stored_at_ms(self, queue: Queue) -> int:
        """Store time of the oldest message; -1 if there is none."""
        request = EarliestTimeRequest(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(await self.master_of(queue), request, TimestampReply)).timestamp

    async def committed_offset(self, queue: Queue, group: str) -> int | None:
        """Progress of a group; `None` when it has none.

        RocketMQ: for a group without progress a broker answers 0 while the first message of the queue is in memory.
        """
        request = QueryOffsetRequest(group=group, topic=queue.topic, queue_id=queue.queue_id)
        try:
            reply = await self.ask(await self._offset_keeper(queue), request, OffsetReply, timeout_ms=OFFSET_TIMEOUT_MS)
        except NotFound:
            return None
        return reply.offset if reply.offset >= 0 else None

    async def commit_offset(self, queue: Queue, group: str, committed_offset: int) -> None:
        """Store the progress of a group and wait until the broker has it."""
        request = UpdateOffsetRequest(
            group=group, topic=queue.topic, queue_id=queue.queue_id, committed_offset=committed_offset
        )
        await self.call(await self._offset_keeper(queue), request, timeout_ms=OFFSET_TIMEOUT_MS)

    async def _offset_keeper(self, queue: Queue) -> str:
        address = self.routes.addresses.master_of(queue.broker)
        if address is None:
            await self.routes.refresh_quietly(queue.topic)
            address = self.routes.addresses.preferred_of(queue.broker)
        if address is None:
            raise TransportError(
                f"broker {queue.broker!r} of topic {queue.topic!r} is not known: check the name servers"
            )
        return address

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def pull_raw(
        self,
        queue: Queue,
        start: int,
        *,
        group: str,
        count_max: int = 32,
        bytes_max: int | None = None,
        suspend_ms: int = 0,
        timeout_ms: int | None = None,
        expression: str | None = "*",
        expression_type: str | None = None,
        subscription_version: int = 0,
        committed_offset: int | None = None,
        extra_flags: int = 0,
    ) -> RawPull:
        """Records of a queue from `start` on, as bytes.

        `suspend_ms` lets the broker wait for records when there are none; `expression=None` uses the subscription that
        the group's heartbeat told; `committed_offset` stores progress on the way.
        """
        reader = self.routes.addresses.reader_of(queue.broker, self._suggested.get(queue, 0))
        if reader is None:
            await self.routes.refresh(queue.topic)
            reader = self.routes.addresses.reader_of(queue.broker)
        if reader is None:
            raise TransportError(
                f"broker {queue.broker!r} of topic {queue.topic!r} is not known: check the name servers"
            )
        flags = extra_flags
        if suspend_ms > 0:
            flags |= PullRequest.SUSPEND
        if expression is not None:
            flags |= PullRequest.SUBSCRIPTION
        if committed_offset is not None and not reader.is_follower:
            flags |= PullRequest.COMMIT_OFFSET
        request = PullRequest(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            start=start,
            count_max=count_max,
            flags=flags,
            committed_offset=committed_offset or 0,
            suspend_ms=suspend_ms,
            subscription=expression,
            subscription_version=subscription_version,
            expression_type=expression_type,
            bytes_max=bytes_max,
            broker=queue.broker,
        )
        timeout_ms = timeout_ms if timeout_ms is not None else suspend_ms + PULL_MARGIN_MS
        reply = await self.call_raw(reader.address, request.command(), timeout_ms=timeout_ms)
        status = _STATUS_BY_CODE.get(reply.code)
        if status is None:
            raise error_of(reply, reader.address)
        header = decode_fields(reply.fields, PullReply)
        if header.suggested_broker_id:
            self._suggested[queue] = header.suggested_broker_id
        else:
            self._suggested.pop(queue, None)
        return RawPull(
            status,
            reply.body if status is PullStatus.FOUND else b"",
            header.next_offset,
            header.min_offset,
            header.max_offset,
        )

    async def pull(self, queue: Queue, start: int, *, group: str, count_max: int = 32) -> list[StoredMessage]:
        """Messages of a queue from `start` on that are there now."""
        raw = await self.pull_raw(queue, start, group=group, count_max=count_max)
        return decode_pull(raw.body, broker=queue.broker)

    async def view_message(self, offset_id: str) -> StoredMessage:
        """The message that an offset id names. Raises `NotFound`."""
        address, log_offset = parse_offset_id(offset_id)
        try:
            reply = await self.call(address, ViewMessageRequest(log_offset=log_offset), timeout_ms=QUERY_TIMEOUT_MS)
        except Refused as fault:
            if fault.code != ResponseCode.SYSTEM_ERROR:
                raise
            raise NotFound(f"no message {offset_id} at {address}: {fault}", code=fault.code, address=address) from None
        messages = decode_pull(reply.body, broker="")
        if not messages:
            raise NotFound(f"no message {offset_id} at {address}: it may have expired", address=address)
        return messages[0]

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int | None = None,
        by_unique_id: bool = False,
    ) -> list[StoredMessage]:
        """Messages of a topic that carry a key (or a unique id), newest last; none is an empty list.

        Every broker of the topic is asked. Raises what the last one said if all of them failed.
        """
        route = await self.routes.find(topic)
        request = QueryMessageRequest(
            topic=topic,
            key=key,
            count_max=min(count_max, QUERY_MESSAGES_MAX),
            begin_ms=begin_ms,
            end_ms=end_ms if end_ms is not None else 2**63 - 1,
            by_unique_id=by_unique_id,
        )
        brokers = [(broker.name, address) for broker in route.brokers for address in [broker.master] if address]
        answers = await asyncio.gather(
            *(self.call(address, request, timeout_ms=QUERY_TIMEOUT_MS) for _, address in brokers),
            return_exceptions=True,
        )
        found: list[StoredMessage] = []
        faults: list[BaseException] = []
        for (broker, _), answer in zip(brokers, answers, strict=True):
            if isinstance(answer, NotFound):
                continue
            if isinstance(answer, BaseException):
                faults.append(answer)
            else:
                found += decode_pull(answer.body, broker=broker)
        if faults and len(faults) == len(brokers):
            raise faults[-1]
        exact = [message for message in found if message.topic == topic and _has_key(message, key, by_unique_id)]
        return sorted(exact, key=lambda message: message.stored_at_ms)[:count_max]

    # ── Groups ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def member_ids(self, group: str, topic: str) -> list[str]:
        """Client ids of the online members of a group, as one broker of the topic sees them."""
        address = contact_of(await self.routes.find(topic), random.randrange)
        if address is None:
            raise TransportError(f"topic {topic!r} has no broker now: wait for one, or check the name servers")
        return decode_consumer_ids((await self.call(address, ConsumerListRequest(consumer_group=group))).body)

    async def lock_queues(self, group: str, queues: Iterable[Queue]) -> dict[Queue, bool]:
        """Whether this client now holds each queue; queues of brokers that did not answer are left out."""
        held: dict[Queue, bool] = {}
        for address, members in self._by_master(queues).items():
            body = encode_queue_set(group=group, client_id=self.client_id, queues=members)
            try:
                reply = await self.call(address, LockQueuesRequest(), body=body, timeout_ms=LOCK_TIMEOUT_MS)
                locked = decode_locked_queues(reply.body)
            except (TransportError, Refused, RemoteProtocolError) as fault:
                log.warning("queues not locked address=%s fault=%s", address, fault)
                continue
            held.update({queue: queue in locked for queue in members})
        return held

    async def unlock_queues(self, group: str, queues: Iterable[Queue]) -> None:
        """Let others have the queues; a broker that cannot be told lets the locks lapse after a minute."""
        for address, members in self._by_master(queues).items():
            body = encode_queue_set(group=group, client_id=self.client_id, queues=members)
            try:
                await self.call(address, UnlockQueuesRequest(), body=body, timeout_ms=LOCK_TIMEOUT_MS)
            except (TransportError, Refused) as fault:
                log.warning("queues not unlocked address=%s fault=%s", address, fault)

    def _by_master(self, queues: Iterable[Queue]) -> dict[str, list[Queue]]:
        grouped: dict[str, list[Queue]] = {}
        for queue in queues:
            address = self.routes.addresses.master_of(queue.broker)
            if address is not None:
                grouped.setdefault(address, []).append(queue)
        return grouped

    async def check_subscription(self, group: str, topic: str, subscription: Struct) -> None:
        """Let a broker judge an SQL expression. Raises `Refused` with its reason."""
        address = contact_of(await self.routes.find(topic), random.randrange)
        if address is None:
            return
        body = encode_object({"clientId": self.client_id, "group": group, "subscriptionData": subscription})
        await self.call(address, CheckClientRequest(), body=body)

    async def find_retry_topic(self, group: str) -> None:
        """Ask for the route of a group's retry topic at once: the group's first heartbeat has just made it."""
        topic = retry_topic(group)
        self.routes.want(topic)
        if self.routes.known(topic) is None:
            await self.routes.refresh_quietly(topic)


def _has_key(message: StoredMessage, key: str, by_unique_id: bool) -> bool:
    if by_unique_id:
        return message.properties.get(Name.UNIQUE_ID) == key
    return key in message.keys


def _drop_outcome(waiter: "asyncio.Future[Command]") -> None:
    """Read a future's error so that it is not reported as never retrieved."""
    if not waiter.cancelled() and (fault := waiter.exception()) is not None:
        log.info("first heartbeat of a connection failed fault=%s", fault)

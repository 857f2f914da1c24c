"""A broker's tables over a real store, without sockets: ask its handlers as a router would."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.members import Members
from kappamq.broker.router import Handler
from kappamq.broker.runtime_settings import RuntimeSettings
from kappamq.broker.settings import BrokerSettings
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import BuiltInTopics, Topics
from kappamq.clock import ManualClock
from kappamq.errors import KappaError
from kappamq.model import fastjson
from kappamq.model.config import TopicConfig
from kappamq.model.ids import pack_host
from kappamq.model.message import Queue
from kappamq.model.record import NewRecord
from kappamq.model.subscription import ClientConnection, ConsumerMembership, Subscription
from kappamq.net.connection import Connection
from kappamq.store.settings import StoreSettings
from kappamq.store.store import Store
from kappamq.wire.command import Command
from kappamq.wire.faults import code_of

BROKER = "b1"
HOST = pack_host("127.0.0.1", 10911)
SMALL = StoreSettings(
    segment_bytes=1 << 20,
    queue_segment_bytes=2000,
    index_slots=100,
    index_entries=400,
    disk_delete_ratio=0.97,
    disk_force_ratio=0.98,
    disk_full_ratio=0.99,
)


@dataclass(eq=False)
class Peer:
    """Stands for a connection: notes what it is sent, answers calls as it is told."""

    answer: Command | KappaError | None = None
    sent: list[Command] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    peer: str = "127.0.0.1:5000"
    is_open: bool = True

    def send(self, command: Command) -> None:
        self.sent.append(command)

    async def call(self, command: Command, *, timeout_ms: float) -> Command:
        self.sent.append(command)
        self.timeouts.append(timeout_ms)
        assert self.answer is not None
        if isinstance(self.answer, KappaError):
            raise self.answer
        return self.answer

    @property
    def connection(self) -> Connection:
        return cast(Connection, self)


class Desk:
    """What handlers of administration need."""

    def __init__(self, data: Path) -> None:
        self.clock = ManualClock()
        self.settings = RuntimeSettings(BrokerSettings(name=BROKER, data=data, store=SMALL), clock=self.clock)
        self.store = Store.open(data, SMALL, clock=self.clock)
        self.changes = 0
        built_in = BuiltInTopics(cluster="c1", broker=BROKER, template_queues=8, auto_create=True, delay_levels=18)
        self.topics = Topics(built_in, clock=self.clock, on_change=self._changed)
        self.topics.load(None, [])
        self.groups = Groups(auto_create=True, clock=self.clock, on_change=lambda: None)
        self.groups.load(None)
        self.offsets = CommittedOffsets(clock=self.clock)
        self.members = Members(clock=self.clock, timeout_seconds=120, on_change=lambda _: None)
        self.statistics = Statistics(clock=self.clock, cluster="c1", is_system_topic=self.topics.is_system)

    def _changed(self) -> None:
        self.changes += 1

    def close(self) -> None:
        self.store.close()

    def topic(self, name: str, queues: int = 2) -> None:
        self.topics.put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues))

    def append(self, topic: str, queue_id: int, *bodies: bytes, properties: str = "") -> list[int]:
        """Store messages, visible at once; returns their log offsets."""
        records = [
            NewRecord(topic, queue_id, body, properties.encode(), self.clock.now_ms(), HOST, HOST) for body in bodies
        ]
        places = self.store.append(records)
        self.store.mark_flushed(self.store.flush())
        self.store.publish()
        return [place.log_offset for place in places]

    def join(self, group: str, *topics: str, client_id: str = "c", version: int = 479, language: str = "JAVA") -> Peer:
        """A consumer comes online."""
        peer = Peer()
        self.groups.get_or_create(group)
        self.members.join_consumer(
            ConsumerMembership(group=group, subscriptions=tuple(Subscription(topic=topic) for topic in topics)),
            ClientConnection(client_id=client_id, address="1.2.3.4:5", language=language, version=version),
            peer.connection,
        )
        return peer


def ask(table: Mapping[int, Handler], code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
    """Reply of a handler, errors included as a router would send them."""
    request = Command(code=code, request_id=7, fields=dict(fields or {}), body=body)
    try:
        answer = table[code](Peer().connection, request)
        if isinstance(answer, Coroutine):
            answer = asyncio.run(_awaited(answer))
    except KappaError as fault:
        return request.reply(code_of(fault), str(fault))
    assert isinstance(answer, Command)
    assert answer.request_id == 7
    return answer


async def _awaited(answer: Coroutine[None, None, Any]) -> Any:
    return await answer


def value_of(reply: Command) -> Any:
    """JSON of a reply that must be a success."""
    assert reply.code == 0, reply.remark
    return fastjson.loads(reply.body)


def queue(topic: str, queue_id: int) -> Queue:
    return Queue(topic, BROKER, queue_id)

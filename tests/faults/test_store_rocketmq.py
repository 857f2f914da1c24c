"""One store directory, two brokers: ours and the real RocketMQ 5.5.0 write to it in turn, and both serve everything."""

import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kappamq.clock import SystemClock
from kappamq.model import fastjson
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.config_files import save_config
from kappamq.store.settings import StoreSettings
from kappamq.store.store import FetchLimit, Store
from tests.faults.records import commit, new_record
from tests.interop.frames import Frame, split
from tests.interop.rocketmq import Broker, NameServer, Unreachable

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "orders"
QUEUES = 3
SETTINGS = StoreSettings(segment_bytes=1 << 20, queue_segment_bytes=6000, index_slots=500, index_entries=2000)
BROKER_SETTINGS = {
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "timerWheelEnable": "false",
}
SEND_V2, PULL, QUERY, VIEW = 310, 11, 12, 33
FOREVER_MS = 1 << 62


class Peer:
    """One connection to a broker, for requests one after the other."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Frame:
        command = {"code": code, "language": "JAVA", "version": 477, "opaque": 1, "flag": 0, "extFields": fields}
        header = fastjson.dumps(command, standard=True).encode()
        self._socket.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        received = b""
        while True:
            chunk = self._socket.recv(1 << 16)
            assert chunk, "the broker closed the connection"
            received += chunk
            for frame in split(received):
                return frame

    def close(self) -> None:
        self._socket.close()


class Truth:
    """What was acknowledged, whoever stored it."""

    def __init__(self) -> None:
        self.bodies: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.keys: dict[str, bytes] = {}
        self.count = 0

    def next(self) -> tuple[int, bytes, str, str]:
        self.count += 1
        body = b"%06d" % self.count + b"x" * (self.count % 700)
        queue_id, key, unique_id = self.count % QUEUES, f"key-{self.count}", f"U{self.count:031d}"
        self.bodies[queue_id].append(body)
        self.keys[key] = self.keys[unique_id] = body
        return queue_id, body, key, unique_id

    def store_here(self, store: Store, count: int) -> None:
        for number in range(count):
            queue_id, body, key, unique_id = self.next()
            store.append([new_record(body, topic=TOPIC, queue_id=queue_id, tags="TagA", keys=key, unique_id=unique_id)])
            if number % 50 == 0:
                commit(store)
        commit(store)

    def store_there(self, peer: Peer, count: int) -> None:
        for _ in range(count):
            queue_id, body, key, unique_id = self.next()
            properties = f"KEYS\x01{key}\x02UNIQ_KEY\x01{unique_id}\x02TAGS\x01TagA\x02"
            values = ("PG", TOPIC, "TBW102", "8", str(queue_id), "0", "1700000000000", "0", properties, "0", "false")
            fields = {**dict(zip("abcdefghijk", values)), "m": "false"}
            assert peer.ask(SEND_V2, fields, body).code == 0

    def verify_here(self, store: Store) -> None:
        for queue_id, bodies in enumerate(self.bodies):
            found: list[bytes] = []
            while (fetched := store.fetch(TOPIC, queue_id, len(found), limit=FetchLimit())).count:
                for message in decode_records(fetched.body):
                    assert message.queue_offset == len(found)
                    assert store.read(message.log_offset, message.size)
                    found.append(message.body)
            assert found == bodies
        for key, body in self.keys.items():
            result = store.query(TOPIC, key, limit=32, begin_ms=0, end_ms=FOREVER_MS)
            assert [message.body for message in decode_records(b"".join(result.records))] == [body]

    def verify_there(self, peer: Peer) -> None:
        for queue_id, bodies in enumerate(self.bodies):
            found: list[bytes] = []
            while len(found) < len(bodies):
                fields = {
                    "consumerGroup": "CG",
                    "topic": TOPIC,
                    "queueId": str(queue_id),
                    "queueOffset": str(len(found)),
                    "maxMsgNums": "32",
                    "sysFlag": "4",
                    "commitOffset": "0",
                    "suspendTimeoutMillis": "0",
                    "subscription": "*",
                    "subVersion": "0",
                    "expressionType": "TAG",
                }
                reply = peer.ask(PULL, fields)
                assert reply.code == 0, f"queue {queue_id} ends at {len(found)} instead of {len(bodies)}"
                messages = list(decode_records(reply.body))
                viewed = peer.ask(VIEW, {"topic": TOPIC, "offset": str(messages[0].log_offset)})
                assert next(decode_records(viewed.body)).body == messages[0].body
                found += [message.body for message in messages]
            assert found == bodies
        for key, body in list(self.keys.items())[::13]:
            window = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(FOREVER_MS)}
            reply = peer.ask(QUERY, {"topic": TOPIC, "key": key, **window})
            assert reply.code == 0, f"{key} is not found"
            assert body in [message.body for message in decode_records(reply.body)]


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    try:
        server = NameServer()
    except Unreachable as missing:
        pytest.skip(f"INTEROP NOT PROVEN: {missing.reason}")
    yield server
    server.kill()


def our_store(root: Path) -> Store:
    return Store.open(root, SETTINGS, clock=SystemClock())


def serve_there(name_server: NameServer, root: Path, truth: Truth, *, count: int, kill: bool) -> None:
    """Let the real broker verify everything, store some more, and end in order or not."""
    broker = Broker(
        name_server.address,
        store=root,
        flush="SYNC_FLUSH",
        commit_log_segment_bytes=SETTINGS.segment_bytes,
        settings=BROKER_SETTINGS,
    )
    peer = Peer(broker.address)
    try:
        truth.verify_there(peer)
        truth.store_there(peer, count)
        truth.verify_there(peer)
    finally:
        peer.close()
        if kill:
            broker.kill()
        else:
            broker.stop()


def serve_here(root: Path, truth: Truth, *, count: int) -> None:
    store = our_store(root)
    truth.verify_here(store)
    truth.store_here(store, count)
    truth.verify_here(store)
    store.close()
    assert [str(violation) for violation in check_store(root, SETTINGS).violations] == []


def serve_here_and_die(root: Path, truth: Truth, *, count: int) -> None:
    """Store in a process that ends by SIGKILL, some of it after its last checkpoint."""
    child = os.fork()
    if child == 0:
        store = our_store(root)
        truth.store_here(store, count)
        store.checkpoint()
        truth.store_here(store, count // 10)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    for _ in range(count + count // 10):
        truth.next()


@pytest.mark.timeout(400)
def test_store_passes_between_both_brokers(name_server: NameServer, tmp_path: Path) -> None:
    root = tmp_path / "store"
    topic = {"perm": 6, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "topicName": TOPIC, "topicSysFlag": 0}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    table = {"dataVersion": version, "topicConfigTable": {TOPIC: {"topicFilterType": "SINGLE_TAG", **topic}}}
    save_config(root / "config" / "topics.json", table)
    truth = Truth()
    serve_here(root, truth, count=3000)
    serve_there(name_server, root, truth, count=400, kill=False)
    serve_here(root, truth, count=400)
    serve_here_and_die(root, truth, count=600)
    serve_there(name_server, root, truth, count=400, kill=True)
    serve_here(root, truth, count=300)
    serve_there(name_server, root, truth, count=50, kill=False)
    serve_here(root, truth, count=10)

"""Records what real RocketMQ clients and servers say to each other, for the golden tests.

    python -m tests.interop.record

starts a real cluster with relays in between, lets the Java clients 4.9.8 and 5.5.0 work through it, and writes one
request and its reply per kind to `tests/golden/recorded/`. Timestamps and ids differ from run to run: record again only
to add a kind.
"""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.interop.artifacts import CHECKOUT
from tests.interop.frames import FRAME_BYTES_MAX, Frame, parse
from tests.interop.harness import CLIENT_VERSIONS, JavaClient, Outgoing, Script, Subscription
from tests.interop.rocketmq import Broker, NameServer, await_registered
from tests.interop.support import (
    FROM_FIRST,
    await_messages,
    await_queues,
    eventually,
    make_known,
    queues_of,
    topic_with_admin,
)

GOLDEN: Final = CHECKOUT / "tests" / "golden" / "recorded"
SERVER_VERSION: Final = "5.5.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One frame on one connection; `from_client` is the end that opened the connection."""

    connection: int
    from_client: bool
    frame: Frame


class Relay:
    """Passes whole frames between clients and one server on loopback, and keeps them all.

    `rewrite` replaces bytes in what the server says by others of equal length: so a route can lead clients to
    another relay.
    """

    def __init__(self, target: str, *, rewrite: Mapping[bytes, bytes] | None = None) -> None:
        self._target = target
        self._rewrite = dict(rewrite or {})
        assert all(len(old) == len(new) for old, new in self._rewrite.items())
        self._lock = threading.Lock()
        self._recorded: list[Recorded] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._spawn(self._accept)

    def recorded(self) -> list[Recorded]:
        """All frames so far, in the order they passed."""
        with self._lock:
            return list(self._recorded)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                _close(each)
        for thread in list(self._threads):
            thread.join(5)

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"relay to {self._target}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        host, port = self._target.rsplit(":", 1)
        for number in range(10**6):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            with self._lock:
                self._sockets += [client, server]
            self._spawn(lambda c=client, s=server, n=number: self._pass(c, s, n, from_client=True))  # type: ignore[misc]
            self._spawn(lambda c=client, s=server, n=number: self._pass(s, c, n, from_client=False))  # type: ignore[misc]

    def _pass(self, source: socket.socket, sink: socket.socket, connection: int, *, from_client: bool) -> None:
        try:
            for raw in _frames(source):
                shown = raw if from_client else self._rewritten(raw)
                with self._lock:
                    self._recorded.append(Recorded(connection=connection, from_client=from_client, frame=parse(shown)))
                sink.sendall(shown)
        except OSError:
            pass  # One end has gone: so goes the other.
        finally:
            _close(source)
            _close(sink)

    def _rewritten(self, raw: bytes) -> bytes:
        for old, new in self._rewrite.items():
            raw = raw.replace(old, new)
        return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A kind of exchange to keep: the first request of this code whose reply (if it has one) has this code."""

    name: str
    code: int
    what: str
    has_reply: bool = True
    reply_code: int = 0
    from_client: bool = True
    containing: bytes = b""


FROM_NAME_SERVER: Final = (Wanted(name="route", code=105, what="route of a topic"),)
FROM_BROKER: Final = (
    Wanted(
        name="heartbeat",
        code=34,
        what="heartbeat of a push consumer and its inner producer",
        containing=b"consumeFromWhere",
    ),
    Wanted(name="send", code=310, what="send of one message, short field names"),
    Wanted(name="send-batch", code=320, what="send of three messages in one request"),
    Wanted(name="pull", code=11, what="pull that finds messages"),
    Wanted(name="pull-nothing", code=11, what="pull that finds nothing new", reply_code=19),
    Wanted(name="query-offset", code=14, what="committed offset of a group"),
    Wanted(name="commit-offset", code=15, what="one-way commit of an offset", has_reply=False),
    Wanted(name="max-offset", code=30, what="end of a queue"),
    Wanted(name="consumer-list", code=38, what="members of a group"),
    Wanted(name="lock", code=41, what="lock of queues for orderly consumption"),
    Wanted(name="unlock", code=42, what="unlock of queues"),
    Wanted(name="send-back", code=36, what="a message that failed, for a retry"),
    Wanted(name="view", code=33, what="one message by its log offset"),
    Wanted(name="query-by-key", code=12, what="messages by key"),
    Wanted(name="create-topic", code=17, what="creation of a topic"),
    Wanted(name="end-transaction", code=37, what="one-way commit of a transaction", has_reply=False),
    Wanted(name="check-transaction", code=39, what="question about a half message", has_reply=False, from_client=False),
    Wanted(name="members-changed", code=40, what="notice that a group changed", has_reply=False, from_client=False),
    Wanted(name="unregister", code=35, what="a consumer leaves its group", containing=b"consumerGroup"),
)
REGISTRATION: Final = (Wanted(name="register-broker", code=103, what="registration of a broker with all topics"),)


def pick(recorded: Sequence[Recorded], wanted: Wanted) -> list[Frame]:
    """The request, and its reply if one is wanted; fails when nothing recorded fits."""
    for at, each in enumerate(recorded):
        if each.from_client != wanted.from_client or each.frame.is_reply or each.frame.code != wanted.code:
            continue
        if wanted.containing not in each.frame.raw:
            continue
        if not wanted.has_reply:
            return [each.frame]
        for later in recorded[at + 1 :]:
            if (
                later.connection == each.connection
                and later.from_client != each.from_client
                and later.frame.is_reply
                and later.frame.request_id == each.frame.request_id
            ):
                if later.frame.code == wanted.reply_code:
                    return [each.frame, later.frame]
                break
    raise AssertionError(f"no {wanted.name} (code {wanted.code}) was recorded")


def main() -> None:
    """Record every kind with every client version and write the golden files."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    index: list[dict[str, object]] = []
    settings = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000", "enablePropertyFilter": "true"}
    with ExitStack() as stack:
        name_server = stack.enter_context(NameServer(SERVER_VERSION))
        registrations = stack.enter_context(_relay(name_server.address))
        broker = stack.enter_context(Broker(registrations.address, SERVER_VERSION, settings=settings))
        await_registered(name_server.address, broker.address)
        for wanted in REGISTRATION:
            index.append(_keep(registrations, wanted, f"broker {SERVER_VERSION}", SERVER_VERSION))
        for version in CLIENT_VERSIONS:
            with _relay(broker.address) as to_broker:
                rewrite = {broker.address.encode(): to_broker.address.encode()}
                with _relay(name_server.address, rewrite=rewrite) as to_name_server, JavaClient(version) as java:
                    _work(java, to_name_server.address, to_broker.port)
                    who = f"Java client {version}"
                    index += [_keep(to_name_server, wanted, who, version) for wanted in FROM_NAME_SERVER]
                    index += [_keep(to_broker, wanted, who, version) for wanted in FROM_BROKER]
    (GOLDEN / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    print(f"{len(index)} exchanges, {sum(path.stat().st_size for path in GOLDEN.iterdir())} bytes in {GOLDEN}")


def _keep(relay: Relay, wanted: Wanted, who: str, version: str) -> dict[str, object]:
    """Write the frames of one exchange and return its entry for the index."""
    frames = pick(relay.recorded(), wanted)
    entry: dict[str, object] = {
        "name": wanted.name,
        "what": wanted.what,
        "code": wanted.code,
        "by": who if wanted.from_client else f"broker {SERVER_VERSION}",
        "to": f"RocketMQ {SERVER_VERSION}" if wanted.from_client else who,
        "request": f"{wanted.name}-{version}.request.bin",
    }
    (GOLDEN / str(entry["request"])).write_bytes(frames[0].raw)
    if wanted.has_reply:
        entry |= {"reply": f"{wanted.name}-{version}.reply.bin", "reply_code": wanted.reply_code}
        (GOLDEN / str(entry["reply"])).write_bytes(frames[1].raw)
    return entry


def _work(java: JavaClient, server: str, broker_port: int) -> None:
    """Make a client say everything that is wanted."""
    group = f"recorded-{java.version.replace('.', '-')}"
    seen = _Nameserver(server)
    with topic_with_admin(java, seen, queues=1) as (topic, admin), java.producer(server, "recorded") as producer:
        [queue] = queues_of(admin, topic)
        make_known(java, seen, group, topic)
        [sent] = producer.send(Outgoing(topic=topic, body=b"Hello", tags="TagA", keys="key", properties={"a": "1"}))
        producer.send_batch(*(Outgoing(topic=topic, body=b"%d" % n, tags="TagB") for n in range(3)))
        subscriptions = [Subscription(topic=topic)]
        script = Script(fail={"key": 1}, delay_level=1)
        with java.push_consumer(server, group, subscriptions, script=script, options=FROM_FIRST) as one:
            await_messages(one, 5)
            one.commit()
            with java.push_consumer(server, group, subscriptions, options=FROM_FIRST):
                pass
        with java.push_consumer(server, f"{group}-orderly", subscriptions, orderly=True, options=FROM_FIRST) as orderly:
            await_queues(orderly, topic, 1)
            await_messages(orderly, 4)
        with java.pull_consumer(server, group, [topic]) as reader:
            reader.fetch_offset(queue)
            assert reader.pull(queue, admin.max_offset(queue)).status == "NO_NEW_MSG"
            assert reader.pull(queue, 0).status == "FOUND"
        assert sent.offset_id is not None
        # The client takes the address from the id: let it lead to the relay.
        admin.view(topic, sent.offset_id[:8] + f"{broker_port:08X}" + sent.offset_id[16:])
        eventually(lambda: len(admin.query(topic, "key")), lambda count: count == 1)
        with java.producer(server, f"{group}-transactions", transaction=True) as transactions:
            transactions.send_in_transaction(Outgoing(topic=topic, keys="now"), local="COMMIT_MESSAGE")
            later = Outgoing(topic=topic, keys="later")
            transactions.send_in_transaction(later, local="UNKNOW", checks=["COMMIT_MESSAGE"])
            assert transactions.checks(1, timeout_ms=60_000)


@dataclass(frozen=True, slots=True)
class _Nameserver:
    nameserver: str


@contextmanager
def _relay(target: str, *, rewrite: Mapping[bytes, bytes] | None = None) -> Iterator[Relay]:
    relay = Relay(target, rewrite=rewrite)
    try:
        yield relay
    finally:
        relay.close()


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole frames as they arrive, until the other end closes."""
    buffer = b""
    while chunk := source.recv(65536):
        buffer += chunk
        while len(buffer) >= 4:
            (length,) = struct.unpack_from(">i", buffer)
            assert 4 <= length <= FRAME_BYTES_MAX
            if len(buffer) < 4 + length:
                break
            yield buffer[: 4 + length]
            buffer = buffer[4 + length :]


def _close(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # Closed already, by the other direction.
    each.close()


if __name__ == "__main__":
    main()

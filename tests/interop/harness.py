"""Drives the official Java client: one JVM per client version, many clients inside it.

`JavaClient("5.5.0")` starts the JVM; its `producer`, `push_consumer`, `lite_pull_consumer`, `pull_consumer` and `admin`
start clients in it. Every client is a context manager, and the end of the JVM ends those left running. The orders and
their fields are described at the head of `java/Harness.java`.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.interop.artifacts import Unreachable, compile_java, fetch
from tests.interop.processes import LINES_KEPT_MAX, ChildFailed
from tests.interop.rocketmq import java_command, make_home

CLIENT_VERSIONS: Final = ("4.9.8", "5.5.0")
HARNESS_SOURCE: Final = Path(__file__).parent / "java" / "Harness.java"
READY_SECONDS_MAX: Final = 90.0
ANSWER_SECONDS_MAX: Final = 90.0

# The client's own timers would make tests wait: it asks for routes and sends heartbeats every 30 s. Its rebalance timer
# (20 s) stays as it is, so that tests notice a broker that does not announce members.
# RocketMQ: of two heartbeats at once a 5.5.0 client drops one, and with it a new subscription; its pulls are refused
# until the next.
# Its calls wait for 3 s; on a crowded machine the answer to one may take longer, and that is not what is tested here.
QUICK_OPTIONS: Final[Mapping[str, object]] = {
    "pollNameServerInterval": 1000,
    "heartbeatBrokerInterval": 1000,
    "mqClientApiTimeout": 15_000,
}


class JavaError(Exception):
    """The Java client threw: the class, the response code if it has one, and the text."""

    def __init__(self, kind: str, code: int | None, text: str) -> None:
        super().__init__(f"{kind} code={code}: {text}")
        self.kind = kind
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class QueueRef:
    """One queue of a topic on a broker."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["topic"], data["brokerName"], data["queueId"])

    def write(self) -> dict[str, object]:
        return {"topic": self.topic, "brokerName": self.broker_name, "queueId": self.queue_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send."""

    topic: str
    body: bytes = b"body"
    tags: str | None = None
    keys: str | None = None
    flag: int = 0
    delay_level: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def write(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "body": base64.b64encode(self.body).decode(),
            "tags": self.tags,
            "keys": self.keys,
            "flag": self.flag,
            "delayLevel": self.delay_level,
            "properties": dict(self.properties),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the client was told about a message it sent."""

    status: str
    unique_id: str | None
    offset_id: str | None
    queue: QueueRef
    queue_offset: int
    transaction_id: str | None
    region_id: str | None
    local_state: str | None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            status=data["status"],
            unique_id=data["msgId"],
            offset_id=data["offsetMsgId"],
            queue=QueueRef.read(data["queue"]),
            queue_offset=data["queueOffset"],
            transaction_id=data["transactionId"],
            region_id=data["regionId"],
            local_state=data.get("localState"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as the Java client sees it; `order` counts the arrivals at one push consumer."""

    topic: str
    body: bytes
    tags: str | None
    keys: str | None
    flag: int
    properties: Mapping[str, str]
    broker_name: str | None
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_id: str | None
    sys_flag: int
    body_crc: int
    born_at_ms: int
    born_host: str | None
    stored_at_ms: int
    store_host: str | None
    retry_count: int
    log_offset: int
    store_size: int
    prepared_transaction_offset: int
    transaction_id: str | None
    order: int
    outcome: str | None
    received_at_ms: int | None
    thread: str | None

    @property
    def unique_id(self) -> str | None:
        return self.properties.get("UNIQ_KEY")

    @property
    def queue(self) -> QueueRef:
        return QueueRef(self.topic, self.broker_name or "", self.queue_id)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            topic=data["topic"],
            body=base64.b64decode(data["body"] or ""),
            tags=data["tags"],
            keys=data["keys"],
            flag=data["flag"],
            properties=data["properties"],
            broker_name=data.get("brokerName"),
            queue_id=data.get("queueId", -1),
            queue_offset=data.get("queueOffset", -1),
            msg_id=data.get("msgId", ""),
            offset_id=data.get("offsetMsgId"),
            sys_flag=data.get("sysFlag", 0),
            body_crc=data.get("bodyCrc", 0),
            born_at_ms=data.get("bornTimestamp", 0),
            born_host=data.get("bornHost"),
            stored_at_ms=data.get("storeTimestamp", 0),
            store_host=data.get("storeHost"),
            retry_count=data.get("reconsumeTimes", 0),
            log_offset=data.get("commitLogOffset", -1),
            store_size=data.get("storeSize", 0),
            prepared_transaction_offset=data.get("preparedTransactionOffset", 0),
            transaction_id=data.get("transactionId"),
            order=data.get("order", -1),
            outcome=data.get("outcome"),
            received_at_ms=data.get("receivedAt"),
            thread=data.get("thread"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The answer to one pull of the old pull consumer."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: Sequence[Received]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic with a filter: tags (`a || b`, `*`) or an SQL92 condition."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"

    def write(self) -> dict[str, object]:
        return {"topic": self.topic, "expression": self.expression, "type": self.kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How a push listener misbehaves: the first `fail[key]` deliveries of a message with that key (`*`: of any) fail.

    `how` is LATER, THROW, NULL, ACK_INDEX (with ack_index) or, for an orderly listener, SUSPEND.
    """

    fail: Mapping[str, int] = field(default_factory=dict)
    how: str = "LATER"
    delay_level: int = 0
    ack_index: int = -1

    def write(self) -> dict[str, object]:
        fail = dict(self.fail)
        return {"fail": fail, "how": self.how, "delayLevel": self.delay_level, "ackIndex": self.ack_index}


class JavaClient:
    """One JVM with the official client of one version. Thread-safe: orders are answered in any order."""

    def __init__(self, version: str, *, jvm_flags: Sequence[str] = ()) -> None:
        self.version = version
        if shutil.which("java") is None:
            raise Unreachable("java is not installed: install a Java 17 runtime")
        libraries = fetch(f"client-{version}")
        classes = compile_java(HARNESS_SOURCE, libraries)
        self._home = make_home()
        command = java_command(libraries, "Harness", home=self._home, heap_mb=256)
        at = command.index("-cp") + 1
        command[at] = f"{classes}:{command[at]}"
        command[1:1] = [f"-Drocketmq.client.localOffsetStoreDir={self._home}/offsets", *jvm_flags]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._home,
            env={**os.environ, "ROCKETMQ_HOME": str(self._home)},
            start_new_session=True,
        )
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Mapping[str, Any]] = {}
        self._is_ready = False
        self._is_gone = False
        self._complaints: deque[str] = deque(maxlen=LINES_KEPT_MAX)
        self._readers = [
            threading.Thread(target=self._read_answers, name=f"java {version} answers", daemon=True),
            threading.Thread(target=self._read_complaints, name=f"java {version} complaints", daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._is_gone, READY_SECONDS_MAX)
        if not self._is_ready:
            self.close()
            raise ChildFailed(f"the Java client {version} did not start:\n{self.log_tail()}")

    def order(self, op: str, *, seconds_max: float = ANSWER_SECONDS_MAX, **fields: object) -> Any:
        """Give one order and return its result; raise JavaError if the Java client threw."""
        number = next(self._numbers)
        line = json.dumps({"id": number, "op": op, **fields}) + "\n"
        assert self._process.stdin is not None
        with self._changed:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            self._changed.wait_for(lambda: number in self._answers or self._is_gone, seconds_max)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise ChildFailed(f"no answer to {op} within {seconds_max:.0f} s. Its last lines:\n{self.log_tail()}")
        if "error" in answer:
            raise JavaError(answer["error"], answer["code"], answer["message"])
        return answer["ok"]

    def new_name(self, kind: str) -> str:
        return f"{kind}-{next(self._names)}"

    def log_tail(self, count: int = 40) -> str:
        """The last lines the client has printed, besides its answers."""
        return "\n".join(list(self._complaints)[-count:])

    def producer(self, nameserver: str, group: str = "interop-producers", **settings: Any) -> Producer:
        """Start a producer; settings as in `Producer`."""
        return Producer(self, nameserver, group, **settings)

    def push_consumer(
        self, nameserver: str, group: str, subscriptions: Sequence[Subscription], **settings: Any
    ) -> PushConsumer:
        """Start a push consumer; settings as in `PushConsumer`."""
        return PushConsumer(self, nameserver, group, subscriptions, **settings)

    def lite_pull_consumer(self, nameserver: str, group: str, **settings: Any) -> LitePullConsumer:
        """Start a lite pull consumer; settings as in `LitePullConsumer`."""
        return LitePullConsumer(self, nameserver, group, **settings)

    def pull_consumer(self, nameserver: str, group: str, topics: Sequence[str] = (), **settings: Any) -> PullConsumer:
        """Start a pull consumer of the old kind; settings as in `PullConsumer`."""
        return PullConsumer(self, nameserver, group, topics, **settings)

    def admin(self, nameserver: str) -> Admin:
        """Start a client for topics, offsets, routes and look-ups."""
        return Admin(self, nameserver)

    def close(self) -> None:
        """End the JVM, with whatever still runs in it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(READY_SECONDS_MAX)
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # An order was on its way when the JVM ended.
        self._process.stdout.close()
        self._process.stderr.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._changed:
                if "id" in answer:
                    self._answers[answer["id"]] = answer
                else:
                    self._is_ready = True
                self._changed.notify_all()
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints.append(line.decode("utf-8", "replace").rstrip())


class _Running:
    """One client inside the JVM: what all kinds share. Not for use outside this module."""

    def __init__(self, java: JavaClient, kind: str, **fields: Any) -> None:
        self.java = java
        self.name = java.new_name(kind)
        options = {**QUICK_OPTIONS, **(fields.pop("options", None) or {})}
        self.client_id: str = java.order(f"{kind}.start", on=self.name, options=options, **fields)
        self._is_running = True

    def order(self, op: str, **fields: Any) -> Any:
        return self.java.order(op, on=self.name, **fields)

    # When `stop` returns: "later" at once, "" when the client has left its groups, "fully" when its threads have ended.
    _stop_mode: str = ""

    def stop(self) -> None:
        """Shut the client down in order: it commits its offsets and leaves its group."""
        if self._is_running:
            self._is_running = False
            self.order("stop", **({self._stop_mode: True} if self._stop_mode else {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Producer(_Running):
    """`DefaultMQProducer`, or `TransactionMQProducer` with `transaction=True`."""

    _stop_mode = "later"  # Nobody depends on it.

    def __init__(
        self,
        java: JavaClient,
        nameserver: str,
        group: str,
        *,
        transaction: bool = False,
        compress_type: str | None = None,
        trace: bool = False,
        trace_topic: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            java,
            "producer",
            nameserver=nameserver,
            group=group,
            transaction=transaction,
            compressType=compress_type,
            trace=trace,
            traceTopic=trace_topic,
            options=options,
        )

    def send(
        self,
        *messages: Outgoing,
        mode: str = "sync",
        queue: QueueRef | None = None,
        select_by: str | None = None,
        timeout_ms: int = 30_000,
    ) -> list[Sent]:
        """Send messages one by one (mode sync or async); raise JavaError for the first that failed."""
        answers = self._send(messages, mode, queue, select_by, timeout_ms)
        for answer in answers:
            if "error" in answer:
                raise JavaError(answer["error"], answer["code"], answer["message"])
        return [Sent.read(answer) for answer in answers]

    def send_oneway(self, *messages: Outgoing, queue: QueueRef | None = None, select_by: str | None = None) -> None:
        """Send messages without waiting for an answer."""
        self._send(messages, "oneway", queue, select_by, 30_000)

    def send_batch(self, *messages: Outgoing, queue: QueueRef | None = None) -> Sent:
        """Send messages of one topic in one request."""
        answer = self.order("send.batch", messages=[each.write() for each in messages], queue=_written(queue))
        return Sent.read(answer)

    def send_in_transaction(self, message: Outgoing, *, local: str, checks: Sequence[str] = ()) -> Sent:
        """Send a half message (its keys identify it); the local outcome and the check-backs follow the script.

        States: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW, THROW. When `checks` are used up the answer is UNKNOW.
        """
        return Sent.read(self.order("send.transaction", message=message.write(), local=local, checks=list(checks)))

    def checks(self, count: int, *, timeout_ms: int) -> list[Received]:
        """Messages the broker has asked about, once there are `count` or the time is over."""
        return _received(
            self.order("send.checks", count=count, timeoutMs=timeout_ms, seconds_max=timeout_ms / 1e3 + 10)
        )

    def request(self, message: Outgoing, *, timeout_ms: int = 30_000) -> Received:
        """Send a request and return the reply that another client gives."""
        answer = self.order("request", message=message.write(), timeoutMs=timeout_ms, seconds_max=timeout_ms / 1e3 + 10)
        return Received.read(answer)

    def _send(
        self,
        messages: Sequence[Outgoing],
        mode: str,
        queue: QueueRef | None,
        select_by: str | None,
        timeout_ms: int,
    ) -> list[Any]:
        answers: list[Any] = self.order(
            "send",
            messages=[each.write() for each in messages],
            mode=mode,
            queue=_written(queue),
            selectBy=select_by,
            timeoutMs=timeout_ms,
        )
        return answers


class PushConsumer(_Running):
    """`DefaultMQPushConsumer` with a listener that keeps what it gets. Options are the client's bean properties:
    messageModel, consumeFromWhere, consumeTimestamp, maxReconsumeTimes, consumeThreadMin and so on."""

    def __init__(
        self,
        java: JavaClient,
        nameserver: str,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        orderly: bool = False,
        script: Script | None = None,
        strategy: str | None = None,
        trace: bool = False,
        trace_topic: str | None = None,
        reply_from: Producer | None = None,
        instance: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            java,
            "push",
            nameserver=nameserver,
            group=group,
            subscriptions=[each.write() for each in subscriptions],
            orderly=orderly,
            script=script.write() if script else None,
            strategy=strategy,
            trace=trace,
            traceTopic=trace_topic,
            replyFrom=reply_from.name if reply_from else None,
            instance=instance,
            options={"consumeThreadMin": 4, "consumeThreadMax": 4, **(options or {})},
        )
        if instance is not None:
            self._stop_mode = "fully"  # The next one of that name would get what is left of this one.

    def received(self, count: int = 0, *, timeout_ms: int = 0) -> list[Received]:
        """All messages so far, once there are `count` of them or the time is over; the caller checks the number."""
        answer = self.order("push.received", count=count, timeoutMs=timeout_ms, seconds_max=timeout_ms / 1e3 + 10)
        return _received(answer)

    def assignment(self, topic: str) -> list[QueueRef]:
        """The queues of a topic this consumer works on just now."""
        return _queues(self.order("push.assignment", topic=topic))

    def commit(self) -> None:
        """Send the offsets noted so far to the broker, ahead of the client's timer."""
        self.order("push.commit")

    def pause(self) -> None:
        self.order("push.pause")

    def resume(self) -> None:
        self.order("push.resume")


class LitePullConsumer(_Running):
    """`DefaultLitePullConsumer`; commits only when told to, unless `auto_commit`."""

    def __init__(
        self,
        java: JavaClient,
        nameserver: str,
        group: str,
        *,
        subscriptions: Sequence[Subscription] = (),
        auto_commit: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            java,
            "lite",
            nameserver=nameserver,
            group=group,
            subscriptions=[each.write() for each in subscriptions],
            autoCommit=auto_commit,
            options=options,
        )

    def queues(self, topic: str) -> list[QueueRef]:
        return _queues(self.order("lite.queues", topic=topic))

    def assign(self, queues: Sequence[QueueRef]) -> None:
        self.order("lite.assign", queues=[each.write() for each in queues])

    def assignment(self) -> list[QueueRef]:
        return _queues(self.order("lite.assignment"))

    def poll(self, *, timeout_ms: int = 1_000) -> list[Received]:
        return _received(self.order("lite.poll", timeoutMs=timeout_ms))

    def seek(self, queue: QueueRef, to: int | str) -> None:
        """Continue at an offset, or at `begin` or `end`."""
        self.order("lite.seek", queue=queue.write(), to=to)

    def commit(self) -> None:
        self.order("lite.commit")

    def committed(self, queue: QueueRef) -> int:
        offset: int = self.order("lite.committed", queue=queue.write())
        return offset

    def offset_for_timestamp(self, queue: QueueRef, timestamp_ms: int) -> int:
        offset: int = self.order("lite.offsetForTimestamp", queue=queue.write(), timestamp=timestamp_ms)
        return offset

    def pause(self, queues: Sequence[QueueRef]) -> None:
        self.order("lite.pause", queues=[each.write() for each in queues])

    def resume(self, queues: Sequence[QueueRef]) -> None:
        self.order("lite.resume", queues=[each.write() for each in queues])


class PullConsumer(_Running):
    """`DefaultMQPullConsumer`, the old kind that pulls queue by queue."""

    def __init__(
        self,
        java: JavaClient,
        nameserver: str,
        group: str,
        topics: Sequence[str] = (),
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(java, "pull", nameserver=nameserver, group=group, topics=list(topics), options=options)

    def queues(self, topic: str) -> list[QueueRef]:
        return _queues(self.order("pull.queues", topic=topic))

    def pull(
        self,
        queue: QueueRef,
        offset: int,
        *,
        count: int = 32,
        expression: str = "*",
        kind: str = "TAG",
        block: bool = False,
    ) -> Pulled:
        """Pull once; with `block` the broker holds the request until there is a message (or its limit is over)."""
        answer = self.order(
            "pull.pull",
            queue=queue.write(),
            offset=offset,
            count=count,
            expression=expression,
            type=kind,
            block=block,
        )
        return Pulled(
            status=answer["status"],
            next_offset=answer["nextBeginOffset"],
            min_offset=answer["minOffset"],
            max_offset=answer["maxOffset"],
            messages=_received(answer["messages"]),
        )

    def update_offset(self, queue: QueueRef, offset: int) -> None:
        """Set the group's offset and send it to the broker at once."""
        self.order("pull.update", queue=queue.write(), offset=offset)

    def fetch_offset(self, queue: QueueRef, *, from_store: bool = True) -> int:
        offset: int = self.order("pull.fetch", queue=queue.write(), fromStore=from_store)
        return offset

    def send_back(self, topic: str, offset_id: str, *, delay_level: int) -> None:
        """Ask the broker to deliver one message again to this group."""
        self.order("pull.back", topic=topic, msgId=offset_id, delayLevel=delay_level)


class Admin(_Running):
    """What any client may ask about topics, offsets and stored messages."""

    _stop_mode = "later"  # Nobody depends on it.

    def __init__(self, java: JavaClient, nameserver: str) -> None:
        super().__init__(java, "producer", nameserver=nameserver, group="interop-admin")

    def create_topic(self, key: str, topic: str, *, queues: int) -> None:
        """Create a topic on the brokers that hold the topic `key` (the cluster's or a broker's name)."""
        self.order("admin.createTopic", key=key, topic=topic, queues=queues)

    def max_offset(self, queue: QueueRef) -> int:
        offset: int = self.order("admin.maxOffset", queue=queue.write())
        return offset

    def min_offset(self, queue: QueueRef) -> int:
        offset: int = self.order("admin.minOffset", queue=queue.write())
        return offset

    def earliest_stored_at_ms(self, queue: QueueRef) -> int:
        time_ms: int = self.order("admin.earliest", queue=queue.write())
        return time_ms

    def search_offset(self, queue: QueueRef, timestamp_ms: int) -> int:
        offset: int = self.order("admin.searchOffset", queue=queue.write(), timestamp=timestamp_ms)
        return offset

    def view(self, topic: str, message_id: str) -> Received:
        """One message by its offset id or its unique id."""
        return Received.read(self.order("admin.view", topic=topic, msgId=message_id))

    def query(self, topic: str, key: str, *, count: int = 32, begin_ms: int = 0, end_ms: int = 2**62) -> list[Received]:
        return _received(self.order("admin.query", topic=topic, key=key, count=count, begin=begin_ms, end=end_ms))

    def route(self, topic: str) -> Mapping[str, Any]:
        """The topic's route as the client read it, by the names of RocketMQ."""
        route: Mapping[str, Any] = self.order("admin.route", topic=topic)
        return route


def _received(answer: Any) -> list[Received]:
    return [Received.read(each) for each in answer]


def _queues(answer: Any) -> list[QueueRef]:
    return sorted((QueueRef.read(each) for each in answer), key=lambda queue: (queue.broker_name, queue.queue_id))


def _written(queue: QueueRef | None) -> dict[str, object] | None:
    return queue.write() if queue is not None else None

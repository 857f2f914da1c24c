"""Our client on real RocketMQ clusters, 5.5.0 and 4.9.7."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

import kappamq
from kappamq import ConsumerSettings, LitePullConsumer, Message, ProducerSettings, PushConsumer, ReceivedMessage
from kappamq.client.blocking import Producer
from kappamq.errors import CallTimeout, InvalidMessage, NotFound, Refused, TopicNotFound, UsageError
from kappamq.model.properties import Name
from kappamq.model.record import decode_records
from kappamq.wire.headers import ResetOffsetRequest
from tests.interop.harness import JavaClient, Outgoing, Subscription
from tests.interop.rocketmq import Cluster
from tests.interop.support import FROM_FIRST, await_messages, await_queues, eventually, fresh
from tests.patience import PATIENT, SEND_MS

SECONDS_MAX = 120.0
# How long a pull waits at the broker, and less than the pause between two rounds of a consumer's balancing.
HELD_SECONDS = 15.0


@pytest.fixture(scope="module", params=["5.5.0", "4.9.7"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    name = "rocketmq_cluster" if request.param == "5.5.0" else "rocketmq_497_cluster"
    found = request.getfixturevalue(name)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer(cluster.nameserver, group=fresh("producers"), settings=PATIENT) as producer:
        yield producer


@pytest.fixture(scope="module")
def calls(cluster: Cluster) -> Iterator[kappamq.Cluster]:
    with kappamq.Cluster(cluster.nameserver) as calls:
        yield calls


def committed_sum(calls: kappamq.Cluster, topic: str, group: str) -> int:
    return sum(calls.committed_offset(queue, group) or 0 for queue in calls.queues_of(topic))


class Collector:
    """A handler that keeps what it gets and can be waited for."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = threading.Condition()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[ReceivedMessage]:
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.messages) >= count, timeout=SECONDS_MAX)
            assert enough, f"{len(self.messages)} of {count} messages came"
            return list(self.messages)


def test_receipts_views_and_queries(producer: Producer, calls: kappamq.Cluster) -> None:
    topic = fresh("topic")
    receipt = producer.send(Message(topic, b"hello", tags="new", keys=["k-1", "k-2"], properties={"a": "b"}, flag=7))
    assert receipt.is_ok
    message = calls.view_message(receipt.offset_id)
    assert (message.body, message.tags, message.keys, message.flag) == (b"hello", "new", ("k-1", "k-2"), 7)
    assert message.message_id == receipt.message_id
    assert message.offset_id == receipt.offset_id
    eventually(lambda: _total(calls, topic), lambda total: total == 1)  # A new topic's route takes a moment.
    found = eventually(lambda: calls.query_messages(topic, "k-2"), bool)
    assert [each.message_id for each in found] == [receipt.message_id]
    by_id = eventually(lambda: calls.query_messages(topic, receipt.message_id, by_unique_id=True), bool)
    assert [each.body for each in by_id] == [b"hello"]
    with pytest.raises(NotFound):
        calls.view_message("7F000001" + receipt.offset_id[8:16] + "0000FFFFFFFFFFF0")
    with pytest.raises(TopicNotFound):
        calls.queues_of(fresh("nothing"))


def test_batches_and_background_sends(producer: Producer, calls: kappamq.Cluster) -> None:
    topic = fresh("topic")
    receipts = producer.send_batch([Message(topic, b"%d" % n, keys=f"k{n}") for n in range(20)])
    assert [receipt.queue_offset for receipt in receipts] == list(range(20))
    assert calls.view_message(receipts[7].offset_id).body == b"7"
    futures = [producer.send_soon(Message(topic, b"soon")) for _ in range(200)]
    assert all(future.result(SECONDS_MAX).is_ok for future in futures)
    producer.send_one_way(Message(topic, b"one way"))
    eventually(lambda: sum(calls.max_offset(queue) for queue in calls.queues_of(topic)), lambda total: total == 221)


def test_raw_pulls_and_offsets(producer: Producer, calls: kappamq.Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queue = producer.send(Message(topic, b"0")).queue
    for n in range(1, 5):
        producer.send(Message(topic, b"%d" % n), queue=queue)
    raw = eventually(lambda: calls.pull_raw(queue, 1, group=group), lambda raw: raw.max_offset == 5)
    assert [message.body for message in decode_records(raw.body)] == [b"1", b"2", b"3", b"4"]
    assert (raw.status, raw.next_offset, raw.min_offset) == (kappamq.PullStatus.FOUND, 5, 0)
    assert calls.pull_raw(queue, 5, group=group).status is kappamq.PullStatus.NOTHING_NEW
    assert calls.pull_raw(queue, 99, group=group).status is kappamq.PullStatus.OFFSET_MOVED
    calls.commit_offset(queue, group, 3)
    assert calls.committed_offset(queue, group) == 3
    assert (calls.min_offset(queue), calls.max_offset(queue)) == (0, 5)
    assert calls.search_offset(queue, 0) == 0


@pytest.mark.parametrize("method", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_bodies_come_back_whole(cluster: Cluster, method: str) -> None:
    topic, body = fresh("topic"), bytes(range(256)) * 40
    settings = ProducerSettings(compression=kappamq.Compression[method], send_timeout_ms=SEND_MS)
    with Producer(cluster.nameserver, group=fresh("producers"), settings=settings) as producer:
        producer.send(Message(topic, body))
    with LitePullConsumer(cluster.nameserver, group=fresh("group"), topics=[topic], start_from="first") as consumer:
        assert next(iter(consumer)).body == body


def test_pushed_messages_are_retried_and_committed(
    cluster: Cluster, producer: Producer, calls: kappamq.Cluster
) -> None:
    topic, group = fresh("topic"), fresh("group")
    for n in range(20):
        producer.send(Message(topic, b"%d" % n, keys=f"k{n}"))
    seen, collector = Counter[bytes](), Collector()
    with PushConsumer(cluster.nameserver, group=group, start_from="first") as consumer:

        @consumer.on(topic)
        def handle(message: ReceivedMessage) -> None:
            seen[message.body] += 1
            if message.body == b"7" and seen[b"7"] == 1:
                raise kappamq.RetryLater(delay_level=1)
            collector(message)

        consumer.start()
        messages = collector.wait_for(20)
    (retried,) = [message for message in messages if message.retry_count]
    assert (retried.body, retried.topic, retried.retry_count, retried.keys) == (b"7", topic, 1, ("k7",))
    assert retried.properties[Name.RETRY_TOPIC] == topic
    assert len({message.body for message in messages}) == 20
    assert committed_sum(calls, topic, group) == 20


def test_messages_that_fail_too_often_become_dead_letters(cluster: Cluster, producer: Producer) -> None:
    topic, group = fresh("topic"), fresh("group")
    producer.send(Message(topic, b"poison"))
    producer.send(Message(topic, b"hopeless"))
    attempts = Counter[bytes]()
    with PushConsumer(cluster.nameserver, group=group, start_from="first", retries_max=1) as consumer:

        @consumer.on(topic)
        def handle(message: ReceivedMessage) -> None:
            attempts[message.body] += 1
            raise kappamq.RetryLater(delay_level=-1 if message.body == b"hopeless" else 1)

        consumer.start()
        dead = f"%DLQ%{group}"
        with kappamq.Cluster(cluster.nameserver) as calls:
            eventually(lambda: _total(calls, dead), lambda total: total == 2, seconds_max=SECONDS_MAX)
    assert attempts == {b"poison": 2, b"hopeless": 1}


def _total(calls: kappamq.Cluster, topic: str) -> int:
    try:
        return sum(calls.max_offset(queue) for queue in calls.queues_of(topic))
    except TopicNotFound:
        return 0


def test_ordered_consumption_keeps_the_order_of_each_key(
    cluster: Cluster, producer: Producer, calls: kappamq.Cluster
) -> None:
    topic, group = fresh("topic"), fresh("group")
    for n in range(60):
        producer.send(Message(topic, b"%d" % n), sharding_key=f"key-{n % 5}")
    order: dict[str, list[int]] = defaultdict(list)
    done = threading.Event()
    with PushConsumer(cluster.nameserver, group=group, start_from="first", ordered=True) as consumer:

        @consumer.on(topic)
        def handle(message: ReceivedMessage) -> None:
            if message.body == b"31" and message.retry_count < 2:
                raise kappamq.RetryLater(pause_ms=100)
            order[message.properties[Name.SHARDING_KEY]].append(int(message.body))
            if sum(map(len, order.values())) == 60:
                done.set()

        consumer.start()
        assert done.wait(SECONDS_MAX), order
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert committed_sum(calls, topic, group) == 60


@pytest.mark.parametrize("ordered", [False, True])
def test_members_share_take_over_and_lose_nothing(cluster: Cluster, producer: Producer, ordered: bool) -> None:
    topic, group = fresh("topic"), fresh("group")
    collector = Collector()
    producer.send(Message(topic, b"first"))

    def share(consumer: PushConsumer) -> int:
        return sum(queue.topic == topic for queue in consumer.assignment())

    def member() -> PushConsumer:
        return PushConsumer(cluster.nameserver, group=group, start_from="first", ordered=ordered)

    with member() as first:
        first.add_handler(topic, collector)
        first.start()
        eventually(lambda: share(first), lambda count: count == 4)
        with member() as second:
            second.add_handler(topic, collector)
            second.start()
            eventually(lambda: (share(first), share(second)), lambda shares: shares == (2, 2))
            for n in range(100):
                producer.send(Message(topic, b"%d" % n))
        for n in range(100, 200):
            producer.send(Message(topic, b"%d" % n))
        eventually(lambda: share(first), lambda count: count == 4)
        wanted = {b"first", *(b"%d" % n for n in range(200))}
        eventually(lambda: {message.body for message in list(collector.messages)}, lambda got: got == wanted)


def test_a_reset_group_goes_on_within_seconds(cluster: Cluster, producer: Producer) -> None:
    topic, group = fresh("topic"), fresh("group")
    collector = Collector()
    for n in range(8):
        producer.send(Message(topic, b"%d" % n))
    with PushConsumer(cluster.nameserver, group=group, start_from="first") as consumer:
        consumer.add_handler(topic, collector)
        consumer.start()
        collector.wait_for(8)
        # RocketMQ 4.9 resets only queues whose progress it has heard of.
        consumer._thread.call(_persist)
        request = ResetOffsetRequest(topic=topic, group=group, timestamp=0, is_force=True)
        consumer._thread.call(lambda front: front.cluster.call(cluster.broker_address, request))
        started = time.monotonic()
        # RocketMQ 5 tells a consumer with its next pull, so pulls that wait at the broker are woken here.
        for queue in producer.queues_of(topic):
            producer.send(Message(topic, b"new"), queue=queue)

        def counts() -> dict[bytes, int]:
            return Counter(message.body for message in list(collector.messages))

        eventually(counts, lambda seen: all(seen[b"%d" % n] == 2 for n in range(8)) and seen[b"new"] >= 4)
        assert time.monotonic() - started < HELD_SECONDS


async def _persist(front: kappamq.aio.PushConsumer) -> None:
    await front._store.persist(front.assignment())


def test_lite_pull_seeks_and_commits(cluster: Cluster, producer: Producer, calls: kappamq.Cluster) -> None:
    topic, group = fresh("topic"), fresh("group")
    queue = producer.send(Message(topic, b"0")).queue
    time.sleep(0.05)
    middle = datetime.now().astimezone()
    time.sleep(0.05)
    for n in range(1, 10):
        producer.send(Message(topic, b"%d" % n), queue=queue)
    with LitePullConsumer(cluster.nameserver, group=group, topics=[topic], start_from="first") as consumer:
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 4:
                break
        assert bodies == [b"0", b"1", b"2", b"3"]
    assert calls.committed_offset(queue, group) == 4
    with LitePullConsumer(cluster.nameserver, group=group, topics=[topic]) as consumer:
        assert next(iter(consumer)).body == b"4"
        # RocketMQ 4.9 answers with the earlier neighbour of a time between two messages.
        wanted = {1} if cluster.version.startswith("5") else {0, 1}
        eventually(lambda: consumer.offset_for_time(queue, middle), lambda offset: offset in wanted)
        consumer.seek(queue, 8)
        assert [message.body for message in consumer.poll(timeout=SECONDS_MAX)] == [b"8", b"9"]
        consumer.seek_to_begin(queue)
        assert consumer.poll(timeout=SECONDS_MAX)[0].body == b"0"
        consumer.commit({queue: 6})
    assert calls.committed_offset(queue, group) in (6, 10)
    with LitePullConsumer(cluster.nameserver, group=fresh("group"), queues=[queue], start_from="first") as consumer:
        assert consumer.assignment() == {queue}
        assert consumer.poll(timeout=SECONDS_MAX)[0].body == b"0"


def test_tags_and_sql_choose_messages(cluster: Cluster, producer: Producer) -> None:
    topic = fresh("topic")
    for n in range(6):
        producer.send(Message(topic, b"%d" % n, tags="even" if n % 2 == 0 else "odd", properties={"size": str(n)}))
    for kind, expression, wanted in (
        ("TAG", "even || other", {b"0", b"2", b"4"}),
        ("SQL92", "size > 3 AND TAGS = 'odd'", {b"5"}),
    ):
        collector = Collector()
        with PushConsumer(cluster.nameserver, group=fresh("group"), start_from="first") as consumer:
            consumer.add_handler(topic, collector, expression, expression_type=kind)
            consumer.start()
            assert {message.body for message in collector.wait_for(len(wanted))} == wanted


def test_broadcasting_reaches_every_member_and_remembers(cluster: Cluster, producer: Producer, tmp_path: Path) -> None:
    topic, group = fresh("topic"), fresh("group")
    producer.send(Message(topic, b"1"))

    def member(number: int) -> PushConsumer:
        return PushConsumer(
            cluster.nameserver,
            group=group,
            model=kappamq.MessageModel.BROADCASTING,
            start_from="first",
            settings=ConsumerSettings(offsets_directory=tmp_path),
            cluster_settings=kappamq.ClusterSettings(instance=f"member-{number}"),
        )

    collectors = [Collector(), Collector()]
    with member(0) as first, member(1) as second:
        for consumer, collector in ((first, collectors[0]), (second, collectors[1])):
            consumer.add_handler(topic, collector)
            consumer.start()
        producer.send(Message(topic, b"2"))
        for collector in collectors:
            assert {message.body for message in collector.wait_for(2)} == {b"1", b"2"}
    producer.send(Message(topic, b"3"))
    again = Collector()
    with member(0) as first:
        first.add_handler(topic, again)
        first.start()
        assert [message.body for message in again.wait_for(1)] == [b"3"]


def test_delayed_messages_wait(cluster: Cluster, producer: Producer) -> None:
    topic = fresh("topic")
    collector = Collector()
    producer.send(Message(topic, b"now"))
    with PushConsumer(cluster.nameserver, group=fresh("group"), start_from="first") as consumer:
        consumer.add_handler(topic, collector)
        consumer.start()
        collector.wait_for(1)
        started = time.monotonic()
        producer.send(Message(topic, b"later"), delay_level=1)
        collector.wait_for(2)
        assert time.monotonic() - started > 0.8
        if cluster.version.startswith("5"):
            started = time.monotonic()
            receipt = producer.send(Message(topic, b"timed"), delay=2)
            assert receipt.recall_handle
            collector.wait_for(3)
            assert time.monotonic() - started > 1


def test_a_timed_message_can_be_taken_back(cluster: Cluster, producer: Producer) -> None:
    if not cluster.version.startswith("5"):
        pytest.skip("RocketMQ 4 delivers at no instant")
    topic = fresh("topic")
    collector = Collector()
    plain = producer.send(Message(topic, b"plain"))
    regretted = producer.send(Message(topic, b"regretted"), delay=8)
    kept = producer.send(Message(topic, b"kept"), delay=10)
    assert producer.recall(regretted) == regretted.message_id
    with PushConsumer(cluster.nameserver, group=fresh("group"), start_from="first") as consumer:
        consumer.add_handler(topic, collector)
        consumer.start()
        assert [message.body for message in collector.wait_for(2)] == [b"plain", b"kept"]
    with pytest.raises(Refused, match="recall failed"):
        producer.recall(kept)
    with pytest.raises(UsageError, match="only those sent with delay"):
        producer.recall(plain)


def test_transactions_are_seen_only_when_committed(cluster: Cluster, producer: Producer) -> None:
    topic = fresh("topic")
    collector, asked = Collector(), Collector()

    @producer.on_check
    def check(message: ReceivedMessage) -> kappamq.Decision:
        asked(message)
        return kappamq.Decision.COMMIT

    for body, decision in (
        (b"committed", kappamq.Decision.COMMIT),
        (b"rolled back", kappamq.Decision.ROLLBACK),
        (b"asked", kappamq.Decision.UNKNOWN),
    ):
        receipt = producer.send_in_transaction(Message(topic, body), lambda _, decision=decision: decision)  # type: ignore[misc]
        assert receipt.decision is decision
    with PushConsumer(cluster.nameserver, group=fresh("group"), start_from="first") as consumer:
        consumer.add_handler(topic, collector)
        consumer.start()
        assert {message.body for message in collector.wait_for(2)} == {b"committed", b"asked"}
    assert [message.body for message in asked.wait_for(1)][:1] == [b"asked"]


def test_requests_get_replies(cluster: Cluster, producer: Producer) -> None:
    topic = fresh("topic")
    producer.send(Message(topic, b"make the topic"))
    with PushConsumer(cluster.nameserver, group=fresh("group"), start_from="first") as consumer:

        @consumer.on(topic)
        def answer(message: ReceivedMessage) -> None:
            if Name.CORRELATION_ID in message.properties and message.body != b"silence":
                producer.reply(message, message.body.upper())

        consumer.start()
        assert producer.request(Message(topic, b"question"), timeout=SECONDS_MAX).body == b"QUESTION"
        with pytest.raises(CallTimeout, match="no reply"):
            producer.request(Message(topic, b"silence"), timeout=3)


def test_a_java_consumer_reads_what_we_send(cluster: Cluster, producer: Producer, java_client_550: JavaClient) -> None:
    topic = fresh("topic")
    producer.send(Message(topic, b"plain", tags="t", keys=["a", "b"], properties={"p": "q"}))
    producer.send(Message(topic, b"large" * 2000))
    producer.send_batch([Message(topic, b"batched", tags="t")])
    with java_client_550.push_consumer(
        cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
    ) as consumer:
        await_queues(consumer, topic, 4)
        received = {each.body: each for each in await_messages(consumer, 3)}
    assert set(received) == {b"plain", b"large" * 2000, b"batched"}
    assert received[b"plain"].tags == "t"
    assert received[b"plain"].keys == "a b"


def test_we_read_what_java_sends_in_one_group_with_java(
    cluster: Cluster, producer: Producer, java_client_550: JavaClient
) -> None:
    topic, group = fresh("topic"), fresh("group")
    producer.send(Message(topic, b"make the topic"))
    collector = Collector()
    with PushConsumer(cluster.nameserver, group=group, start_from="first") as ours:
        ours.add_handler(topic, collector)
        ours.start()
        eventually(lambda: sum(queue.topic == topic for queue in ours.assignment()), lambda count: count == 4)
        with java_client_550.push_consumer(
            cluster.nameserver, group, [Subscription(topic=topic)], options=FROM_FIRST
        ) as theirs:
            eventually(lambda: len(theirs.assignment(topic)), lambda count: count == 2)
            eventually(lambda: sum(queue.topic == topic for queue in ours.assignment()), lambda count: count == 2)
            with java_client_550.producer(cluster.nameserver) as java_producer:
                java_producer.send(*(Outgoing(topic=topic, body=b"%d" % n) for n in range(20)))
            wanted = {b"%d" % n for n in range(20)}

            def both() -> set[bytes]:
                return {each.body for each in theirs.received()} | {each.body for each in list(collector.messages)}

            eventually(both, lambda got: got >= wanted)


def test_illegal_messages_are_refused_before_sending(producer: Producer) -> None:
    with pytest.raises(InvalidMessage):
        producer.send(Message(fresh("topic"), b""))

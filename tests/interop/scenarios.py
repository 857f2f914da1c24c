"""What a Java application does all day, as functions of a client and a cluster.

The same scenarios run against the real RocketMQ (which proves the scenarios) and against ours (which proves us). Each
makes topics and groups of its own, so that they can share a cluster and run in any order. Message kinds with a life of
their own (retries, delays, transactions, filters on properties, requests) are in `kind_scenarios.py`.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

import pytest

from tests.interop.harness import (
    JavaClient,
    JavaError,
    LitePullConsumer,
    Outgoing,
    PushConsumer,
    QueueRef,
    Received,
    Script,
    Subscription,
)
from tests.interop.support import (
    ANNOUNCED_SECONDS_MAX,
    FROM_FIRST,
    AnyCluster,
    await_committed,
    await_messages,
    await_queues,
    bodies,
    cluster_name,
    eventually,
    fresh,
    make_topic,
    queues_of,
    topic_with_admin,
)

Scenario = Callable[[JavaClient, AnyCluster], None]

COMPRESSION_BITS: Final = {"ZLIB": 0x3 << 8, "LZ4": 0x1 << 8, "ZSTD": 0x2 << 8}


def numbered(topic: str, count: int, *, tags: str | None = None) -> list[Outgoing]:
    return [Outgoing(topic=topic, body=f"body {n}".encode(), keys=f"key{n}", tags=tags) for n in range(count)]


def send_sync(java: JavaClient, cluster: AnyCluster) -> None:
    """Every send is acknowledged with ids and an offset, and every field arrives as it was sent."""
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        text = "Grüße, 世界 🚀"
        before_ms = int(time.time() * 1000)
        [sent] = producer.send(
            Outgoing(topic=topic, body=text.encode(), tags="TagA", keys="k1", flag=7, properties={"color": "grün"})
        )
        assert sent.status == "SEND_OK"
        assert sent.queue_offset == 0
        assert sent.region_id == "DefaultRegion"
        assert sent.offset_id is not None
        assert sent.unique_id is not None
        found = admin.view(topic, sent.offset_id)
        assert (found.topic, found.body, found.tags, found.keys, found.flag) == (topic, text.encode(), "TagA", "k1", 7)
        assert (found.queue_id, found.queue_offset, found.retry_count) == (sent.queue.queue_id, 0, 0)
        assert found.unique_id == sent.unique_id
        assert found.properties["color"] == "grün"
        assert found.properties["WAIT"] == "true"
        assert found.body_crc == zlib.crc32(text.encode()) & 0x7FFFFFFF
        assert before_ms <= found.born_at_ms <= found.stored_at_ms + 1000
        assert found.log_offset == int(sent.offset_id[-16:], 16)
        route = admin.route(topic)
        assert found.store_host == route["brokerDatas"][0]["brokerAddrs"]["0"]
        assert len({each.unique_id for each in producer.send(*numbered(topic, 20))}) == 20


def send_spreads_over_queues(java: JavaClient, cluster: AnyCluster) -> None:
    """A producer takes the queues of a topic in turn, and offsets of each queue are dense."""
    with topic_with_admin(java, cluster, queues=4) as (topic, _), java.producer(cluster.nameserver) as producer:
        sent = producer.send(*numbered(topic, 16))
        assert Counter(each.queue.queue_id for each in sent) == {0: 4, 1: 4, 2: 4, 3: 4}
        for queue_id in range(4):
            assert [each.queue_offset for each in sent if each.queue.queue_id == queue_id] == [0, 1, 2, 3]


def send_creates_topic(java: JavaClient, cluster: AnyCluster) -> None:
    """The first send to an unknown topic makes it, with four queues."""
    topic = fresh("automatic")
    with java.producer(cluster.nameserver) as producer, java.admin(cluster.nameserver) as admin:
        [sent] = producer.send(Outgoing(topic=topic))
        assert sent.status == "SEND_OK"
        queues = eventually(lambda: _queue_count(admin.route, topic), lambda count: count > 0)
        assert queues == 4


def send_async(java: JavaClient, cluster: AnyCluster) -> None:
    """A hundred sends in flight at once are all acknowledged, each exactly once."""
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        sent = producer.send(*numbered(topic, 100), mode="async")
        assert {each.status for each in sent} == {"SEND_OK"}
        assert len({(each.queue, each.queue_offset) for each in sent}) == 100
        assert sum(admin.max_offset(queue) for queue in queues_of(admin, topic)) == 100


def send_oneway(java: JavaClient, cluster: AnyCluster) -> None:
    """Sends without an answer are stored all the same."""
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        producer.send_oneway(*numbered(topic, 20))
        eventually(lambda: sum(admin.max_offset(queue) for queue in queues_of(admin, topic)), lambda count: count == 20)


def send_batch(java: JavaClient, cluster: AnyCluster) -> None:
    """A batch goes to one queue, in order; its offset ids are listed and each can be viewed."""
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        sent = producer.send_batch(*numbered(topic, 10, tags="B"))
        assert (sent.status, sent.queue_offset) == ("SEND_OK", 0)
        assert sent.offset_id is not None
        assert sent.unique_id is not None
        offset_ids = sent.offset_id.split(",")
        unique_ids = sent.unique_id.split(",")
        assert len(offset_ids) == len(unique_ids) == 10
        for number, offset_id in enumerate(offset_ids):
            found = admin.view(topic, offset_id)
            assert (found.body, found.keys, found.tags) == (f"body {number}".encode(), f"key{number}", "B")
            assert (found.queue_id, found.queue_offset) == (sent.queue.queue_id, number)
            assert found.unique_id == unique_ids[number]
        again = producer.send_batch(*numbered(topic, 5), queue=sent.queue)
        assert again.queue_offset == 10
        with java.push_consumer(
            cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
        ) as consumer:
            await_messages(consumer, 15)


def send_to_queue_of_key(java: JavaClient, cluster: AnyCluster) -> None:
    """A queue selector keeps messages of one key in one queue, and orderly consumption keeps their order."""
    with topic_with_admin(java, cluster) as (topic, _), java.producer(cluster.nameserver) as producer:
        queue_of: dict[str, set[int]] = defaultdict(set)
        for step in range(5):
            for name in ("order-1", "order-2", "order-3"):
                message = Outgoing(topic=topic, keys=name, body=str(step).encode())
                [sent] = producer.send(message, select_by=name)
                queue_of[name].add(sent.queue.queue_id)
        assert all(len(queue_ids) == 1 for queue_ids in queue_of.values()), queue_of
        with java.push_consumer(
            cluster.nameserver, fresh("group"), [Subscription(topic=topic)], orderly=True, options=FROM_FIRST
        ) as consumer:
            received = await_messages(consumer, 15)
        for name in queue_of:
            assert [each.body for each in received if each.keys == name] == [b"0", b"1", b"2", b"3", b"4"]


def send_to_given_queue(java: JavaClient, cluster: AnyCluster) -> None:
    """A named queue is used whatever the mode; a queue that does not exist is refused."""
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        queue = queues_of(admin, topic)[2]
        [first] = producer.send(Outgoing(topic=topic), queue=queue)
        [second] = producer.send(Outgoing(topic=topic), queue=queue, mode="async")
        producer.send_oneway(Outgoing(topic=topic), queue=queue)
        assert (first.queue, first.queue_offset) == (queue, 0)
        assert (second.queue, second.queue_offset) == (queue, 1)
        eventually(lambda: admin.max_offset(queue), lambda offset: offset == 3)
        with pytest.raises(JavaError) as refused:
            producer.send(Outgoing(topic=topic), queue=QueueRef(topic, queue.broker_name, 99))
        assert (refused.value.kind, refused.value.code) == ("MQBrokerException", 29)


def big_body_is_compressed(java: JavaClient, cluster: AnyCluster) -> None:
    """Bodies over the limit travel compressed in each of the three ways, and arrive as they were."""
    body = b"".join(b"%08d," % random.Random(7).randrange(10**8) for _ in range(40)) * 300
    with topic_with_admin(java, cluster, queues=1) as (topic, admin):
        for kind, bits in COMPRESSION_BITS.items():
            with java.producer(cluster.nameserver, fresh("producers"), compress_type=kind) as producer:
                [sent] = producer.send(Outgoing(topic=topic, body=body, keys=kind))
            assert sent.offset_id is not None
            found = admin.view(topic, sent.offset_id)
            assert found.body == body
            # RocketMQ: a 5.x client clears the lowest bit (compressed) when it has unpacked the body, 4.9 leaves it.
            assert found.sys_flag & (0x7 << 8) == bits
            assert found.store_size < len(body) // 4
        with java.push_consumer(
            cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
        ) as consumer:
            assert {each.body for each in await_messages(consumer, 3)} == {body}
        with java.producer(
            cluster.nameserver, fresh("producers"), options={"compressMsgBodyOverHowmuch": 2**22}
        ) as producer:
            [plain] = producer.send(Outgoing(topic=topic, body=body))
        assert plain.offset_id is not None
        assert admin.view(topic, plain.offset_id).store_size > len(body)


def too_big_is_refused(java: JavaClient, cluster: AnyCluster) -> None:
    """A message over 4 MiB is refused with code 13, and the producer works on."""
    with topic_with_admin(java, cluster, queues=1) as (topic, _):
        options = {"maxMessageSize": 2**24, "compressMsgBodyOverHowmuch": 2**24}
        with java.producer(cluster.nameserver, fresh("producers"), options=options) as producer:
            with pytest.raises(JavaError) as refused:
                producer.send(Outgoing(topic=topic, body=b"x" * (4 * 2**20 + 1)))
            assert (refused.value.kind, refused.value.code) == ("MQBrokerException", 13)
            assert producer.send(Outgoing(topic=topic))[0].queue_offset == 0


def push_concurrent(java: JavaClient, cluster: AnyCluster) -> None:
    """A push consumer gets what was there and what comes, once each, and has it all committed when it stops."""
    group = fresh("group")
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        producer.send(*numbered(topic, 30))
        with java.push_consumer(cluster.nameserver, group, [Subscription(topic=topic)], options=FROM_FIRST) as consumer:
            await_messages(consumer, 30)
            sent_at_ms = int(time.time() * 1000)
            producer.send(Outgoing(topic=topic, body=b"late"))
            received = await_messages(consumer, 31)
            assert received[-1].body == b"late"
            assert received[-1].received_at_ms is not None
            # The broker wakes a waiting pull; it does not let it wait for its limit (15 s).
            assert received[-1].received_at_ms - sent_at_ms < 12_000
            await_committed([consumer], cluster.nameserver, group, admin, topic)
        assert {each.outcome for each in received} == {"SUCCESS"}
        assert len({(each.queue_id, each.queue_offset) for each in received}) == 31


def push_orderly(java: JavaClient, cluster: AnyCluster) -> None:
    """An orderly listener that asks for a pause gets the same message again before any later one of that queue."""
    with topic_with_admin(java, cluster, queues=2) as (topic, admin), java.producer(cluster.nameserver) as producer:
        for queue in queues_of(admin, topic):
            for step in range(4):
                producer.send(Outgoing(topic=topic, keys=f"{queue.queue_id}/{step}"), queue=queue)
        with java.push_consumer(
            cluster.nameserver,
            fresh("group"),
            [Subscription(topic=topic)],
            orderly=True,
            script=Script(fail={"0/1": 2}, how="SUSPEND"),
            options={**FROM_FIRST, "suspendCurrentQueueTimeMillis": 100},
        ) as consumer:
            received = await_messages(consumer, 10)
        keys = {queue_id: [each.keys for each in received if each.queue_id == queue_id] for queue_id in (0, 1)}
        assert keys == {0: ["0/0", "0/1", "0/1", "0/1", "0/2", "0/3"], 1: ["1/0", "1/1", "1/2", "1/3"]}


def push_broadcasting(java: JavaClient, cluster: AnyCluster) -> None:
    """Each member of a broadcasting group gets every message; progress stays with the client."""
    options = {**FROM_FIRST, "messageModel": "BROADCASTING"}
    group = fresh("group")
    with topic_with_admin(java, cluster, queues=2) as (topic, _), java.producer(cluster.nameserver) as producer:
        producer.send(*numbered(topic, 6))
        subscriptions = [Subscription(topic=topic)]
        with (
            java.push_consumer(cluster.nameserver, group, subscriptions, options=options) as one,
            java.push_consumer(cluster.nameserver, group, subscriptions, options=options, instance=group) as two,
        ):
            assert bodies(await_messages(one, 6)) == bodies(await_messages(two, 6))
            assert len(one.assignment(topic)) == len(two.assignment(topic)) == 2
        producer.send(Outgoing(topic=topic, body=b"later"))
        with java.push_consumer(cluster.nameserver, group, subscriptions, options=options, instance=group) as two:
            assert bodies(await_messages(two, 1)) == [b"later"]


def push_tag_filter(java: JavaClient, cluster: AnyCluster) -> None:
    """Only the subscribed tags are delivered, also when another tag has the same hash."""
    with topic_with_admin(java, cluster) as (topic, _), java.producer(cluster.nameserver) as producer:
        for tag in ("Aa", "BB", "C", "D", None):  # "Aa" and "BB" have one hash code in Java.
            producer.send(*(Outgoing(topic=topic, tags=tag, body=f"{tag} {n}".encode()) for n in range(4)))
        with java.push_consumer(
            cluster.nameserver,
            fresh("group"),
            [Subscription(topic=topic, expression="Aa || C")],
            options=FROM_FIRST,
        ) as consumer:
            received = await_messages(consumer, 8)
            producer.send(Outgoing(topic=topic, tags="D"), Outgoing(topic=topic, tags="C", body=b"C last"))
            received = await_messages(consumer, 9)
        assert Counter(each.tags for each in received) == {"Aa": 4, "C": 5}


def push_pause_and_threads(java: JavaClient, cluster: AnyCluster) -> None:
    """A paused consumer gets nothing until it is resumed; one thread means one thread; batches reach the listener."""
    with topic_with_admin(java, cluster, queues=1) as (topic, _), java.producer(cluster.nameserver) as producer:
        with java.push_consumer(
            cluster.nameserver,
            fresh("group"),
            [Subscription(topic=topic)],
            options={**FROM_FIRST, "consumeThreadMin": 1, "consumeThreadMax": 1, "consumeMessageBatchMaxSize": 8},
        ) as consumer:
            await_queues(consumer, topic, 1)
            producer.send(Outgoing(topic=topic))
            await_messages(consumer, 1)
            consumer.pause()
            producer.send(*numbered(topic, 10))  # One pull may still be on its way and bring the first of these.
            assert len(consumer.received(11, timeout_ms=1500)) < 11
            consumer.resume()
            received = await_messages(consumer, 11)
        assert len({each.thread for each in received}) == 1


def push_from_timestamp(java: JavaClient, cluster: AnyCluster) -> None:
    """Consumers that start by time get the messages from that time on: one that seeks, and a new group that pushes."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        [queue] = queues_of(admin, topic)
        [old] = producer.send(Outgoing(topic=topic, body=b"old"))
        assert old.offset_id is not None
        old_at_ms = admin.view(topic, old.offset_id).stored_at_ms
        eventually(lambda: int(time.time() * 1000), lambda now_ms: now_ms > old_at_ms + 20)
        producer.send(Outgoing(topic=topic, body=b"new"))
        with java.lite_pull_consumer(cluster.nameserver, fresh("group")) as lite:
            lite.assign([queue])
            lite.seek(queue, lite.offset_for_timestamp(queue, old_at_ms + 10))
            assert [each.body for each in poll(lite, 1)] == [b"new"]


def push_new_group_from_timestamp(java: JavaClient, cluster: AnyCluster) -> None:
    """A push consumer of a new group with CONSUME_FROM_TIMESTAMP reads a topic that is still whole from its beginning.

    RocketMQ: the broker answers 0 for a group without offsets while a queue has its first message, in memory; so the
    client has no reason to ask for the time.
    """
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        old = producer.send(*numbered(topic, 3))
        assert old[-1].offset_id is not None
        # The client knows whole seconds only, in local time.
        second = admin.view(topic, old[-1].offset_id).stored_at_ms // 1000 + 1
        eventually(lambda: int(time.time() * 1000), lambda now_ms: now_ms > second * 1000 + 20)
        producer.send(Outgoing(topic=topic, body=b"new"), Outgoing(topic=topic, body=b"newer"))
        options: dict[str, object] = {
            "consumeFromWhere": "CONSUME_FROM_TIMESTAMP",
            "consumeTimestamp": time.strftime("%Y%m%d%H%M%S", time.localtime(second)),
        }
        group = fresh("group")
        with java.push_consumer(cluster.nameserver, group, [Subscription(topic=topic)], options=options) as consumer:
            received = await_messages(consumer, 5)
        assert [each.queue_offset for each in sorted(received, key=lambda each: each.queue_offset)] == list(range(5))


def push_allocation_strategies(java: JavaClient, cluster: AnyCluster) -> None:
    """Each allocation strategy gives two members disjoint shares that cover the topic."""
    with topic_with_admin(java, cluster, queues=8) as (topic, _):
        for strategy in ("AllocateMessageQueueAveragelyByCircle", "AllocateMessageQueueConsistentHash"):
            group = fresh("group")
            subscriptions = [Subscription(topic=topic)]
            with (
                java.push_consumer(cluster.nameserver, group, subscriptions, strategy=strategy) as one,
                java.push_consumer(cluster.nameserver, group, subscriptions, strategy=strategy) as two,
            ):
                eventually(
                    lambda one=one, two=two: (one.assignment(topic), two.assignment(topic)),  # type: ignore[misc]
                    lambda shares: len(shares[0] + shares[1]) == 8 == len({*shares[0], *shares[1]}),
                )


def members_share_queues(java: JavaClient, cluster: AnyCluster) -> None:
    """Two members split the queues at once, and when one leaves the other takes over, long before its 20 s timer."""
    group = fresh("group")
    with topic_with_admin(java, cluster, queues=4) as (topic, admin), java.producer(cluster.nameserver) as producer:
        subscriptions = [Subscription(topic=topic)]

        def announced(member: PushConsumer, count: int) -> list[QueueRef]:
            return await_queues(member, topic, count, seconds_max=ANNOUNCED_SECONDS_MAX)

        with java.push_consumer(cluster.nameserver, group, subscriptions, options=FROM_FIRST) as one:
            await_queues(one, topic, 4)
            two = java.push_consumer(cluster.nameserver, group, subscriptions, options=FROM_FIRST)
            with two:
                shares = [queue for member in (one, two) for queue in announced(member, 2)]
                assert len(set(shares)) == 4
                producer.send(*numbered(topic, 16))
                eventually(lambda: len(one.received()) + len(two.received()), lambda count: count == 16)
                assert len(one.received()) == len(two.received()) == 8
                await_committed([one, two], cluster.nameserver, group, admin, topic)
            announced(one, 4)
            producer.send(*numbered(topic, 8))
            await_messages(one, 16)


def offsets_survive_restart(java: JavaClient, cluster: AnyCluster) -> None:
    """A group that comes back goes on where it was, with nothing twice and nothing lost."""
    group = fresh("group")
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        producer.send(*numbered(topic, 12))
        subscriptions = [Subscription(topic=topic)]
        with java.push_consumer(cluster.nameserver, group, subscriptions, options=FROM_FIRST) as consumer:
            await_messages(consumer, 12)
            await_committed([consumer], cluster.nameserver, group, admin, topic)
        producer.send(*(Outgoing(topic=topic, body=b"while away") for _ in range(5)))
        with java.push_consumer(cluster.nameserver, group, subscriptions, options=FROM_FIRST) as consumer:
            assert {each.body for each in await_messages(consumer, 5)} == {b"while away"}
            producer.send(Outgoing(topic=topic, body=b"back"))
            assert await_messages(consumer, 6)[-1].body == b"back"


def lite_pull(java: JavaClient, cluster: AnyCluster) -> None:
    """Poll, commit, seek, pause and resume; committed offsets are those of the broker."""
    group = fresh("group")
    with topic_with_admin(java, cluster, queues=2) as (topic, admin), java.producer(cluster.nameserver) as producer:
        producer.send(*numbered(topic, 20))
        queues = queues_of(admin, topic)
        with java.lite_pull_consumer(cluster.nameserver, group, options=FROM_FIRST) as lite:
            assert lite.queues(topic) == queues
            # No seek at once: a 5.x client then interrupts its own first pull, and may hit that of the other queue.
            lite.assign(queues)
            assert len({each.unique_id for each in poll(lite, 20)}) == 20
            lite.commit()
            # RocketMQ: lite commits are one-way, so another reader may see them a moment later.
            eventually(lambda: [lite.committed(queue) for queue in queues], lambda offsets: offsets == [10, 10])
            lite.seek(queues[0], 7)
            assert sorted(each.queue_offset for each in poll(lite, 3)) == [7, 8, 9]
            lite.seek(queues[0], "end")
            assert lite.poll(timeout_ms=300) == []
        with java.lite_pull_consumer(cluster.nameserver, fresh("group")) as lite:
            lite.assign(queues)
            lite.pause(queues)  # Before the first pull: one under way would still bring its messages.
            for queue in queues:
                lite.seek(queue, "begin")
            lite.resume([queues[0]])
            assert {each.queue_id for each in poll(lite, 10)} == {0}
            lite.resume([queues[1]])
            assert {each.queue_id for each in poll(lite, 10)} == {1}


def lite_pull_subscribed(java: JavaClient, cluster: AnyCluster) -> None:
    """A subscribing lite pull consumer is given all queues, filters by tag, and goes on after a restart."""
    group = fresh("group")
    with topic_with_admin(java, cluster, queues=2) as (topic, _), java.producer(cluster.nameserver) as producer:
        producer.send(*numbered(topic, 6, tags="wanted"), *numbered(topic, 6, tags="other"))
        subscriptions = [Subscription(topic=topic, expression="wanted")]
        with java.lite_pull_consumer(
            cluster.nameserver, group, subscriptions=subscriptions, auto_commit=True, options=FROM_FIRST
        ) as lite:
            assert {each.tags for each in poll(lite, 6)} == {"wanted"}
            assert len(lite.assignment()) == 2
            lite.commit()
        producer.send(*numbered(topic, 2, tags="wanted"))
        with java.lite_pull_consumer(
            cluster.nameserver, group, subscriptions=subscriptions, auto_commit=True, options=FROM_FIRST
        ) as lite:
            assert len(poll(lite, 2)) == 2


def old_pull(java: JavaClient, cluster: AnyCluster) -> None:
    """Queue by queue: found, nothing matched, nothing new (held or not), offset illegal; offsets kept at the broker."""
    group = fresh("group")
    with (
        topic_with_admin(java, cluster, queues=1) as (topic, _),
        java.producer(cluster.nameserver) as producer,
        java.pull_consumer(cluster.nameserver, group, [topic]) as consumer,
    ):
        [queue] = consumer.queues(topic)
        producer.send(*numbered(topic, 10, tags="A"))
        first = consumer.pull(queue, 0, count=4)
        assert (first.status, first.next_offset, first.min_offset, first.max_offset) == ("FOUND", 4, 0, 10)
        assert [each.queue_offset for each in first.messages] == [0, 1, 2, 3]
        rest = consumer.pull(queue, first.next_offset)
        assert (rest.status, rest.next_offset, len(rest.messages)) == ("FOUND", 10, 6)
        unmatched = consumer.pull(queue, 0, expression="B")
        assert (unmatched.status, unmatched.next_offset) == ("NO_MATCHED_MSG", 10)
        assert consumer.pull(queue, 10).status == "NO_NEW_MSG"
        beyond = consumer.pull(queue, 99)
        assert (beyond.status, beyond.next_offset) == ("OFFSET_ILLEGAL", 10)
        consumer.update_offset(queue, 7)
        eventually(lambda: consumer.fetch_offset(queue), lambda offset: offset == 7)
        producer.send(Outgoing(topic=topic, body=b"eleventh"))
        held = consumer.pull(queue, 10, block=True)
        assert [each.body for each in held.messages] == [b"eleventh"]


def view_and_query(java: JavaClient, cluster: AnyCluster) -> None:
    """Messages are found by offset id, unique id and key; unknown ids and keys are errors with a code."""
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        key = fresh("key")
        sent = producer.send(*(Outgoing(topic=topic, keys=f"{key} also{n}") for n in range(3)))
        offset_id, unique_id = sent[0].offset_id, sent[0].unique_id
        assert offset_id is not None
        assert unique_id is not None
        assert admin.view(topic, offset_id).keys == f"{key} also0"
        found = eventually(lambda: _query(admin.query, topic, key), lambda messages: len(messages) == 3)
        assert {each.unique_id for each in found} == {each.unique_id for each in sent}
        assert [each.unique_id for each in _query(admin.query, topic, "also1")] == [sent[1].unique_id]
        # 4.9 looks for the id among keys, 5.x too: the unique id is indexed like a key.
        assert admin.view(topic, unique_id).queue_offset == sent[0].queue_offset
        assert _query(admin.query, topic, "nosuchkey") == []
        with pytest.raises(JavaError) as missing:
            admin.view(topic, offset_id[:16] + f"{2**40:016X}")
        assert missing.value.kind in {"MQBrokerException", "MQClientException"}


def offsets_by_time(java: JavaClient, cluster: AnyCluster) -> None:
    """Minimum, maximum, earliest store time, and search by time before, between and after the messages."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        [queue] = queues_of(admin, topic)
        assert (admin.min_offset(queue), admin.max_offset(queue)) == (0, 0)
        stored_at_ms: list[int] = []
        for _ in range(3):
            [sent] = producer.send(Outgoing(topic=topic))
            assert sent.offset_id is not None
            stored_at_ms.append(admin.view(topic, sent.offset_id).stored_at_ms)
            eventually(lambda: int(time.time() * 1000), lambda now_ms: now_ms > stored_at_ms[-1] + 20)
        assert (admin.min_offset(queue), admin.max_offset(queue)) == (0, 3)
        assert admin.earliest_stored_at_ms(queue) == stored_at_ms[0]
        assert admin.search_offset(queue, stored_at_ms[0] - 1000) == 0
        assert [admin.search_offset(queue, at_ms) for at_ms in stored_at_ms] == [0, 1, 2]
        assert admin.search_offset(queue, stored_at_ms[0] + 10) == 1
        assert admin.search_offset(queue, stored_at_ms[2] + 3_600_000) == 3


def routes_and_topics(java: JavaClient, cluster: AnyCluster) -> None:
    """Topics made by a client have the queues asked for; an unknown topic is code 17; a bad name is refused."""
    with java.admin(cluster.nameserver) as admin:
        topic = fresh("topic")
        with pytest.raises(JavaError) as unknown:
            admin.route(topic)
        assert (unknown.value.kind, unknown.value.code) == ("MQClientException", 17)
        make_topic(admin, topic, queues=6)
        [data] = admin.route(topic)["queueDatas"]
        assert (data["readQueueNums"], data["writeQueueNums"], data["perm"]) == (6, 6, 6)
        with pytest.raises(JavaError):
            admin.create_topic(cluster_name(admin), "bad name!", queues=1)


def vip_channel(java: JavaClient, cluster: AnyCluster) -> None:
    """A producer may send on the broker's second port, two below the first."""
    options: dict[str, object] = {"vipChannelEnabled": True}
    with topic_with_admin(java, cluster, queues=1) as (topic, admin):
        with java.producer(cluster.nameserver, fresh("producers"), options=options) as producer:
            [sent] = producer.send(Outgoing(topic=topic))
        assert sent.offset_id is not None
        assert admin.view(topic, sent.offset_id).queue_offset == 0


BASIC_SCENARIOS: Final[tuple[Scenario, ...]] = (
    send_sync,
    send_spreads_over_queues,
    send_creates_topic,
    send_async,
    send_oneway,
    send_batch,
    send_to_queue_of_key,
    send_to_given_queue,
    big_body_is_compressed,
    too_big_is_refused,
    push_concurrent,
    push_orderly,
    push_broadcasting,
    push_tag_filter,
    push_pause_and_threads,
    push_from_timestamp,
    push_new_group_from_timestamp,
    push_allocation_strategies,
    members_share_queues,
    offsets_survive_restart,
    lite_pull,
    lite_pull_subscribed,
    old_pull,
    view_and_query,
    offsets_by_time,
    routes_and_topics,
    vip_channel,
)


def poll(lite: LitePullConsumer, count: int) -> list[Received]:
    """Poll until `count` messages have come, no more and no fewer."""
    received: list[Received] = []

    def gather() -> int:
        received.extend(lite.poll(timeout_ms=500))
        return len(received)

    eventually(gather, lambda have: have >= count)
    assert len(received) == count, [each.body for each in received]
    return received


def _queue_count(route: Callable[[str], object], topic: str) -> int:
    try:
        answer = route(topic)
    except JavaError as error:
        if error.code != 17:
            raise
        return 0
    assert isinstance(answer, dict)
    return sum(data["readQueueNums"] for data in answer["queueDatas"])


def _query(query: Callable[[str, str], list[Received]], topic: str, key: str) -> list[Received]:
    """Look a key up; the client's way of saying that there is none is an error."""
    try:
        return query(topic, key)
    except JavaError as error:
        if error.code not in {22, 208}:
            raise
        return []

"""Message kinds with a life of their own: retries, dead letters, delays, transactions, SQL filters, requests, traces.

As in `scenarios.py`: functions of a Java client and a cluster, the same for the real RocketMQ and for ours. They expect
brokers whose undecided transactions are asked about after about a second (`transactionTimeOut` and
`transactionCheckInterval` of 1000).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import pytest

from tests.interop.harness import (
    JavaClient,
    JavaError,
    Outgoing,
    PullConsumer,
    QueueRef,
    Received,
    Script,
    Subscription,
)
from tests.interop.scenarios import Scenario, numbered, poll
from tests.interop.support import (
    FROM_FIRST,
    FROM_LAST,
    AnyCluster,
    await_messages,
    await_queues,
    eventually,
    fresh,
    has_route,
    make_known,
    make_topic,
    queues_of,
    topic_with_admin,
)

LEVEL_1_MS: Final = 1000
# Delivery may come a little before the whole delay, as clocks of client and broker are cut to milliseconds.
CLOCK_SLACK_MS: Final = 50
ON_TIME_MS: Final = 10_000
UNDECIDED_MS: Final = 1000


def retry_then_success(java: JavaClient, cluster: AnyCluster) -> None:
    """A message that fails comes again after its delay, under its own topic, until it succeeds; others are not held."""
    group = fresh("group")
    with topic_with_admin(java, cluster) as (topic, _), java.producer(cluster.nameserver) as producer:
        make_known(java, cluster, group, topic)
        sent = producer.send(*numbered(topic, 4))
        with java.push_consumer(
            cluster.nameserver,
            group,
            [Subscription(topic=topic)],
            script=Script(fail={"key1": 2}, how="LATER", delay_level=1),
            options=FROM_FIRST,
        ) as consumer:
            received = await_messages(consumer, 6)
        assert Counter(each.keys for each in received) == {"key0": 1, "key1": 3, "key2": 1, "key3": 1}
        tries = [each for each in received if each.keys == "key1"]
        assert [each.retry_count for each in tries] == [0, 1, 2]
        assert {each.topic for each in tries} == {topic}
        assert {each.unique_id for each in tries} == {sent[1].unique_id}
        assert {each.properties.get("ORIGIN_MESSAGE_ID") for each in tries[1:]} == {sent[1].offset_id}
        assert {each.properties.get("RETRY_TOPIC") for each in tries[1:]} == {topic}
        for earlier, later in pairwise(tries):
            assert _late_ms(earlier, later) >= LEVEL_1_MS - CLOCK_SLACK_MS


def listener_failures_retry(java: JavaClient, cluster: AnyCluster) -> None:
    """A listener that throws or returns nothing has failed; of a batch taken in part only the rest comes again."""
    with java.producer(cluster.nameserver) as producer:
        for how, times in (("THROW", (2, 2, 2)), ("NULL", (2, 2, 2)), ("ACK_INDEX", (1, 2, 2))):
            group = fresh("group")
            with topic_with_admin(java, cluster, queues=1) as (topic, admin):
                make_known(java, cluster, group, topic)
                # All three are there before the consumer is, so that its first pull and its listener get all three.
                producer.send_batch(*numbered(topic, 3))
                [queue] = queues_of(admin, topic)
                eventually(lambda queue=queue: admin.max_offset(queue), lambda offset: offset == 3)  # type: ignore[misc]
                with java.push_consumer(
                    cluster.nameserver,
                    group,
                    [Subscription(topic=topic)],
                    script=Script(fail={"*": 1}, how=how, ack_index=0, delay_level=1),
                    options={**FROM_FIRST, "consumeMessageBatchMaxSize": 3},
                ) as consumer:
                    received = await_messages(consumer, sum(times))
            assert Counter(each.keys for each in received) == dict(zip(("key0", "key1", "key2"), times)), how


def dead_letter(java: JavaClient, cluster: AnyCluster) -> None:
    """After its last retry a message goes to the group's dead-letter topic, from where it can be read."""
    group = fresh("group")
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        make_known(java, cluster, group, topic)
        [sent] = producer.send(Outgoing(topic=topic, keys="poison", body=b"poison", tags="T"))
        with java.push_consumer(
            cluster.nameserver,
            group,
            [Subscription(topic=topic)],
            script=Script(fail={"poison": 99}, delay_level=1),
            options={**FROM_FIRST, "maxReconsumeTimes": 1},
        ) as consumer:
            tries = await_messages(consumer, 2)
            dead_topic = f"%DLQ%{group}"
            eventually(lambda: has_route(admin, dead_topic), bool)
            [queue] = queues_of(admin, dead_topic)
            eventually(lambda: admin.max_offset(queue), lambda offset: offset == 1)
            assert len(consumer.received(3, timeout_ms=1500)) == 2
        assert [each.retry_count for each in tries] == [0, 1]
        with java.lite_pull_consumer(cluster.nameserver, fresh("group")) as lite:
            lite.assign([queue])
            lite.seek(queue, 0)
            [dead] = poll(lite, 1)
        assert (dead.body, dead.keys, dead.tags) == (b"poison", "poison", "T")
        assert dead.properties["RETRY_TOPIC"] == topic
        assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id
        assert dead.properties["UNIQ_KEY"] == sent.unique_id
        assert dead.retry_count == 2


def send_back_from_pull(java: JavaClient, cluster: AnyCluster) -> None:
    """The old pull consumer may send a message back; it then waits in the group's retry topic."""
    group = fresh("group")
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        make_known(java, cluster, group, topic)
        [sent] = producer.send(Outgoing(topic=topic, body=b"again"))
        assert sent.offset_id is not None
        with java.pull_consumer(cluster.nameserver, group, [topic]) as consumer:
            consumer.send_back(topic, sent.offset_id, delay_level=1)
        [queue] = queues_of(admin, f"%RETRY%{group}")
        eventually(lambda: admin.max_offset(queue), lambda offset: offset == 1)


def delay_level(java: JavaClient, cluster: AnyCluster) -> None:
    """A delayed message arrives after its time, with its own topic and queue, and not before."""
    group = fresh("group")
    with topic_with_admin(java, cluster) as (topic, admin), java.producer(cluster.nameserver) as producer:
        with java.push_consumer(cluster.nameserver, group, [Subscription(topic=topic)], options=FROM_FIRST) as consumer:
            await_queues(consumer, topic, 4)
            sent = producer.send(
                Outgoing(topic=topic, keys="slow", tags="T", delay_level=2),
                Outgoing(topic=topic, keys="quick", delay_level=1),
                Outgoing(topic=topic, keys="now"),
            )
            received = await_messages(consumer, 3)
        assert [each.keys for each in received] == ["now", "quick", "slow"]
        now, quick, slow = received
        assert LEVEL_1_MS - CLOCK_SLACK_MS <= _age_ms(quick) < LEVEL_1_MS + ON_TIME_MS
        assert 5 * LEVEL_1_MS - CLOCK_SLACK_MS <= _age_ms(slow) < 5 * LEVEL_1_MS + ON_TIME_MS
        assert (slow.queue_id, slow.tags, slow.topic) == (sent[0].queue.queue_id, "T", topic)
        # RocketMQ: what a waiting message needed stays in its properties.
        assert (slow.properties["DELAY"], slow.properties["REAL_TOPIC"]) == ("2", topic)
        # The id of the answer is that of the waiting copy.
        assert sent[0].offset_id is not None
        waiting = admin.view("SCHEDULE_TOPIC_XXXX", sent[0].offset_id)
        assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
        assert waiting.properties["REAL_TOPIC"] == topic
        assert now.retry_count == 0


def delay_level_beyond_the_last(java: JavaClient, cluster: AnyCluster) -> None:
    """A level that does not exist counts as the last one, two hours."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        [sent] = producer.send(Outgoing(topic=topic, keys="far", delay_level=99))
        assert sent.offset_id is not None
        waiting = admin.view("SCHEDULE_TOPIC_XXXX", sent.offset_id)
        assert (waiting.topic, waiting.queue_id, waiting.properties["DELAY"]) == ("SCHEDULE_TOPIC_XXXX", 17, "18")


def new_groups_start(java: JavaClient, cluster: AnyCluster) -> None:
    """A new group on a young topic starts at its first message, whatever it asked for."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        producer.send(*numbered(topic, 3))
        [queue] = queues_of(admin, topic)
        eventually(lambda: admin.max_offset(queue), lambda offset: offset == 3)
        for options in (FROM_FIRST, FROM_LAST):
            with java.push_consumer(
                cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=options
            ) as consumer:
                assert sorted(each.queue_offset for each in await_messages(consumer, 3)) == [0, 1, 2], options


def timer_delay(java: JavaClient, cluster: AnyCluster) -> None:
    """Delays of any length, in milliseconds, seconds, or until a moment; broker 5.x only."""
    with topic_with_admin(java, cluster, queues=1) as (topic, _), java.producer(cluster.nameserver) as producer:
        with java.push_consumer(
            cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
        ) as consumer:
            await_queues(consumer, topic, 1)
            moment_ms = int(time.time() * 1000) + 2500
            for name, value in (("DELAY_MS", "2500"), ("DELAY_SEC", "3"), ("DELIVER_MS", str(moment_ms))):
                producer.send(Outgoing(topic=topic, keys=name, properties={f"TIMER_{name}": value}))
            received = {each.keys: each for each in await_messages(consumer, 3)}
        moment_since_birth_ms = moment_ms - received["DELIVER_MS"].born_at_ms
        # RocketMQ: timers tick once a second and deliver up to one tick early.
        for name, wanted_ms in (("DELAY_MS", 2500), ("DELAY_SEC", 3000), ("DELIVER_MS", moment_since_birth_ms)):
            assert wanted_ms - 1000 - CLOCK_SLACK_MS <= _age_ms(received[name]) < wanted_ms + ON_TIME_MS, name
            assert received[name].topic == topic


def transaction_commit(java: JavaClient, cluster: AnyCluster) -> None:
    """A committed message appears; its answer carries the transaction id, which is its unique id."""
    with topic_with_admin(java, cluster) as (topic, _):
        with (
            java.producer(cluster.nameserver, fresh("producers"), transaction=True) as producer,
            java.push_consumer(
                cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
            ) as consumer,
        ):
            await_queues(consumer, topic, 4)
            message = Outgoing(topic=topic, keys="paid", tags="T", body=b"paid", properties={"amount": "5"})
            sent = producer.send_in_transaction(message, local="COMMIT_MESSAGE")
            [received] = await_messages(consumer, 1)
        assert (sent.status, sent.local_state) == ("SEND_OK", "COMMIT_MESSAGE")
        assert sent.transaction_id == sent.unique_id == received.unique_id
        assert (received.body, received.tags, received.topic) == (b"paid", "T", topic)
        assert received.queue_id == sent.queue.queue_id
        assert received.properties["amount"] == "5"
        assert received.properties["TRAN_MSG"] == "true"


def transaction_rollback(java: JavaClient, cluster: AnyCluster) -> None:
    """A rolled-back message never appears."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin):
        with java.producer(cluster.nameserver, fresh("producers"), transaction=True) as producer:
            producer.send_in_transaction(Outgoing(topic=topic, keys="undone"), local="ROLLBACK_MESSAGE")
            producer.send_in_transaction(Outgoing(topic=topic, keys="done"), local="COMMIT_MESSAGE")
            [queue] = queues_of(admin, topic)
            eventually(lambda: admin.max_offset(queue), lambda offset: offset == 1)
        with java.push_consumer(
            cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
        ) as consumer:
            assert await_messages(consumer, 1)[0].keys == "done"
            assert len(consumer.received(2, timeout_ms=1000)) == 1


def transaction_check(java: JavaClient, cluster: AnyCluster) -> None:
    """The broker asks about undecided messages until it is told; also when the local part threw."""
    with topic_with_admin(java, cluster, queues=1) as (topic, _):
        with (
            java.producer(cluster.nameserver, fresh("producers"), transaction=True) as producer,
            java.push_consumer(
                cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
            ) as consumer,
        ):
            await_queues(consumer, topic, 1)
            undecided = Outgoing(topic=topic, keys="later", body=b"later")
            sent = producer.send_in_transaction(undecided, local="UNKNOW", checks=["UNKNOW", "COMMIT_MESSAGE"])
            dropped = Outgoing(topic=topic, keys="dropped")
            producer.send_in_transaction(dropped, local="UNKNOW", checks=["ROLLBACK_MESSAGE"])
            [received] = await_messages(consumer, 1)
            checks = eventually(lambda: producer.checks(0, timeout_ms=0), lambda seen: _asked(seen, "dropped") >= 1)
            assert len(consumer.received(2, timeout_ms=1500)) == 1
        assert received.body == b"later"
        assert _age_ms(received) >= UNDECIDED_MS - CLOCK_SLACK_MS
        assert _asked(checks, "later") >= 2
        asked = next(each for each in checks if each.keys == "later")
        assert (asked.topic, asked.body) == (topic, b"later")
        assert asked.unique_id == sent.unique_id == asked.transaction_id


def transaction_check_by_another_producer(java: JavaClient, cluster: AnyCluster) -> None:
    """When the sender of an undecided message is gone, any producer of its group is asked."""
    group = fresh("producers")
    with topic_with_admin(java, cluster, queues=1) as (topic, _):
        with java.producer(cluster.nameserver, group, transaction=True) as first:
            first.send_in_transaction(Outgoing(topic=topic, keys="k", body=b"left behind"), local="UNKNOW")
        with (
            java.producer(cluster.nameserver, group, transaction=True) as second,
            java.push_consumer(
                cluster.nameserver, fresh("group"), [Subscription(topic=topic)], options=FROM_FIRST
            ) as consumer,
        ):
            # The answers of the second one go by the key, which both messages have.
            mine = Outgoing(topic=topic, keys="k", body=b"mine")
            second.send_in_transaction(mine, local="UNKNOW", checks=["COMMIT_MESSAGE"] * 8)
            received = await_messages(consumer, 2, seconds_max=60)
        assert sorted(each.body for each in received) == [b"left behind", b"mine"]


def sql_filter(java: JavaClient, cluster: AnyCluster) -> None:
    """SQL92 conditions on properties and tags, for push, lite pull and old pull; a broken condition is refused."""
    condition = "a BETWEEN 2 AND 4 AND TAGS IS NOT NULL AND color IN ('red', 'blue')"
    with topic_with_admin(java, cluster, queues=1) as (topic, admin), java.producer(cluster.nameserver) as producer:
        for n in range(6):
            color = ("red", "blue", "green")[n % 3]
            properties = {"a": str(n), "color": color}
            producer.send(Outgoing(topic=topic, keys=f"{n}{color}", tags="T", properties=properties))
        producer.send(Outgoing(topic=topic, keys="untagged", properties={"a": "3", "color": "red"}))
        subscription = Subscription(topic=topic, expression=condition, kind="SQL92")
        with java.push_consumer(cluster.nameserver, fresh("group"), [subscription], options=FROM_FIRST) as consumer:
            assert sorted(each.keys or "" for each in await_messages(consumer, 2)) == ["3red", "4blue"]
        [queue] = queues_of(admin, topic)
        with java.lite_pull_consumer(
            cluster.nameserver, fresh("group"), subscriptions=[subscription], options=FROM_FIRST
        ) as lite:
            assert sorted(each.keys or "" for each in poll(lite, 2)) == ["3red", "4blue"]
        with java.pull_consumer(
            cluster.nameserver, fresh("group"), [topic], options={"heartbeatBrokerInterval": 500}
        ) as old:
            # The client refuses until the answer to a heartbeat has told it the broker's version.
            pulled = eventually(
                lambda: _pull_by_sql(old, queue, condition), lambda messages: [each.keys for each in messages] != []
            )
            assert [each.keys for each in pulled] == ["3red", "4blue"]
        with pytest.raises(JavaError) as refused:
            java.push_consumer(
                cluster.nameserver,
                fresh("group"),
                [Subscription(topic=topic, expression="a BETWEEN AND", kind="SQL92")],
            )
        assert refused.value.kind == "MQClientException"


def request_reply(java: JavaClient, cluster: AnyCluster) -> None:
    """A request is answered by whoever consumes it; without one it times out."""
    with (
        topic_with_admin(java, cluster, queues=1) as (topic, admin),
        java.producer(cluster.nameserver, fresh("producers")) as asking,
        java.producer(cluster.nameserver, fresh("producers")) as answering,
        java.push_consumer(
            cluster.nameserver,
            fresh("group"),
            [Subscription(topic=topic)],
            reply_from=answering,
            options=FROM_FIRST,
        ) as consumer,
    ):
        await_queues(consumer, topic, 1)
        reply = asking.request(Outgoing(topic=topic, body=b"ping"))
        assert reply.body == b"reply to ping"
        [question] = await_messages(consumer, 1)
        assert question.properties["REPLY_TO_CLIENT"] == asking.client_id
        assert reply.properties["CORRELATION_ID"] == question.properties["CORRELATION_ID"]
        silent = fresh("topic")
        make_topic(admin, silent, queues=1)
        with pytest.raises(JavaError) as late:
            asking.request(Outgoing(topic=silent), timeout_ms=3000)
        assert late.value.kind == "RequestTimeoutException"


def trace(java: JavaClient, cluster: AnyCluster) -> None:
    """Producer and consumer report what they did to a trace topic."""
    with topic_with_admin(java, cluster, queues=1) as (topic, admin):
        trace_topic = fresh("trace")
        make_topic(admin, trace_topic, queues=1)
        [trace_queue] = queues_of(admin, trace_topic)
        with (
            java.producer(cluster.nameserver, fresh("producers"), trace=True, trace_topic=trace_topic) as producer,
            java.push_consumer(
                cluster.nameserver,
                fresh("group"),
                [Subscription(topic=topic)],
                trace=True,
                trace_topic=trace_topic,
                options=FROM_FIRST,
            ) as consumer,
        ):
            [sent] = producer.send(Outgoing(topic=topic, keys="traced"))
            await_messages(consumer, 1)
            assert sent.unique_id is not None
            unique_id = sent.unique_id.encode()
            with java.pull_consumer(cluster.nameserver, fresh("group")) as reader:
                # A 5.x client hands its traces on after some seconds.
                told = eventually(lambda: _read(reader, trace_queue), lambda text: text.count(unique_id) >= 3)
        for kind in (b"Pub\x01", b"SubBefore\x01", b"SubAfter\x01"):
            assert kind in told


KIND_SCENARIOS: Final[tuple[Scenario, ...]] = (
    retry_then_success,
    listener_failures_retry,
    dead_letter,
    send_back_from_pull,
    delay_level,
    delay_level_beyond_the_last,
    new_groups_start,
    timer_delay,
    transaction_commit,
    transaction_rollback,
    transaction_check,
    transaction_check_by_another_producer,
    sql_filter,
    request_reply,
    trace,
)


def _pull_by_sql(consumer: PullConsumer, queue: QueueRef, condition: str) -> Sequence[Received]:
    try:
        return consumer.pull(queue, 0, expression=condition, kind="SQL92").messages
    except JavaError as error:
        if "does not upgrade" not in error.text:
            raise
        return []


def _age_ms(message: Received) -> int:
    assert message.received_at_ms is not None
    return message.received_at_ms - message.born_at_ms


def _late_ms(earlier: Received, later: Received) -> int:
    assert earlier.received_at_ms is not None
    assert later.received_at_ms is not None
    return later.received_at_ms - earlier.received_at_ms


def _asked(checks: list[Received], key: str) -> int:
    return sum(each.keys == key for each in checks)


def _read(reader: PullConsumer, queue: QueueRef) -> bytes:
    return b"\n".join(each.body for each in reader.pull(queue, 0).messages)

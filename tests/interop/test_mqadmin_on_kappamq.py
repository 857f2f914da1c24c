"""RocketMQ's own administration tool, 5.5.0, on our cluster: it must print what it prints on the real one.

Every test runs on both clusters, so that what it expects is known to be right.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import kappamq
from kappamq.testing import start_cluster
from tests.interop.artifacts import Unreachable
from tests.interop.conftest import skip_loudly
from tests.interop.harness import JavaClient, Outgoing, PushConsumer, Sent, Subscription
from tests.interop.mqadmin import MqAdmin
from tests.interop.rocketmq import Cluster
from tests.interop.support import FROM_FIRST, eventually, fresh
from tests.patience import PATIENT

pytestmark = pytest.mark.timeout(600)

CLUSTER = "DefaultCluster"
MESSAGES = 8
TWICE = sorted([b"0", b"1", b"2", b"3"] * 2)
"""What a group of several threads has seen after it was moved back, in whatever order."""


@dataclass(frozen=True)
class Site:
    """A cluster and the tool that looks at it."""

    nameserver: str
    broker_name: str
    broker_address: str
    admin: MqAdmin

    def run(self, *arguments: str) -> str:
        """What the tool prints, without the lines of its log."""
        lines = self.admin.run(*arguments).splitlines()
        return "\n".join(line for line in lines if not re.match(r"\d{4}-\d\d-\d\d [\d:,]+ WARN ", line))

    def rows(self, *arguments: str) -> list[list[str]]:
        """Lines of a table, split at blanks, without its head."""
        lines = [line.split() for line in self.run(*arguments).splitlines()]
        return [words for words in lines if words and not words[0].startswith("#")]

    def new_topic(self, queues: int = 4) -> str:
        topic = fresh("topic")
        count = str(queues)
        assert "success" in self.run("updateTopic", "-c", CLUSTER, "-t", topic, "-r", count, "-w", count)
        return topic


@pytest.fixture(scope="module", params=["kappamq", pytest.param("rocketmq", marks=pytest.mark.oracle)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    try:
        if request.param == "rocketmq":
            cluster: Cluster = request.getfixturevalue("rocketmq_cluster")
            with MqAdmin(cluster.nameserver) as admin:
                yield Site(cluster.nameserver, cluster.broker_name, cluster.broker_address, admin)
        else:
            with start_cluster() as ours, MqAdmin(ours.nameserver) as admin:
                ((name, address),) = ours.brokers.items()
                yield Site(ours.nameserver, name, address, admin)
    except Unreachable as missing:
        skip_loudly(missing)


@dataclass(frozen=True)
class Traffic:
    """A topic with messages, a producer and a consumer that has read and committed them all."""

    topic: str
    producer_group: str
    group: str
    sent: list[Sent]
    consumer: PushConsumer

    @property
    def client_id(self) -> str:
        return self.consumer.client_id


@pytest.fixture(scope="module")
def traffic(site: Site, java_client_550: JavaClient) -> Iterator[Traffic]:
    topic, group, producer_group = site.new_topic(), fresh("group"), fresh("producers")
    with (
        java_client_550.producer(site.nameserver, producer_group) as producer,
        java_client_550.push_consumer(
            site.nameserver, group, [Subscription(topic=topic)], options=FROM_FIRST
        ) as consumer,
    ):
        messages = [
            Outgoing(topic=topic, body=f"body {number}".encode(), keys=f"key-{number}", tags="A")
            for number in range(MESSAGES)
        ]
        sent = producer.send(*messages)
        assert len(consumer.received(MESSAGES, timeout_ms=30_000)) == MESSAGES
        traffic = Traffic(topic, producer_group, group, sent, consumer)
        eventually(lambda: lag_of(site, traffic), lambda lag: lag == 0)
        yield traffic


def lag_of(site: Site, traffic: Traffic) -> int | None:
    """Messages that a group has still to commit; nothing before its first commit."""
    printed = site.run("consumerProgress", "-g", traffic.group)
    found = re.search(r"Consume Diff Total: (-?\d+)", printed)
    return int(found.group(1)) if found and traffic.topic in printed else None


# ── Topics and groups ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_is_created_shown_changed_and_deleted(site: Site) -> None:
    topic = fresh("topic")
    created = site.run(
        "updateTopic", "-b", site.broker_address, "-t", topic, "-r", "3", "-w", "2", "-a", "+message.type=FIFO"
    )
    assert f"create topic to {site.broker_address} success." in created
    assert f"topicName={topic}, readQueueNums=3, writeQueueNums=2, perm=RW-" in created
    assert [topic] in site.rows("topicList")
    status = site.run("topicStatus", "-t", topic)
    assert [row.split() for row in status.splitlines() if row.startswith(site.broker_name)] == [
        [site.broker_name, str(number), "0", "0"] for number in range(3)
    ]
    assert "Topic Put TPS: 0.0" in status
    route = site.run("topicRoute", "-t", topic)
    assert f'"brokerName":"{site.broker_name}"' in route
    assert f'0:"{site.broker_address}"' in route
    assert site.rows("topicClusterList", "-t", topic) == [[CLUSTER]]
    changed = site.run("updateTopicPerm", "-b", site.broker_address, "-t", topic, "-p", "4")
    assert f"update topic perm from 6 to 4 in {site.broker_address} success." in changed
    assert [CLUSTER, site.broker_name, f"{{0={site.broker_address}}}", "3", "2", "4"] in site.rows(
        "topicRoute", "-t", topic, "-l"
    )
    deleted = site.run("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{CLUSTER}] success." in deleted
    assert f"delete topic [{topic}] from NameServer success." in deleted
    assert "CODE: 17" in site.run("topicStatus", "-t", topic)
    assert [topic] not in site.rows("topicList")


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("bad name", (), "CODE: 29"),
        ("TBW102", (), "CODE: 29  DESC: The topic[TBW102] is conflict with system topic."),
        ("some-topic", ("-a", "+colour=red"), "unsupported key"),
    ],
)
def test_a_bad_topic_is_refused(site: Site, name: str, more: tuple[str, ...], reason: str) -> None:
    assert reason in site.run("updateTopic", "-b", site.broker_address, "-t", name, *more)


def test_lists_of_topics_and_groups_are_created_from_files(site: Site) -> None:
    topics, groups = [fresh("topic"), fresh("topic")], [fresh("group"), fresh("group")]
    topic_file, group_file = site.admin.home / "topics.json", site.admin.home / "groups.json"
    topic_file.write_text(json.dumps([{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in topics]))
    group_file.write_text(json.dumps([{"groupName": name, "retryMaxTimes": 3} for name in groups]))
    assert "success" in site.run("updateTopicList", "-b", site.broker_address, "-f", str(topic_file))
    assert "success" in site.run("updateSubGroupList", "-b", site.broker_address, "-f", str(group_file))
    for name in topics:
        eventually(lambda name=name: [name] in site.rows("topicList"), bool)  # type: ignore[misc]
    for name in groups:
        assert "retryMaxTimes                           =  3" in site.run("getConsumerConfig", "-g", name)


def test_a_group_is_created_shown_and_deleted(site: Site) -> None:
    group = fresh("group")
    created = site.run("updateSubGroup", "-c", CLUSTER, "-g", group, "-r", "5", "-q", "2")
    assert f"create subscription group to {site.broker_address} success." in created
    shown = site.run("getConsumerConfig", "-g", group)
    for name, value in {
        "groupName": group,
        "retryMaxTimes": "5",
        "retryQueueNums": "2",
        "consumeBroadcastEnable": "false",
        "groupRetryPolicy": (
            "GroupRetryPolicy{type=CUSTOMIZED, exponentialRetryPolicy=null, customizedRetryPolicy=null}"
        ),
    }.items():
        assert f"{name:<40}=  {value}" in shown
    deleted = site.run("deleteSubGroup", "-c", CLUSTER, "-g", group, "-r", "true")
    assert f"delete subscription group [{group}] from broker [{site.broker_address}] in cluster" in deleted
    assert group not in site.run("getConsumerConfig", "-g", group)


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_consumers_and_producers_are_listed(site: Site, traffic: Traffic) -> None:
    connections = site.run("consumerConnection", "-g", traffic.group)
    assert re.search(rf"{re.escape(traffic.client_id)} +127\.0\.0\.1:\d+ +JAVA +V5_5_0", connections)
    assert re.search(rf"{traffic.topic} +\*", connections)
    assert f"%RETRY%{traffic.group}"[:20] in connections
    for line in (
        "ConsumeType: CONSUME_PASSIVELY",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET",
    ):
        assert line in connections
    # The client knows no broker when it starts: its first heartbeat comes after its first message.
    eventually(
        lambda: site.run("producerConnection", "-g", traffic.producer_group, "-t", traffic.topic),
        lambda producers: (
            re.search(r"0001  127\.0\.0\.1@producer\S* +127\.0\.0\.1:\d+ +JAVA +V5_5_0", producers) is not None
        ),
    )
    assert f"producer group ({traffic.producer_group}) instance : clientId=" in site.run(
        "producer", "-b", site.broker_address
    )


def test_clients_that_are_not_online_are_errors(site: Site, traffic: Traffic) -> None:
    site.run("updateSubGroup", "-c", CLUSTER, "-g", traffic.group + "x")
    group = fresh("nobody")
    assert "CODE: 206" in site.run("consumerConnection", "-g", group, "-b", site.broker_address)
    assert "CODE: 1  DESC: the producer group[nobody] not exist" in site.run(
        "producerConnection", "-g", "nobody", "-t", traffic.topic
    )


def test_progress_is_shown_by_queue_and_by_group(site: Site, traffic: Traffic) -> None:
    shown = site.rows("consumerProgress", "-g", traffic.group)
    rows = [row for row in shown if row[0] == traffic.topic]
    assert [row[1:3] for row in rows] == [[site.broker_name, str(number)] for number in range(4)], shown
    assert sum(int(row[3]) for row in rows) >= MESSAGES
    assert all(row[3] == row[4] and row[5:7] == ["0", "0"] for row in rows)
    assert re.match(r"\d{4}-\d\d-\d\d", rows[0][7])
    with_clients = site.run("consumerProgress", "-g", traffic.group, "-s", "true")
    assert re.search(rf"{traffic.topic} .* 127\.0\.0\.1 ", with_clients)
    assert [traffic.group, "1", "V5_5_0", "PUSH", "CLUSTERING", "0", "0"] in site.rows("consumerProgress")
    behind = site.run("brokerConsumeStats", "-b", site.broker_address)
    assert re.search(rf"{traffic.topic} +{traffic.group} +{site.broker_name} +0 ", behind)
    assert [CLUSTER, traffic.topic, traffic.group] in site.rows("topicList", "-c")


def test_a_running_consumer_tells_what_it_does(site: Site, traffic: Traffic) -> None:
    report = site.run("consumerStatus", "-g", traffic.group, "-i", traffic.client_id, "-s", "true")
    for section in ("#Consumer Properties#", "#Consumer Subscription#", "#Consumer RT&TPS#", "#Consumer jstack#"):
        assert section in report
    assert re.search(rf"{traffic.topic} +{site.broker_name} +0 +\d+", report)
    everyone = site.run("consumerStatus", "-g", traffic.group)
    assert re.search(rf"1 +{re.escape(traffic.client_id)} +V5_5_0", everyone)
    assert "Same subscription in the same group of consumer" in everyone
    assert "not online" in site.run("consumerStatus", "-g", traffic.group, "-i", "nobody@1")


# ── Our own consumer, seen by the tool ──────────────────────────────────────────────────────────────────────────────


@dataclass
class OurTraffic:
    """A topic with messages, and our push consumer that reads them."""

    topic: str
    group: str
    consumer: kappamq.PushConsumer
    producer: kappamq.Producer
    client_id: str
    seen: list[bytes]


@pytest.fixture
def our_traffic(site: Site) -> Iterator[OurTraffic]:
    topic, group, seen = site.new_topic(queues=1), fresh("group"), list[bytes]()
    handling = kappamq.PushSettings(suspend_queue_ms=10)
    names = kappamq.ClusterSettings(instance=fresh("ours"))
    with (
        kappamq.Producer(site.nameserver, group=fresh("producers"), settings=PATIENT) as producer,
        kappamq.PushConsumer(
            site.nameserver,
            group=group,
            start_from="first",
            concurrency=3,
            handling=handling,
            settings=kappamq.ConsumerSettings(commit_interval_ms=200),
            cluster_settings=names,
        ) as consumer,
    ):

        @consumer.on(topic)
        def handle(message: kappamq.ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"bad":
                raise kappamq.RetryLater(delay_level=18)

        consumer.start()
        for number in range(4):
            producer.send(kappamq.Message(topic, b"%d" % number, keys=f"key-{number}"))
        eventually(lambda: len(seen), lambda count: count == 4)
        # RocketMQ: the tool needs the route of the group's retry topic, which the first heartbeat makes.
        found = eventually(lambda: our_connection(site, group), lambda connection: connection is not None)
        assert found is not None
        traffic = OurTraffic(topic, group, consumer, producer, found.group(1), seen)
        eventually(lambda: our_lag(site, traffic), lambda lag: lag == 0)
        yield traffic


def our_connection(site: Site, group: str) -> re.Match[str] | None:
    connections = site.run("consumerConnection", "-g", group)
    return re.search(r"^(\S*@ours-\S*) +127\.0\.0\.1:\d+", connections, re.MULTILINE)


def our_lag(site: Site, traffic: OurTraffic) -> int | None:
    printed = site.run("consumerProgress", "-g", traffic.group)
    found = re.search(r"Consume Diff Total: (-?\d+)", printed)
    return int(found.group(1)) if found and traffic.topic in printed else None


def test_our_consumer_tells_what_it_does(site: Site, our_traffic: OurTraffic) -> None:
    def report() -> str:
        return site.run("consumerStatus", "-g", our_traffic.group, "-i", our_traffic.client_id, "-s", "true")

    printed = report()
    for section in (
        "#Consumer Properties#",
        "#Consumer Subscription#",
        "#Consumer Offset#",
        "#Consumer MQ Detail#",
        "#Consumer Pop Detail#",
        "#Consumer RT&TPS#",
        "#Consumer jstack#",
    ):
        assert section in printed
    assert re.search(rf"{our_traffic.topic} +{site.broker_name} +0 +4 ", printed)
    assert re.search(rf"Topic: {our_traffic.topic} +ClassFilter: false +SubExpression: \*", printed)
    for name, value in (
        ("consumeThreadMin", "3"),
        ("consumeThreadMax", "3"),
        ("PROP_THREADPOOL_CORE_SIZE", "3"),
        ("PROP_CONSUMEORDERLY", "false"),
        ("PROP_CONSUME_TYPE", "CONSUME_PASSIVELY"),
        ("messageModel", "CLUSTERING"),
        ("pause", "false"),
    ):
        assert re.search(rf"^{name} *: {value}$", printed, re.MULTILINE), name
    assert re.search(r"^MainThread +TID: \d+ STATE: ", printed, re.MULTILINE)
    our_traffic.consumer.set_concurrency(7)
    assert re.search(r"^PROP_THREADPOOL_CORE_SIZE *: 7$", report(), re.MULTILINE)


def test_our_consumer_is_paused_and_goes_on(site: Site, our_traffic: OurTraffic) -> None:
    our_traffic.consumer.pause()
    # A pull that waits at the broker already brings one more batch; what comes after it is not asked for.
    for number in range(4, 8):
        our_traffic.producer.send(kappamq.Message(our_traffic.topic, b"%d" % number))
        time.sleep(0.3)
    assert (our_lag(site, our_traffic) or 0) >= 3
    our_traffic.consumer.resume()
    eventually(lambda: sorted(our_traffic.seen), lambda seen: seen == [b"%d" % number for number in range(8)])
    eventually(lambda: our_lag(site, our_traffic), lambda lag: lag == 0)


def test_our_consumer_gets_one_message_on_command(site: Site, our_traffic: OurTraffic) -> None:
    sent = our_traffic.producer.send(kappamq.Message(our_traffic.topic, b"bad"))
    eventually(lambda: our_traffic.seen, lambda seen: b"bad" in seen)
    printed = site.run(
        "queryMsgById",
        *("-t", our_traffic.topic, "-i", sent.offset_id, "-g", our_traffic.group, "-d", our_traffic.client_id),
    )
    assert "consumeResult=CR_LATER" in printed
    assert "order=false" in printed
    good = our_traffic.producer.send(kappamq.Message(our_traffic.topic, b"good"))
    printed = site.run(
        "queryMsgById",
        *("-t", our_traffic.topic, "-i", good.offset_id, "-g", our_traffic.group, "-d", our_traffic.client_id),
    )
    assert "consumeResult=CR_SUCCESS" in printed
    eventually(lambda: our_traffic.seen.count(b"good"), lambda count: count == 2)


def test_our_consumer_is_moved_while_it_runs(site: Site, our_traffic: OurTraffic) -> None:
    moved = site.rows("resetOffsetByTime", "-g", our_traffic.group, "-t", our_traffic.topic, "-s", "0")
    assert [site.broker_name, "0", "0"] in moved
    eventually(lambda: sorted(our_traffic.seen), lambda seen: seen == TWICE)
    our_traffic.consumer.pause()
    skipped = site.rows("skipAccumulatedMessage", "-g", our_traffic.group, "-t", our_traffic.topic)
    assert [site.broker_name, "0", "4"] in skipped
    our_traffic.consumer.resume()
    other = fresh("group")
    site.run("updateSubGroup", "-c", CLUSTER, "-g", other)
    eventually(lambda: our_lag(site, our_traffic), lambda lag: lag == 0)
    copied = site.run("cloneGroupOffset", "-s", our_traffic.group, "-d", other, "-t", our_traffic.topic)
    assert "clone group offset success" in copied


def test_our_consumer_is_moved_by_its_broker_where_brokers_do_not_move_groups(
    site: Site, our_traffic: OurTraffic
) -> None:
    def use_server_side_reset(value: str) -> None:
        site.run("updateBrokerConfig", "-b", site.broker_address, "-k", "useServerSideResetOffset", "-v", value)

    use_server_side_reset("false")
    try:
        moved = site.rows(
            "resetOffsetByTime", "-g", our_traffic.group, "-t", our_traffic.topic, "-s", "0", "-f", "true"
        )
        assert [site.broker_name, "0", "0"] in moved
        eventually(lambda: sorted(our_traffic.seen), lambda seen: seen == TWICE)
    finally:
        use_server_side_reset("true")
    eventually(lambda: our_lag(site, our_traffic), lambda lag: lag == 0)


def test_a_group_is_moved_to_the_millisecond(site: Site, our_traffic: OurTraffic) -> None:
    our_traffic.consumer.close()
    queue = our_traffic.producer.queues_of(our_traffic.topic)[0]
    with kappamq.Cluster(site.nameserver) as calls:
        time.sleep(0.05)
        our_traffic.producer.send(kappamq.Message(our_traffic.topic, b"4"))
        time.sleep(0.05)
        our_traffic.producer.send(kappamq.Message(our_traffic.topic, b"5"))
        stored = [message.stored_at_ms for message in calls.pull(queue, 0, group="looker")]

    def moved_to(moment_ms: int) -> str:
        rows = site.rows(
            "resetOffsetByTime", "-g", our_traffic.group, "-t", our_traffic.topic, "-s", str(moment_ms), "-f", "true"
        )
        [offset] = [row[2] for row in rows if row[:2] == [site.broker_name, "0"]]
        return offset

    # Forward and back: the first message that was stored then or later.
    for moment_ms, offset in (
        (stored[4], "4"),
        (stored[4] + 1, "5"),
        (stored[4] - 1, "4"),
        (stored[5], "5"),
        (stored[0], "0"),
        (stored[5] + 1, "6"),
        (stored[3] + 1, "4"),
    ):
        assert moved_to(moment_ms) == offset, moment_ms


def test_the_way_of_consuming_is_set_as_on_the_real_one(site: Site, our_traffic: OurTraffic) -> None:
    printed = site.run(
        "setConsumeMode", *("-c", CLUSTER, "-t", our_traffic.topic, "-g", our_traffic.group, "-m", "PULL", "-q", "0")
    )
    assert f"set consume mode to {site.broker_address} success." in printed
    assert f"topic[{our_traffic.topic}] group[{our_traffic.group}] consume mode[PULL]" in printed


# ── Messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_message_is_found_in_every_way(site: Site, traffic: Traffic) -> None:
    sent = traffic.sent[3]
    assert sent.offset_id is not None
    assert sent.unique_id is not None
    by_id = site.run("queryMsgById", "-t", traffic.topic, "-i", sent.offset_id)
    for pattern in (
        rf"OffsetID: +{sent.offset_id}",
        rf"Topic: +{traffic.topic}",
        r"Tags: +\[A\]",
        r"Keys: +\[key-3\]",
        rf"Queue ID: +{sent.queue.queue_id}",
        rf"Queue Offset: +{sent.queue_offset}",
        r"Reconsume Times: +0",
        rf"Store Host: +{site.broker_address}",
        rf"UNIQ_KEY={sent.unique_id}",
        rf"MessageTrack \[consumerGroup={traffic.group}, trackType=CONSUMED",
    ):
        assert re.search(pattern, by_id), pattern
    # A producer that waits too long for an answer on a crowded machine sends its message again, under the same id.
    by_key = [row[:3] for row in site.rows("queryMsgByKey", "-t", traffic.topic, "-k", "key-3") if len(row) > 2]
    assert [sent.unique_id, str(sent.queue.queue_id), str(sent.queue_offset)] in by_key
    assert {row[0] for row in by_key} == {sent.unique_id}
    by_unique_id = site.run("queryMsgByUniqueKey", "-t", traffic.topic, "-i", sent.unique_id)
    assert re.search(r"Keys: +\[key-3\]", by_unique_id)
    by_offset = site.run(
        "queryMsgByOffset",
        "-t",
        traffic.topic,
        "-b",
        site.broker_name,
        "-i",
        str(sent.queue.queue_id),
        "-o",
        str(sent.queue_offset),
    )
    assert re.search(r"Keys: +\[key-3\]", by_offset)
    assert re.search(
        rf"idx: {sent.queue_offset}\s+ConsumeQueueData\{{physicOffset=\d+",
        site.run(
            "queryCq",
            "-t",
            traffic.topic,
            "-q",
            str(sent.queue.queue_id),
            "-i",
            str(sent.queue_offset),
            "-b",
            site.broker_address,
            "-g",
            traffic.group,
        ),
    )


def test_a_message_is_given_to_one_consumer_on_command(site: Site, traffic: Traffic) -> None:
    sent = traffic.sent[0]
    assert sent.offset_id is not None
    assert sent.unique_id is not None
    for command, message_id in (("queryMsgById", sent.offset_id), ("queryMsgByUniqueKey", sent.unique_id)):
        printed = site.run(command, "-t", traffic.topic, "-i", message_id, "-g", traffic.group, "-d", traffic.client_id)
        assert "consumeResult=CR_SUCCESS" in printed


def test_topics_are_printed(site: Site, traffic: Traffic) -> None:
    printed = site.run("printMsg", "-t", traffic.topic)
    assert len(re.findall(r"MSGID: ", printed)) >= MESSAGES
    assert "BODY: body 0" in printed
    one_queue = site.run(
        "printMsgByQueue", "-t", traffic.topic, "-a", site.broker_name, "-i", "1", "-p", "true", "-d", "true"
    )
    assert "queueId=1" in one_queue
    assert "queueId=2" not in one_queue
    consumed = site.run("consumeMessage", "-t", traffic.topic, "-b", site.broker_name, "-i", "1", "-o", "0", "-c", "1")
    assert consumed.count("MSGID: ") == 1
    assert "queueId=1" in consumed


def test_messages_are_sent(site: Site, traffic: Traffic) -> None:
    (row,) = site.rows("sendMessage", "-t", traffic.topic, "-p", "hello", "-b", site.broker_name, "-i", "2")
    assert row[:3] == [site.broker_name, "2", "SEND_OK"]
    round_trips = site.run("checkMsgSendRT", "-t", traffic.topic, "-a", "3")
    # RocketMQ: a broker without enough processor time refuses some.
    assert len(re.findall(r" (?:true|false) ", round_trips)) == 3
    assert " true " in round_trips
    assert "Avg RT: " in round_trips
    assert site.run("sendMsgStatus", "-b", site.broker_name, "-c", "2").count("sendStatus=SEND_OK") == 2


# ── Offsets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def ends_of(site: Site, topic: str) -> dict[str, str]:
    return {row[1]: row[3] for row in site.rows("topicStatus", "-t", topic) if row[0] == site.broker_name}


def test_a_waiting_group_is_moved_back_and_to_the_end(
    site: Site, java_client_550: JavaClient, traffic: Traffic
) -> None:
    topic, group = site.new_topic(queues=1), fresh("group")
    with (
        java_client_550.producer(site.nameserver, fresh("producers")) as producer,
        java_client_550.push_consumer(
            site.nameserver, group, [Subscription(topic=topic)], options=FROM_FIRST
        ) as consumer,
    ):
        producer.send(Outgoing(topic=topic, body=b"one"), Outgoing(topic=topic, body=b"two"))
        assert len(consumer.received(2, timeout_ms=30_000)) == 2
        own = Traffic(topic, "", group, [], consumer)
        eventually(lambda: lag_of(site, own), lambda lag: lag == 0)
        moved = site.rows("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        assert [site.broker_name, "0", "0"] in moved
        again = consumer.received(4, timeout_ms=30_000)
        # Several threads consume: which of them notes its message first is left to chance.
        assert sorted(message.body for message in again[2:]) == [b"one", b"two"]
        assert [site.broker_name, "0", "2"] in site.rows("skipAccumulatedMessage", "-g", group, "-t", topic)
        single = site.run(
            "resetOffsetByTime", "-g", group, "-t", topic, "-s", "-1", "-b", site.broker_address, "-q", "0", "-o", "1"
        )
        assert "reset consumer offset to 1" in single
        assert [message.body for message in consumer.received(5, timeout_ms=30_000)[4:]] == [b"two"]


def test_a_group_that_is_not_online_can_be_moved(site: Site, traffic: Traffic) -> None:
    group = fresh("group")
    assert "CODE: 26" in site.run("resetOffsetByTime", "-g", group, "-t", traffic.topic, "-s", "now")
    site.run("updateSubGroup", "-c", CLUSTER, "-g", group)
    moved = site.rows("skipAccumulatedMessage", "-g", group, "-t", traffic.topic)
    assert {row[1]: row[2] for row in moved if row[0] == site.broker_name} == ends_of(site, traffic.topic)


def test_progress_is_copied_to_another_group(site: Site, traffic: Traffic) -> None:
    group = fresh("group")
    site.run("updateSubGroup", "-c", CLUSTER, "-g", group)
    copied = site.run("cloneGroupOffset", "-s", traffic.group, "-d", group, "-t", traffic.topic)
    assert f"clone group offset success. srcGroup[{traffic.group}], destGroup=[{group}]" in copied
    behind = site.run("brokerConsumeStats", "-b", site.broker_address)
    assert re.search(rf"{traffic.topic} +{group} ", behind)


# ── The broker ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cluster_and_its_load_are_shown(site: Site, traffic: Traffic) -> None:
    (row,) = site.rows("clusterList")
    assert row[:4] == [CLUSTER, site.broker_name, "0", site.broker_address]
    assert row[4].startswith("V5_")
    assert row[-1] == "true"
    (more,) = site.rows("clusterList", "-m")
    assert more[:2] == [CLUSTER, site.broker_name]
    assert int(more[4]) >= MESSAGES
    assert [traffic.topic, traffic.group] in [row[:2] for row in site.rows("statsAll", "-t", traffic.topic)]
    status = site.run("brokerStatus", "-b", site.broker_address)
    for name in (
        "bootTimestamp",
        "brokerVersionDesc",
        "commitLogDiskRatio",
        "commitLogMaxOffset",
        "dispatchBehindBytes",
        "earliestMessageTimeStamp",
        "getTransferredTps",
        "msgPutTotalTodayNow",
        "putTps",
        "runtime",
        "timerReadBehind",
    ):
        assert re.search(rf"^{name} *: \S", status, re.MULTILINE), name


def test_settings_are_changed_and_shown(site: Site) -> None:
    for value in ("false", "true"):
        changed = site.run("updateBrokerConfig", "-b", site.broker_address, "-k", "traceOn", "-v", value)
        assert f"update broker config success, {site.broker_address}" in changed
        shown = site.run("getBrokerConfig", "-b", site.broker_address)
        assert f"============{site.broker_address}============" in shown
        assert f"{'traceOn':<50}=  {value}" in shown
    refused = site.run("updateBrokerConfig", "-b", site.broker_address, "-k", "brokerConfigPath", "-v", "x")
    assert "CODE: 16" in refused


def test_a_broker_without_write_permission_is_seen_in_routes(site: Site) -> None:
    topic = site.new_topic(queues=1)
    change = ("updateBrokerConfig", "-b", site.broker_address, "-k", "brokerPermission", "-v")
    assert "success" in site.run(*change, "4")
    eventually(lambda: site.run("topicRoute", "-t", topic), lambda route: '"perm":4' in route)
    assert "success" in site.run(*change, "6")
    eventually(lambda: site.run("topicRoute", "-t", topic), lambda route: '"perm":6' in route)


def test_housekeeping_runs_on_command(site: Site) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in site.run(command, "-b", site.broker_address)


def test_replication_of_a_master_without_slaves(site: Site) -> None:
    status = site.run("haStatus", "-b", site.broker_address)
    assert f"#MasterAddr\t{site.broker_address}" in status
    assert "#SlaveNum\t0" in status


def test_everything_can_be_exported(site: Site, traffic: Traffic) -> None:
    for command, file in (("exportMetadata", "metadata"), ("exportConfigs", "configs"), ("exportMetrics", "metrics")):
        assert f"export export/{file}.json success" in site.run(command, "-c", CLUSTER, "-f", "export")
    metadata = (site.admin.home / "export" / "metadata.json").read_text()
    assert traffic.topic in metadata
    assert traffic.group in metadata


# ── The name server ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_queues_are_shared_out_on_paper(site: Site) -> None:
    topic = site.new_topic(queues=4)
    shares = json.loads(site.run("allocateMQ", "-t", topic, "-i", "ip1,ip2"))["result"]
    assert {member: len(queues) for member, queues in shares.items()} == {"ip1": 2, "ip2": 2}
    assert sorted(queue["queueId"] for queues in shares.values() for queue in queues) == [0, 1, 2, 3]


def test_the_name_server_takes_write_permission_and_keys(site: Site) -> None:
    topic = site.new_topic(queues=1)
    assert " OK, " in site.run("wipeWritePerm", "-b", site.broker_name)
    assert '"perm":4' in site.run("topicRoute", "-t", topic)
    assert " OK, " in site.run("addWritePerm", "-b", site.broker_name)
    assert '"perm":6' in site.run("topicRoute", "-t", topic)
    assert "success" in site.run("updateKvConfig", "-s", "interop", "-k", "key", "-v", "value")
    assert "success" in site.run("deleteKvConfig", "-s", "interop", "-k", "key")

"""Lag, time spans, and who reads what."""

from collections.abc import Mapping

from kappamq.broker.handlers.progress import ProgressHandlers
from kappamq.broker.router import Handler
from kappamq.model.config import TopicConfig
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.broker.admin_desk import Desk, ask, queue, value_of


def table(desk: Desk) -> Mapping[int, Handler]:
    return ProgressHandlers(
        broker="b1",
        address="127.0.0.1:10911",
        topics=desk.topics,
        groups=desk.groups,
        offsets=desk.offsets,
        members=desk.members,
        statistics=desk.statistics,
        store=desk.store,
        clock=desk.clock,
    ).table()


def test_lag_counts_what_is_stored_committed_and_pulled(desk: Desk) -> None:
    desk.topic("t")
    desk.append("t", 0, b"1", b"2", b"3", b"4")
    stored_at = desk.clock.now_ms()
    desk.offsets.commit("t", "g", 0, 1)
    desk.offsets.pulled("t", "g", 0, 3)
    value = value_of(ask(table(desk), RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}))
    assert value["offsetTable"] == {
        queue("t", 0): {"brokerOffset": 4, "consumerOffset": 1, "lastTimestamp": stored_at, "pullOffset": 3},
        queue("t", 1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
    }


def test_lag_leaves_out_what_the_group_no_longer_reads(desk: Desk) -> None:
    for name in ("t", "u"):
        desk.topic(name, queues=1)
        desk.offsets.commit(name, "g", 0, 0)
    desk.offsets.commit("deleted", "g", 0, 0)
    desk.join("g", "t")

    def topics(**fields: str) -> set[str]:
        value = value_of(ask(table(desk), RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"} | fields))
        return {queue.topic for queue in value["offsetTable"]}

    assert topics() == {"t"}
    assert topics(topic="u") == set()
    desk.members.lost(next(iter(desk.members.consumer_groups()[0].members)))
    assert topics() == {"t", "u"}
    assert topics(topic="u") == {"u"}
    assert topics(topicList="u;t") == {"t", "u"}


def test_the_lag_of_all_groups_is_summed(desk: Desk) -> None:
    desk.topic("t", queues=1)
    desk.topics.put(TopicConfig(topic_name="o", read_queue_nums=1, write_queue_nums=1, order=True))
    desk.append("t", 0, b"1", b"2", b"3")
    desk.groups.get_or_create("g")
    desk.offsets.commit("t", "g", 0, 1)
    desk.offsets.commit("o", "g", 0, 0)
    desk.offsets.pulled("t", "g", 0, 2)
    value = value_of(ask(table(desk), RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}))
    by_group = {name: stats for entry in value["consumeStatsList"] for name, stats in entry.items()}
    assert [set(stats["offsetTable"]) for stats in by_group["g"]] == [{queue("t", 0)}, {queue("o", 0)}]
    assert (value["totalDiff"], value["totalInflightDiff"]) == (2, 1)
    assert value["brokerAddr"] == "127.0.0.1:10911"
    ordered = value_of(ask(table(desk), RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}))
    assert ordered["totalDiff"] == 0


def test_times_say_how_old_the_next_message_is(desk: Desk) -> None:
    desk.topic("t", queues=2)
    times = []
    for body in (b"1", b"2", b"3"):
        desk.append("t", 0, body)
        times.append(desk.clock.now_ms())
        desk.clock.advance(ms=1000)
    desk.offsets.commit("t", "g", 0, 1)
    value = value_of(ask(table(desk), RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "t", "group": "g"}))
    spans = {span["messageQueue"]["queueId"]: span for span in value["consumeTimeSpanSet"]}
    assert (spans[0]["minTimeStamp"], spans[0]["maxTimeStamp"]) == (times[0], times[2])
    assert (spans[0]["consumeTimeStamp"], spans[0]["delayTime"]) == (times[0], 2000)
    assert (spans[1]["maxTimeStamp"], spans[1]["delayTime"]) == (-1, 0)
    missing = ask(table(desk), RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "none", "group": "g"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_readers_of_a_topic_are_online_or_have_progress(desk: Desk) -> None:
    desk.offsets.commit("t", "offline", 0, 1)
    desk.offsets.commit("t", "both", 0, 1)
    desk.join("both", "t")
    desk.join("online", "t", "u")
    value = value_of(ask(table(desk), RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "t"}))
    assert sorted(value["groupList"]) == ["both", "offline", "online"]


def test_topics_and_subscription_of_a_group(desk: Desk) -> None:
    desk.offsets.commit("t", "g", 0, 1)
    desk.join("g", "u")
    topics = value_of(ask(table(desk), RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}))
    assert topics == {"brokerAddr": "127.0.0.1:10911", "topicList": ["t"]}
    found = value_of(ask(table(desk), RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g", "topic": "u"}))
    assert (found["group"], found["topic"], found["subscriptionData"]["subString"]) == ("g", "u", "*")
    missing = value_of(ask(table(desk), RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g", "topic": "t"}))
    assert missing == {"group": "g", "topic": "t"}


def test_correction_is_the_smallest_progress_of_any_group(desk: Desk) -> None:
    desk.topic("t")
    desk.append("t", 0, b"1", b"2", b"3", b"4")
    for group, offset in (("slow", 1), ("fast", 3), ("left-out", 0)):
        desk.offsets.commit("t", group, 0, offset)

    def correction(compare: str) -> dict[int, int]:
        fields = {"topic": "t", "compareGroup": compare, "filterGroups": "left-out"}
        value = value_of(ask(table(desk), RequestCode.QUERY_CORRECTION_OFFSET, fields))
        offsets = value["correctionOffsets"]
        assert isinstance(offsets, dict)
        return {int(queue_id): offset for queue_id, offset in offsets.items()}

    assert correction("fast") == {0: 1}
    assert correction("left-out") == {0: 2**63 - 1}
    assert correction("nobody") == {0: 1}

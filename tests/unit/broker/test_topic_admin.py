"""Administration of topics: create, change, delete, show."""

import asyncio
from collections.abc import Mapping

import pytest

from kappamq.broker.handlers.topic_admin import TopicAdminHandlers
from kappamq.broker.router import Handler
from kappamq.model import fastjson
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.broker.admin_desk import Desk, ask, queue, value_of


class Told:
    """Counts how often a handler waited for the name servers."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def table(desk: Desk, told: Told | None = None) -> Mapping[int, Handler]:
    return TopicAdminHandlers(
        broker="b1",
        topics=desk.topics,
        offsets=desk.offsets,
        members=desk.members,
        statistics=desk.statistics,
        store=desk.store,
        settled=told or Told(),
        checkpointing=asyncio.Lock(),
    ).table()


def create(desk: Desk, name: str, **fields: str) -> int:
    fields = {"topic": name, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"} | fields
    return ask(table(desk), RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code


def test_a_new_topic_is_answered_after_the_name_servers_know_it(desk: Desk) -> None:
    told = Told()
    version = desk.topics.version.counter
    fields = {"topic": "t", "readQueueNums": "3", "writeQueueNums": "2", "perm": "4", "order": "true"}
    assert ask(table(desk, told), RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    topic = desk.topics.get("t")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order) == (3, 2, 4, True)
    assert told.count == 1
    assert desk.topics.version.counter == version + 1


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("bad name", {}),
        ("", {}),
        ("TBW102", {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("c1", {}),
        ("t", {"readQueueNums": "-1"}),
        ("t", {"perm": "99"}),
        ("t", {"attributes": "message.type=FIFO"}),
        ("t", {"attributes": "+colour=red"}),
        ("t", {"attributes": "+message.type=SOMETIMES"}),
        ("t", {"attributes": "+queue.type=BatchCQ"}),
        ("t", {"attributes": "-message.type"}),
    ],
)
def test_what_cannot_be_a_topic_is_refused(desk: Desk, name: str, fields: dict[str, str]) -> None:
    assert create(desk, name, **fields) == ResponseCode.INVALID_PARAMETER
    assert desk.changes == 0


def test_attributes_are_kept_without_sign_and_changed_one_by_one(desk: Desk) -> None:
    assert create(desk, "t", attributes="+message.type=FIFO,+reserve.time=5") == 0
    assert desk.topics.get("t").attributes == {"message.type": "FIFO", "reserve.time": "5"}
    assert create(desk, "t", readQueueNums="4") == 0
    assert desk.topics.get("t").attributes == {"message.type": "FIFO", "reserve.time": "5"}
    assert create(desk, "t", attributes="-reserve.time,+message.type=NORMAL") == 0
    assert desk.topics.get("t").attributes == {"message.type": "NORMAL"}


def test_a_list_creates_each_topic(desk: Desk) -> None:
    body = fastjson.dumps(
        {
            "topicConfigList": [
                {"topicName": "a", "readQueueNums": 1, "writeQueueNums": 1, "attributes": {"+message.type": "DELAY"}},
                {"topicName": "b", "readQueueNums": 5, "writeQueueNums": 5},
            ]
        }
    ).encode()
    assert ask(table(desk), RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body).code == 0
    assert desk.topics.get("a").attributes == {"message.type": "DELAY"}
    assert desk.topics.get("b").read_queue_nums == 5
    assert ask(table(desk), RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=b"{}").code == ResponseCode.SYSTEM_ERROR


def test_deleting_a_topic_takes_queues_progress_and_figures_with_it(desk: Desk) -> None:
    told = Told()
    desk.topic("t")
    desk.append("t", 0, b"one", b"two")
    desk.offsets.commit("t", "g", 0, 1)
    desk.statistics.stored("t", 2, 100)
    version = desk.topics.version.counter
    assert ask(table(desk, told), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}).code == 0
    assert desk.topics.find("t") is None
    assert desk.store.max_offset("t", 0) == 0
    assert desk.offsets.find("t", "g", 0) is None
    assert desk.statistics.windows("TOPIC_PUT_NUMS", "t") is None
    assert desk.topics.version.counter == version + 1
    assert told.count == 1
    assert ask(table(desk), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}).code == 0


@pytest.mark.parametrize("name", ["", " ", "TBW102", "b1", ".", "..", "../commitlog", "/"])
def test_topics_of_the_broker_and_paths_cannot_be_deleted(desk: Desk, name: str) -> None:
    desk.topic("t")
    desk.append("t", 0, b"kept")
    changes = desk.changes
    reply = ask(table(desk), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert desk.changes == changes
    assert desk.store.max_offset("t", 0) == 1
    assert list((desk.settings.current.data / "commitlog").iterdir())


def test_queues_of_unknown_topics_are_cleaned(desk: Desk) -> None:
    desk.topic("kept")
    desk.append("kept", 0, b"x")
    desk.append("stray", 0, b"x")
    assert ask(table(desk), RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert not desk.store.has_queue("stray", 0)
    assert desk.store.has_queue("kept", 0)


def test_every_queue_of_a_new_topic_is_listed_at_once(desk: Desk) -> None:
    desk.topic("t", queues=3)
    value = value_of(ask(table(desk), RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"}))
    assert value["offsetTable"] == {
        queue("t", number): {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0} for number in range(3)
    }
    assert value["topicPutTps"] == 0.0
    missing = ask(table(desk), RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_offsets_and_the_time_of_the_last_message_are_shown(desk: Desk) -> None:
    desk.topic("t")
    desk.append("t", 1, b"one")
    desk.clock.advance(ms=500)
    desk.append("t", 1, b"two")
    value = value_of(ask(table(desk), RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"}))
    assert value["offsetTable"][queue("t", 1)] == {
        "lastUpdateTimestamp": desk.clock.now_ms(),
        "maxOffset": 2,
        "minOffset": 0,
    }


def test_topics_are_shown_one_by_one_and_all_together(desk: Desk) -> None:
    desk.topic("t")
    one = value_of(ask(table(desk), RequestCode.GET_TOPIC_CONFIG, {"topic": "t"}))
    assert (one["topicName"], one["readQueueNums"]) == ("t", 2)
    assert ask(table(desk), RequestCode.GET_TOPIC_CONFIG, {"topic": "none"}).code == ResponseCode.TOPIC_NOT_EXIST
    reply = ask(table(desk), RequestCode.GET_ALL_TOPIC_CONFIG)
    value = value_of(reply)
    assert reply.fields["totalTopicNum"] == str(len(value["topicConfigTable"]))
    assert value["dataVersion"]["counter"] == desk.topics.version.counter
    assert value["topicConfigTable"]["t"] == one
    system = value_of(ask(table(desk), RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "c1", "b1", "SCHEDULE_TOPIC_XXXX"} <= set(system)
    assert "t" not in system


def entries_of(desk: Desk, **fields: str) -> dict[str, str]:
    return {"topic": "t", "queueId": "0", "index": "0", "count": "10"} | fields


def test_entries_of_a_queue_show_what_a_group_would_take(desk: Desk) -> None:
    desk.topic("t")
    first, second = desk.append("t", 0, b"one", b"two", properties="TAGS\x01A\x02")
    desk.join("g", "t")
    value = value_of(ask(table(desk), RequestCode.QUERY_CONSUME_QUEUE, entries_of(desk, consumerGroup="g")))
    assert [entry["physicOffset"] for entry in value["queueData"]] == [first, second]
    assert all(entry["eval"] for entry in value["queueData"])
    assert (value["minQueueIndex"], value["maxQueueIndex"]) == (0, 2)
    assert value["subscriptionData"]["topic"] == "t"
    offline = value_of(ask(table(desk), RequestCode.QUERY_CONSUME_QUEUE, entries_of(desk, consumerGroup="none")))
    assert offline["filterData"] == "none@t is not online!"
    assert not any(entry["eval"] for entry in offline["queueData"])


def test_entries_that_do_not_exist_are_told_apart(desk: Desk) -> None:
    desk.topic("t")
    desk.append("t", 0, b"one")
    beyond = ask(table(desk), RequestCode.QUERY_CONSUME_QUEUE, entries_of(desk, index="9"))
    assert value_of(beyond) == {"maxQueueIndex": 1, "minQueueIndex": 0, "queueData": []}
    missing = ask(table(desk), RequestCode.QUERY_CONSUME_QUEUE, entries_of(desk, queueId="1"))
    assert missing.code == ResponseCode.SYSTEM_ERROR

"""Bodies of answers to administrators: RocketMQ's field names and its dialect."""

import pytest

from kappamq.errors import RemoteProtocolError
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.model.message import Queue
from kappamq.wire import admin_bodies
from kappamq.wire.admin_bodies import ConsumeStats, QueueBounds, QueueProgress
from kappamq.wire.bodies import decode_offset_table, decode_queue_table, decode_topic_configs

QUEUE = Queue("t", "b", 0)


def test_queues_are_whole_objects_as_keys() -> None:
    bounds = {QUEUE: QueueBounds(last_update_timestamp=3, max_offset=2, min_offset=1)}
    body = admin_bodies.encode_topic_stats(bounds, put_tps=0.5)
    assert body == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:'
        b'{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}},"topicPutTps":0.5}'
    )
    assert decode_queue_table(body)[QUEUE]["maxOffset"] == 2


def test_progress_sums_what_is_behind_and_in_flight() -> None:
    progress = QueueProgress(broker_offset=10, consumer_offset=4, last_timestamp=0, pull_offset=7)
    stats = ConsumeStats(progress={QUEUE: progress, Queue("t", "b", 1): progress}, tps=1.5)
    assert (stats.behind, stats.inflight) == (12, 6)
    body = admin_bodies.encode_broker_consume_stats({"g": [stats], "h": []}, broker_address="a:1")
    assert b'"totalDiff":12,"totalInflightDiff":6' in body
    assert b'{"h":[]}' in body


def test_the_topic_table_is_read_by_slaves() -> None:
    topics = {"t": TopicConfig(topic_name="t", attributes={"message.type": "FIFO"})}
    body = admin_bodies.encode_topic_table(topics, DataVersion(counter=3, timestamp=9))
    assert decode_topic_configs(body) == (topics, DataVersion(counter=3, timestamp=9))
    assert b'"topicQueueMappingDetailMap":{}' in body


def test_lists_of_offsets_for_clients_that_read_no_object_keys() -> None:
    body = admin_bodies.encode_offset_list({QUEUE: 5})
    assert body == b'{"offsetTable":[{"brokerName":"b","queueId":0,"topic":"t","offset":5}]}'
    assert decode_offset_table(body) == {QUEUE: 5}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"topicConfigList":{}}', b'{"topicConfigList":[1]}', b"[]"])
def test_lists_to_create_must_be_lists_of_objects(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        admin_bodies.decode_topic_list_to_create(body)


def test_lists_to_create_have_a_limit() -> None:
    body = b'{"groupConfigList":[' + b",".join([b'{"groupName":"g"}'] * (admin_bodies.LIST_MAX + 1)) + b"]}"
    with pytest.raises(RemoteProtocolError, match="too many"):
        admin_bodies.decode_group_list_to_create(body)

"""Topic tables of registrations: the quick way and the one that knows RocketMQ's dialect agree."""

import pytest

from kappamq.errors import RemoteProtocolError
from kappamq.kernel import crc31
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.wire.bodies import encode_object
from kappamq.wire.registration import BrokerTopics, decode_registration, encode_registration

TOPICS = {
    "orders": TopicConfig(topic_name="orders", attributes={"message.type": "FIFO"}, order=True, perm=4),
    'quoted "ä"': TopicConfig(topic_name='quoted "ä"', read_queue_nums=1, write_queue_nums=2),
}
TABLE = BrokerTopics(DataVersion(counter=3, timestamp=5), TOPICS)


def test_bytes_are_those_of_the_dialect() -> None:
    wrapper = {
        "dataVersion": TABLE.version,
        "mappingDataVersion": TABLE.version,
        "topicConfigTable": TOPICS,
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    expected = encode_object({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    assert encode_registration(TABLE) == expected


def test_what_is_encoded_is_decoded() -> None:
    body = encode_registration(TABLE)
    assert decode_registration(body, compressed=False, expected_crc=crc31(body)) == TABLE


@pytest.mark.parametrize(
    "config",
    [
        '{"perm":"4"}',  # A number as text, and no name.
        '{"perm":4,"attributes":null,"topicName":"orders"}',
        "{'perm':4}",
    ],
)
def test_other_brokers_write_it_differently(config: str) -> None:
    body = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{"orders":{config}}}}}}}'.encode()
    [topic] = decode_registration(body, compressed=False, expected_crc=0).topics.values()
    assert (topic.topic_name, topic.perm, topic.attributes) == ("orders", 4, {})


def test_one_object_written_twice_as_a_reference() -> None:
    body = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":7},"topicConfigTable":'
        b'{"a":{"topicName":"a","attributes":{"k":"v"}},'
        b'"b":{"topicName":"b","attributes":{"$ref":"$.topicConfigSerializeWrapper.topicConfigTable.a.attributes"}}}}}'
    )
    table = decode_registration(body, compressed=False, expected_crc=0)
    assert (table.version.counter, table.topics["b"].attributes) == (7, {"k": "v"})


@pytest.mark.parametrize(
    "body", [b"[1]", b"{", b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{"perm":"x"}}}}']
)
def test_what_is_no_table_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_registration(body, compressed=False, expected_crc=0)

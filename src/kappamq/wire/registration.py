"""Body of REGISTER_BROKER: the topic table of a broker, plain or deflated.

Deflated (zlib): i32 len, DataVersion JSON │ i32 topics, each i32 len + text │ i32 len, filter servers JSON │
                 version >= 5.0: i32 mappings, each i32 len + JSON
Topic text: `name readQueues writeQueues permission filterType [attributes JSON]`
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import msgspec

from kappamq.errors import RemoteProtocolError
from kappamq.kernel import crc31
from kappamq.model import fastjson
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.wire.bodies import convert, decode_object

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
VERSION_WITH_MAPPINGS: Final = 413

_I32 = Struct(">i")


@dataclass(frozen=True, slots=True)
class BrokerTopics:
    """The topic table that a broker registers."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)


class _Wrapper(msgspec.Struct, rename="camel"):
    data_version: DataVersion
    topic_config_table: dict[str, TopicConfig]


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper


_decoder = msgspec.json.Decoder(_Body)


def encode_registration(table: BrokerTopics) -> bytes:
    # Nothing in it needs RocketMQ's dialect, and with thousands of topics the ordinary way takes seconds.
    return msgspec.json.encode(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": table.version,
                "mappingDataVersion": table.version,
                "topicConfigTable": table.topics,
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )


def decode_registration(body: bytes, *, compressed: bool, expected_crc: int) -> BrokerTopics:
    """Topic table of a registration. Raises `RemoteProtocolError` for a wrong checksum or a malformed body."""
    if expected_crc and expected_crc != crc31(body):
        raise RemoteProtocolError("crc32 not match")
    if not body:
        return BrokerTopics()
    if compressed:
        return _decode_deflated(_inflate(body))
    return _decode_plain(body) or _decode_dialect(body)


def _decode_plain(body: bytes) -> BrokerTopics | None:
    """The table of a body that is strict JSON and complete, as ours are; `None` for any other."""
    if b"$ref" in body:
        return None
    try:
        wrapper = _decoder.decode(body).topic_config_serialize_wrapper
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return BrokerTopics(version=wrapper.data_version, topics=wrapper.topic_config_table)


def _decode_dialect(body: bytes) -> BrokerTopics:
    wrapper = decode_object(body).get("topicConfigSerializeWrapper") or {}
    return BrokerTopics(
        version=convert(wrapper.get("dataVersion") or {}, DataVersion),
        topics={
            str(name): _topic(str(name), config) for name, config in (wrapper.get("topicConfigTable") or {}).items()
        },
    )


def _topic(name: str, value: Mapping[str, Any]) -> TopicConfig:
    present = {key: member for key, member in value.items() if member is not None}
    present.setdefault("topicName", name)
    return convert(present, TopicConfig)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as fault:
        raise RemoteProtocolError(f"registration body does not inflate: {fault}") from None
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(f"registration body inflates to more than {INFLATED_BYTES_MAX} bytes")
    return plain


def _decode_deflated(plain: bytes) -> BrokerTopics:
    try:
        text, at = _take(plain, 0)
        version = convert(fastjson.loads(text), DataVersion)
        (count,) = _I32.unpack_from(plain, at)
        at += 4
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            text, at = _take(plain, at)
            topic = _topic_of_text(text.decode())
            topics[topic.topic_name] = topic
    except (struct_error, UnicodeDecodeError, ValueError):
        raise RemoteProtocolError("deflated registration body is malformed") from None
    return BrokerTopics(version=version, topics=topics)


def _take(plain: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _I32.unpack_from(plain, at)
    if size < 0 or at + 4 + size > len(plain):
        raise RemoteProtocolError("deflated registration body is cut short")
    return plain[at + 4 : at + 4 + size], at + 4 + size


def _topic_of_text(text: str) -> TopicConfig:
    words = text.split(" ", 5)
    if len(words) < 5:
        raise ValueError(text)
    attributes = fastjson.loads(words[5]) if len(words) > 5 and words[5] else {}
    return TopicConfig(
        topic_name=words[0],
        read_queue_nums=int(words[1]),
        write_queue_nums=int(words[2]),
        perm=int(words[3]),
        topic_filter_type=words[4],
        attributes=attributes if isinstance(attributes, dict) else {},
    )

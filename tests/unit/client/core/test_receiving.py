"""From pull replies to messages."""

from __future__ import annotations

import zlib

from kappamq.client.core.receiving import decode_pull, restore_topic
from kappamq.model.ids import pack_host
from kappamq.model.message import Flags
from kappamq.model.record import NewRecord
from kappamq.model.selector import Selector
from kappamq.wire.batch import BatchItem, encode_batch

HOST = pack_host("127.0.0.1", 1)


def record(body: bytes, properties: str = "", *, flags: int = 0, topic: str = "orders", queue_offset: int = 5) -> bytes:
    new = NewRecord(topic, 1, body, properties.encode(), 1, HOST, HOST, flags=flags)
    return new.encode(queue_offset=queue_offset, log_offset=100, stored_at_ms=2, append_crc=False)


def test_bodies_are_unpacked_and_brokers_known() -> None:
    body = record(b"plain") + record(zlib.compress(b"packed"), flags=int(Flags.COMPRESSED))
    messages = decode_pull(body, broker="b")
    assert [message.body for message in messages] == [b"plain", b"packed"]
    assert {message.queue.broker for message in messages} == {"b"}
    assert not messages[1].flags & Flags.COMPRESSED


def test_tags_are_compared_exactly() -> None:
    # "Aa" and "BB" have the same hash, so that a broker lets both through.
    body = record(b"1", "TAGS\x01Aa\x02") + record(b"2", "TAGS\x01BB\x02") + record(b"3")
    messages = decode_pull(body, broker="b", selector=Selector.parse("Aa", "TAG"))
    assert [message.body for message in messages] == [b"1"]
    assert len(decode_pull(body, broker="b", selector=Selector.parse("*", "TAG"))) == 3


def test_inner_batches_become_single_messages() -> None:
    inner = encode_batch([BatchItem(b"1", b"k\x01v\x02"), BatchItem(b"2", b"", 9)])
    flags = int(Flags.NEED_UNWRAP | Flags.INNER_BATCH)
    messages = decode_pull(record(inner, flags=flags), broker="b")
    assert [(message.body, message.queue_offset, message.flag) for message in messages] == [(b"1", 5, 0), (b"2", 6, 9)]
    assert messages[0].properties == {"k": "v"}


def test_retried_messages_show_their_own_topic() -> None:
    (message,) = decode_pull(record(b"x", "RETRY_TOPIC\x01orders\x02", topic="%RETRY%g"), broker="b")
    restore_topic([message])
    assert message.topic == "orders"

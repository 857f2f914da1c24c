"""The worked examples of the protocol and file formats, byte for byte."""

import hashlib

import pytest

from kappamq.kernel import java_hash
from kappamq.model.ids import format_host, offset_id, pack_host, parse_offset_id, unique_id
from kappamq.model.properties import decode_properties, encode_properties, tags_code
from kappamq.model.record import NewRecord, decode_record, encode_blank, verify_record
from kappamq.wire.batch import BatchItem, decode_batch, encode_batch
from kappamq.wire.command import Command, HeaderType
from kappamq.wire.frame import FrameDecoder, encode_frame
from kappamq.wire.headers import RouteRequest, decode_fields

JSON_FRAME = bytes.fromhex(
    "00 00 00 89 00 00 00 85 7b 22 63 6f 64 65 22 3a 31 30 35 2c 22 65 78 74 46 69 65 6c 64 73 22 3a"
    "7b 22 74 6f 70 69 63 22 3a 22 54 6f 70 69 63 54 65 73 74 22 7d 2c 22 66 6c 61 67 22 3a 30 2c 22"
    "6c 61 6e 67 75 61 67 65 22 3a 22 50 59 54 48 4f 4e 22 2c 22 6f 70 61 71 75 65 22 3a 37 2c 22 73"
    "65 72 69 61 6c 69 7a 65 54 79 70 65 43 75 72 72 65 6e 74 52 50 43 22 3a 22 4a 53 4f 4e 22 2c 22"
    "76 65 72 73 69 6f 6e 22 3a 34 37 39 7d"
)
BINARY_FRAME = bytes.fromhex(
    "00 00 00 2d 01 00 00 29 00 69 03 01 df 00 00 00 07 00 00 00 00 00 00 00 00 00 00 00 14"
    "00 05 74 6f 70 69 63 00 00 00 09 54 6f 70 69 63 54 65 73 74"
)
RECORD = bytes.fromhex(
    "00 00 00 86 da a3 20 a7 69 c8 65 ed 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00 2a 00 00 00 00 00 10 00 00"
    "00 00 00 00 00 00 01 8e 0e 9c 20 95 c0 a8 01 0a 00 00 d4 31 00 00 01 8e 0e 9c 20 97 c0 a8 01 14 00 00 2a 9f"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0e 48 65 6c 6c 6f 20 52 6f 63 6b 65 74 4d 51"
    "09 54 6f 70 69 63 54 65 73 74 00 14 54 41 47 53 01 54 61 67 41 02 57 41 49 54 01 74 72 75 65 02"
)


def route_request(header_type: HeaderType) -> Command:
    command = RouteRequest(topic="TopicTest").command()
    command.request_id = 7
    command.header_type = header_type
    return command


@pytest.mark.parametrize(("header_type", "frame"), [(HeaderType.JSON, JSON_FRAME), (HeaderType.BINARY, BINARY_FRAME)])
def test_route_request_encodes_and_decodes_however_it_is_cut(header_type: HeaderType, frame: bytes) -> None:
    assert encode_frame(route_request(header_type)) == frame
    for pieces in ([frame], [bytes((byte,)) for byte in frame], [frame[:5], frame[5:] + frame[:9]]):
        decoder = FrameDecoder()
        commands = [command for piece in pieces for command in decoder.feed(piece)]
        assert len(commands) == 1
        assert commands[0].request_id == 7
        assert decode_fields(commands[0].fields, RouteRequest).topic == "TopicTest"


def test_properties() -> None:
    text = encode_properties({"TAGS": "TagA", "WAIT": "true"})
    assert text.encode().hex(" ") == "54 41 47 53 01 54 61 67 41 02 57 41 49 54 01 74 72 75 65 02"
    assert decode_properties(text[:-1]) == {"TAGS": "TagA", "WAIT": "true"}


def test_record_of_a_pull_reply() -> None:
    record = NewRecord(
        topic="TopicTest",
        queue_id=3,
        body=b"Hello RocketMQ",
        properties=encode_properties({"TAGS": "TagA", "WAIT": "true"}).encode(),
        born_at_ms=1709642096789,
        born_host=pack_host("192.168.1.10", 54321),
        store_host=pack_host("192.168.1.20", 10911),
    )
    data = record.encode(queue_offset=42, log_offset=1048576, stored_at_ms=1709642096791, append_crc=False)
    assert data == RECORD
    message = decode_record(data)
    assert message.body == b"Hello RocketMQ"
    assert (message.queue_offset, message.log_offset, message.tags) == (42, 1048576, "TagA")
    assert message.offset_id == "C0A8011400002A9F0000000000100000"
    assert verify_record(data, 0, log_offset=1048576) == len(RECORD)


def test_record_of_the_store_with_and_without_its_checksum() -> None:
    properties = {
        "KEYS": "ORDER-1001",
        "UNIQ_KEY": "C0A8010A1A2B18B4AAC24F1E00000001",
        "TAGS": "TagA",
        "CLUSTER": "DefaultCluster",
    }
    record = NewRecord(
        topic="TopicTest",
        queue_id=1,
        body=b"Hello RocketMQ",
        properties=encode_properties(properties).encode(),
        born_at_ms=1700000000000,
        born_host=pack_host("192.168.1.10", 50000),
        store_host=pack_host("192.168.1.20", 10911),
    )
    plain = record.encode(queue_offset=5, log_offset=4096, stored_at_ms=1700000000123, append_crc=False)
    assert hashlib.sha1(plain, usedforsecurity=False).hexdigest() == "bbdb6a665e1f02ed5f2abdf2c4072a544ed8a0f9"
    checked = record.encode(queue_offset=5, log_offset=4096, stored_at_ms=1700000000123, append_crc=True)
    assert len(checked) == 225
    assert checked[:4].hex() == "000000e1"
    assert checked[-20:] == b"__CRC32#\x011973568750\x02"
    assert verify_record(checked, 0, log_offset=4096) == 225


def test_blank_filler() -> None:
    assert encode_blank(200).hex(" ") == "00 00 00 c8 cb d4 31 94"


def test_batch_item() -> None:
    data = encode_batch([BatchItem(b"A", encode_properties({"TAGS": "T1"}).encode())])
    assert data.hex(" ") == (
        "00 00 00 1f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 41 00 08 54 41 47 53 01 54 31 02"
    )
    assert decode_batch(data + data)[1].body == b"A"


def test_ids() -> None:
    assert offset_id(pack_host("192.168.1.20", 10911), 1048576) == "C0A8011400002A9F0000000000100000"
    v6 = "20010DB800000000000000000000002000002A9F0000000000100000"
    assert offset_id(pack_host("2001:db8::20", 10911), 1048576) == v6
    assert parse_offset_id(v6) == ("[2001:db8::20]:10911", 1048576)
    host = pack_host("192.168.1.10", 0)[:-4]
    made = unique_id(host, pid=12345, nonce=0x18B4AAC2, since_month_ms=390896789, counter=5)
    assert made == "C0A8010A303918B4AAC2174C9C950005"
    assert format_host(pack_host("::1", 9876)) == "[::1]:9876"


@pytest.mark.parametrize(
    ("text", "code"),
    [("TagA", 2598919), ("TagB", 2598920), ("*", 42), ("中文", 646394), ("polygenelubricants", -2147483648)],
)
def test_tag_codes(text: str, code: int) -> None:
    assert tags_code(text) == code == java_hash(text)


def test_java_hash_of_long_and_astral_text() -> None:
    def plain(text: str) -> int:
        value = 0
        units = text.encode("utf-16-be")
        for at in range(0, len(units), 2):
            value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value

    for text in ("", "a" * 1000, "é" * 300, "😀 tags " * 90, "x" * 256, "y" * 257):
        assert java_hash(text) == plain(text)

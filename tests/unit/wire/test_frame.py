"""Frames that cannot be, and frames cut in every way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import LocalProtocolError, RemoteProtocolError
from kappamq.wire.command import Command, HeaderType
from kappamq.wire.frame import FRAME_BYTES_MAX, FrameDecoder, encode_frame

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(
    code=st.integers(-(2**15), 2**15 - 1),
    request_id=st.integers(-(2**31), 2**31 - 1),
    fields=st.dictionaries(TEXT, TEXT.filter(bool), max_size=5),
    body=st.binary(max_size=200),
    remark=st.none() | TEXT.filter(bool),
    header_type=st.sampled_from(HeaderType),
    cuts=st.lists(st.integers(1, 50), max_size=20),
)
def test_a_stream_of_commands_survives_any_cut(
    code: int,
    request_id: int,
    fields: dict[str, str],
    body: bytes,
    remark: str | None,
    header_type: HeaderType,
    cuts: list[int],
) -> None:
    command = Command(code, request_id, fields, body, 1, remark, "JAVA", 479, header_type)
    stream = encode_frame(command) * 3
    decoder = FrameDecoder()
    got: list[Command] = []
    for cut in cuts:
        got += decoder.feed(stream[:cut])
        stream = stream[cut:]
    got += decoder.feed(stream)
    assert got == [command] * 3
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize(
    "stream",
    [
        b"\x00\x00\x00\x03abc",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        (FRAME_BYTES_MAX - 3).to_bytes(4, "big") + b"\x00\x00\x00\x10",
        b"\x00\x00\x00\x08\x00\x00\x00\x05{}{}",
        b"\x00\x00\x00\x08\x02\x00\x00\x02{}{}",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
        b"\x00\x00\x00\x06\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x06\x01\x00\x00\x02ab",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b'\x00\x00\x00\x1c\x00\x00\x00\x18{"code":"x","opaque":1}  ',
    ],
    ids=range(11),
)
def test_bytes_that_are_no_frame_raise(stream: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(stream)


def test_deep_json_raises() -> None:
    header = b'{"code":1,"extFields":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    frame = (len(header) + 4).to_bytes(4, "big") + b"\x00" + len(header).to_bytes(3, "big") + header
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(frame)


def test_too_many_fields_raise() -> None:
    with pytest.raises(RemoteProtocolError, match="fields"):
        FrameDecoder().feed(encode_frame(Command(1, fields={f"f{n}": "v" for n in range(300)})))


@given(st.binary(max_size=400))
def test_noise_never_does_worse_than_raise(noise: bytes) -> None:
    decoder = FrameDecoder()
    try:
        decoder.feed(noise)
    except RemoteProtocolError:
        return
    assert decoder.buffered_bytes <= len(noise)


def test_numbers_and_booleans_in_fields_read_as_text() -> None:
    header = (
        b'{"code":10,"extFields":{"queueId":3,"batch":false,"x":null},"flag":0,"language":1,"opaque":4,"version":333}\n'
    )
    frame = (len(header) + 4).to_bytes(4, "big") + b"\x00" + len(header).to_bytes(3, "big") + header
    (command,) = FrameDecoder().feed(frame)
    assert command.fields == {"queueId": "3", "batch": "false"}
    assert command.language == "CPP"


def test_a_frame_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(1, body=bytes(FRAME_BYTES_MAX)))


def test_a_large_frame_in_small_reads_is_joined_once() -> None:
    frame = encode_frame(Command(1, body=b"x" * 300_000))
    decoder = FrameDecoder()
    got = [command for at in range(0, len(frame), 1000) for command in decoder.feed(frame[at : at + 1000])]
    assert [len(command.body) for command in got] == [300_000]

"""What a client sends in bulk, in plain Python: the specification of what a compiled kernel must do.

A column is two buffers, as Arrow has them: packed i32 offsets in native byte order, and the data that they point into.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from struct import Struct
from typing import Any, TypeAlias

INTERFACE = 1
"""Number of this set of functions: a compiled one with another number was built from other sources."""

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Column: TypeAlias = "tuple[Buffer, Buffer]"
SendReplied: TypeAlias = tuple[int, str, int, int, str | None, str | None, bool, int]

ID_HASH_BYTES = 12
ID_DIGITS = 32

_FRAME = Struct(">iI")
_ITEM = Struct(">iiiii")
_UNSAFE = re.compile(rb'[\x00-\x1f"\\]')
_MEMBER = re.compile(
    rb'"(?P<name>[ !#-\[\]-\x7f]*)":(?:"(?P<text>[ !#-\[\]-\x7f]*)"|(?P<number>0|[1-9][0-9]{0,9}(?![0-9]))'
    rb"|null|(?P<object>\{))"
)
_COUNT = re.compile(rb"0|[1-9][0-9]{0,17}")
_HEADER_NAMES = {
    b"code",
    b"extFields",
    b"flag",
    b"language",
    b"opaque",
    b"remark",
    b"serializeTypeCurrentRPC",
    b"version",
}
_REPLY_NAMES = {b"msgId", b"queueId", b"queueOffset", b"transactionId", b"MSG_REGION", b"TRACE_ON"}
_TEXT_BYTES_MAX = 0x7FFF
_I32_MAX = 0x7FFFFFFF
_I64_MAX = 0x7FFFFFFFFFFFFFFF


def encode_sends(
    texts: Column,
    bodies: Column,
    *,
    start: int,
    count: int,
    templates: Sequence[tuple[bytes, bytes, bytes]],
    request_id: int,
) -> bytes:
    """Frames of the sends of rows from `start` on, one after the other.

    `texts` (properties) and `bodies` are columns: packed i32 offsets, and what they point into. A header is a template
    around the text of the properties (within JSON quotes) and the request id; rows take the templates in turn, and
    request ids count up.
    """
    text_ends, text_data = _checked(texts, start, count)
    body_ends, body_data = _checked(bodies, start, count)
    if not templates or not 0 <= request_id <= 0x7FFFFFFF - count:
        raise ValueError("there is no template, or the request ids do not fit")
    frames: list[bytes] = []
    for row in range(count):
        before, between, after = templates[row % len(templates)]
        text = bytes(text_data[text_ends[row] : text_ends[row + 1]])
        body = bytes(body_data[body_ends[row] : body_ends[row + 1]])
        header = before + _escape(text) + between + b"%d" % (request_id + row) + after
        frames += (_FRAME.pack(len(header) + len(body) + 4, len(header)), header, body)
    return b"".join(frames)


def encode_batch_rows(texts: Column, bodies: Column, *, start: int, count: int) -> bytes:
    """Body of a batch send (see `wire/batch.py`) that carries the rows from `start` on: properties and bodies."""
    text_ends, text_data = _checked(texts, start, count)
    body_ends, body_data = _checked(bodies, start, count)
    pieces: list[bytes] = []
    for row in range(count):
        text = bytes(text_data[text_ends[row] : text_ends[row + 1]])
        body = bytes(body_data[body_ends[row] : body_ends[row + 1]])
        size = _ITEM.size + len(body) + 2 + len(text)
        if len(text) > _TEXT_BYTES_MAX or size > _I32_MAX:
            raise ValueError("a row is too long for its length fields")
        pieces += (_ITEM.pack(size, 0, 0, 0, len(body)), body, len(text).to_bytes(2, "big"), text)
    return b"".join(pieces)


def row_ids(stem: bytes, *, first: int, count: int) -> bytes:
    """Ids of rows that follow each other, 32 digits each: a hash of `stem` and the number of the row.

    They have the form of a client's unique id. RocketMQ: tools read the time of birth from digits 20 to 27; zero there
    means the start of the month.
    """
    if first < 0 or not 0 <= count <= _I32_MAX // ID_DIGITS or first > _I64_MAX - count:
        raise ValueError("there are no such rows")
    digests = [
        blake2b(b"%b%d" % (stem, row), digest_size=ID_HASH_BYTES).hexdigest().upper()
        for row in range(first, first + count)
    ]
    return "".join([f"{digest[:20]}00000000{digest[20:]}" for digest in digests]).encode()


def scan_send_replies(buffer: bytes, start: int, *, frame_bytes_max: int) -> tuple[int, list[SendReplied]]:
    """Replies to sends that were stored, as far as they follow each other from `start` on, and where they end.

    Each is: request id, offset id, queue id, queue offset, transaction id, region, whether traces are wanted, and where
    its frame ends.
    Everything else stops the scan and is left to those who decode headers: a frame that is not whole, another header
    than JSON in its shortest form, other codes and fields than those of a plain success, and a body.
    """
    found: list[SendReplied] = []
    if start < 0:
        raise ValueError("the scan begins before the buffer")
    while start + _FRAME.size <= len(buffer):
        size, header_bytes = _FRAME.unpack_from(buffer, start)
        end = start + 4 + size
        if header_bytes + 4 != size or size + 4 > frame_bytes_max or end > len(buffer):
            break
        replied = _replied(buffer[start + _FRAME.size : end], end)
        if replied is None:
            break
        found.append(replied)
        start = end
    return start, found


def _replied(header: bytes, end: int) -> SendReplied | None:
    pairs = _pairs(header, 0)
    if pairs is None or pairs[1] != len(header):
        return None
    values = pairs[0]
    fields = values.get(b"extFields")
    is_known = values.keys() <= _HEADER_NAMES and isinstance(fields, dict) and fields.keys() <= _REPLY_NAMES
    if not is_known or not isinstance(fields, dict) or not all(isinstance(value, bytes) for value in fields.values()):
        return None
    numbers = [values.get(name, 0) for name in (b"code", b"flag", b"opaque", b"version")]
    texts = [values.get(name, b"") for name in (b"language", b"serializeTypeCurrentRPC")]
    if not all(isinstance(number, int) for number in numbers) or not all(isinstance(text, bytes) for text in texts):
        return None
    queue_id, queue_offset = (_COUNT.fullmatch(fields.get(name, b"")) for name in (b"queueId", b"queueOffset"))
    is_stored = values.get(b"code") == 0 and values.get(b"flag") == 1 and values.get(b"remark") is None
    if not is_stored or queue_id is None or queue_offset is None or b"msgId" not in fields:
        return None
    request_id = values.get(b"opaque", -1)
    if not 0 <= request_id <= _I32_MAX:
        return None
    transaction_id, region = fields.get(b"transactionId"), fields.get(b"MSG_REGION")
    return (
        request_id,
        fields[b"msgId"].decode(),
        int(queue_id[0]),
        int(queue_offset[0]),
        None if transaction_id is None else transaction_id.decode(),
        None if region is None else region.decode(),
        fields.get(b"TRACE_ON") != b"false",
        end,
    )


def _pairs(text: bytes, at: int, *, is_inner: bool = False) -> tuple[dict[bytes, Any], int] | None:
    """Members of the JSON object at `at`, and where it ends; `None` unless it is as plain as can be."""
    values: dict[bytes, Any] = {}
    if text[at : at + 1] != b"{":
        return None
    while True:
        member = _MEMBER.match(text, at + 1)
        if member is None or member["name"] in values:
            return None
        at = member.end()
        value: Any = member["text"]
        if member["number"] is not None:
            value = int(member["number"])
        elif member["object"] is not None:
            inner = None if is_inner else _pairs(text, at - 1, is_inner=True)
            if inner is None:
                return None
            value, at = inner
        values[member["name"]] = value
        if text[at : at + 1] == b"}":
            return values, at + 1
        if text[at : at + 1] != b",":
            return None


def _checked(column: Column, start: int, count: int) -> tuple[Sequence[int], Buffer]:
    """Offsets of the rows, as a sequence, and the data that they lie within."""
    offsets, data = memoryview(column[0]).cast("B"), memoryview(column[1]).cast("B")
    if start < 0 or count < 0 or len(offsets) < (start + count + 1) * 4:
        raise ValueError("the rows lie outside of their column")
    ends = offsets[start * 4 : (start + count + 1) * 4].cast("i")
    if ends[0] < 0 or ends[-1] > len(data) or any(first > last for first, last in pairwise(ends)):
        raise ValueError("the offsets of a column do not ascend within its data")
    return ends, data


def _escape(text: bytes) -> bytes:
    """A JSON string of text in UTF-8, without its quotes."""
    return _UNSAFE.sub(lambda found: b"\\u%04x" % found[0][0], text)

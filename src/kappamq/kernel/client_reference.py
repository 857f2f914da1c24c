"""What a client sends in bulk, in plain Python: the specification of what a compiled kernel must do.

A column is two buffers, as Arrow has them: packed i32 offsets in native byte order, and the data that they point into.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from struct import Struct
from typing import TypeAlias

INTERFACE = 1
"""Number of this set of functions: a compiled one with another number was built from other sources."""

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Column: TypeAlias = "tuple[Buffer, Buffer]"

ID_HASH_BYTES = 12
ID_DIGITS = 32

_FRAME = Struct(">iI")
_ITEM = Struct(">iiiii")
_UNSAFE = re.compile(rb'[\x00-\x1f"\\]')
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

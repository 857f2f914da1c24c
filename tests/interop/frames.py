"""Remoting frames, just enough for a test bench that must not rest on the code under test.

    length (4) | header type (1) | header length (3) | header | body        length counts all after itself

Header type 0 is JSON, 1 is binary; only the first fields of a binary header are read here.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

FRAME_BYTES_MAX: Final = 16 * 2**20
REPLY_FLAG: Final = 0x1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame: its bytes, and of its header what tells frames apart."""

    raw: bytes
    code: int
    request_id: int
    flags: int
    body: bytes

    @property
    def is_reply(self) -> bool:
        return bool(self.flags & REPLY_FLAG)


def split(stream: bytes) -> Iterator[Frame]:
    """The whole frames of a byte stream, in order; a rest that is no whole frame is left out."""
    at = 0
    while at + 4 <= len(stream):
        (length,) = struct.unpack_from(">i", stream, at)
        assert 4 <= length <= FRAME_BYTES_MAX, f"no frame at byte {at}: its length is said to be {length}"
        if at + 4 + length > len(stream):
            return
        yield parse(stream[at : at + 4 + length])
        at += 4 + length


def parse(raw: bytes) -> Frame:
    """Read the header of one whole frame."""
    (mark,) = struct.unpack_from(">i", raw, 4)
    kind, header_length = mark >> 24, mark & 0xFFFFFF
    header, body = raw[8 : 8 + header_length], raw[8 + header_length :]
    if kind == 0:
        fields = json.loads(header)
        code, request_id, flags = fields["code"], fields["opaque"], fields["flag"]
    else:
        code, request_id, flags = struct.unpack_from(">h3xii", header)
    return Frame(raw=raw, code=code, request_id=request_id, flags=flags, body=body)


def request(code: int, fields: Mapping[str, str] | None = None, *, request_id: int = 1, body: bytes = b"") -> bytes:
    """A request with a JSON header."""
    header = {"code": code, "language": "OTHER", "version": 0, "opaque": request_id, "flag": 0}
    text = json.dumps({**header, "extFields": dict(fields or {})}).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


def ask(address: str, code: int, fields: Mapping[str, str] | None = None, *, seconds_max: float = 30.0) -> Frame:
    """Send one request on a connection of its own and return the reply."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=seconds_max) as connection:
        connection.sendall(request(code, fields))
        received = b""
        while True:
            chunk = connection.recv(65536)
            assert chunk, f"{address} closed the connection instead of answering {code}"
            received += chunk
            for frame in split(received):
                return frame

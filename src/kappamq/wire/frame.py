"""Frames: the outer layer of the protocol, and an incremental decoder.

length i32 (bytes that follow) │ header type u8 │ header length u24 │ header │ body
"""

from typing import Final

from kappamq.errors import LocalProtocolError, RemoteProtocolError
from kappamq.kernel import split_frames
from kappamq.wire.command import Command
from kappamq.wire.header_codec import decode_header, encode_header

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest frame either side accepts, its length field included."""
FRAME_HEAD_BYTES: Final = 8
"""What stands before the header."""


def encode_frame(command: Command) -> bytes:
    """Bytes of a command."""
    header = encode_header(command)
    size = len(header) + len(command.body) + 4
    if size + 4 > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"frame of {size + 4} bytes is over the limit of {FRAME_BYTES_MAX}: send less at once")
    return b"".join(
        (size.to_bytes(4, "big"), bytes((command.header_type,)), len(header).to_bytes(3, "big"), header, command.body)
    )


class FrameDecoder:
    """Turns a stream of bytes into commands, however it is cut."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = b""
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._wanted_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._rest) + self._pieces_bytes

    @property
    def is_amid_frame(self) -> bool:
        """Whether a part of a frame has come."""
        return bool(self._rest or self._pieces)

    def feed(self, data: bytes) -> list[Command]:
        """Commands that are whole with `data`.

        Raises `RemoteProtocolError` when the stream can never make sense again. The commands before the fault are
        lost then: the connection is to be closed.
        """
        buffer = self.join(data)
        frames = self.split(buffer)
        return [
            decode_header(header_type, buffer[header_at:body_at], buffer[body_at:end])
            for header_type, header_at, body_at, end in frames
        ]

    def join(self, data: bytes) -> bytes:
        """What came so far and is not taken yet, with `data`; nothing while a large frame is still on its way."""
        if self._wanted_bytes > 0 and len(data) < self._wanted_bytes:
            # A large frame arrives in many reads: joining at every one of them would copy it as often.
            self._pieces.append(data)
            self._pieces_bytes += len(data)
            self._wanted_bytes -= len(data)
            return b""
        self._wanted_bytes = 0
        if self._rest or self._pieces:
            data = b"".join((self._rest, *self._pieces, data))
            self._pieces.clear()
            self._pieces_bytes = 0
            self._rest = b""
        return data

    def split(self, buffer: bytes, start: int = 0) -> list[tuple[int, int, int, int]]:
        """Header type, header start, body start and end of each whole frame of what `join` gave; keeps the rest."""
        if not buffer:
            return []
        frames, consumed, fault = split_frames(buffer, self._frame_bytes_max, start)
        if fault is not None:
            raise RemoteProtocolError(fault)
        self._rest = buffer[consumed:] if consumed else buffer
        if len(self._rest) >= 4:
            self._wanted_bytes = int.from_bytes(self._rest[:4], "big") + 4 - len(self._rest)
        return frames

"""Columns to send and replies to sends, spoiled at random, and the comparison of what both kernels make of them."""

import random
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, TypeAlias

from kappamq.kernel import client_reference as reference
from kappamq.wire.command import REPLY_FLAG, Command, HeaderType
from kappamq.wire.frame import encode_frame

Columns: TypeAlias = "tuple[tuple[bytes, bytes], tuple[bytes, bytes]]"

PIECES: Final = (b'"', b"\\", b"{", b"}", b",", b":", b"0", b"9" * 9, b"null", b"\x00", b"\xff", b'"code":1,', b" ")
OFFSETS: Final = (-(2**31), -1, 0, 1, 7, 2**31 - 1)


class Input:
    """What a client has to encode, and what it is answered."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def columns(self) -> Columns:
        """Texts and bodies; their offsets are sometimes no offsets."""
        rows = self._random.randrange(6)
        return self._column(rows), self._column(rows)

    def replies(self) -> bytes:
        source = self._random
        data = bytearray(b"".join([self._reply() for _ in range(source.randrange(1, 5))]))
        if source.random() < 0.3:
            return bytes(data)
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(data) + 1)
            piece = source.choice(PIECES)
            # Overwritten rather than inserted, mostly: the lengths stay right, so that the header is looked at.
            data[at : at + (len(piece) if source.random() < 0.8 else 0)] = piece
        return bytes(data)

    def _column(self, rows: int) -> tuple[bytes, bytes]:
        source = self._random
        values = [source.choice((b"", b'"\\\x01\x02', "é日".encode(), source.randbytes(9))) for _ in range(rows)]
        ends = list(accumulate(map(len, values), initial=0))
        if source.random() < 0.4:
            ends[source.randrange(len(ends))] = source.choice(OFFSETS)
        offsets = b"".join([end.to_bytes(4, sys.byteorder, signed=True) for end in ends])
        return offsets[: source.choice((None, None, None, -1, -4))], b"".join(values)

    def _reply(self) -> bytes:
        source = self._random
        fields = {"msgId": source.randbytes(16).hex(), "queueId": str(source.randrange(9)), "queueOffset": "12"}
        more = (("MSG_REGION", "r"), ("TRACE_ON", "false"), ("transactionId", "T"), ("recallHandle", "h"))
        fields |= {name: value for name, value in more if source.random() < 0.3}
        command = Command(
            code=source.choice((0, 0, 0, 10)),
            request_id=source.getrandbits(31),
            fields=dict(source.sample(list(fields.items()), len(fields))),
            flag=source.choice((REPLY_FLAG, REPLY_FLAG, REPLY_FLAG, 0)),
            remark=source.choice((None, None, None, "é")),
            body=source.choice((b"", b"", b"", b"x")),
            header_type=source.choice((HeaderType.JSON, HeaderType.JSON, HeaderType.JSON, HeaderType.BINARY)),
        )
        return encode_frame(command)


def difference(columns: Columns, replies: bytes) -> tuple[str | None, int]:
    """Which function of the compiled kernel does something else than the reference; and how many replies it took."""
    from kappamq.kernel import _client as compiled

    templates = [(b"{", b",", b"}"), (b"", b"12", b"3")]
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        ("row_ids", lambda kernel: kernel.row_ids(replies, first=len(replies), count=2)),
        ("scan_send_replies", lambda kernel: kernel.scan_send_replies(replies, 0, frame_bytes_max=1 << 16)),
        ("scan within", lambda kernel: kernel.scan_send_replies(replies, len(replies) // 2, frame_bytes_max=300)),
    ]
    for start, count in ((0, 0), (0, 2), (1, 3), (0, 5), (-1, 2), (2, -1), (2**62, 2**62)):
        calls += [
            (
                "encode_sends",
                lambda kernel, start=start, count=count: kernel.encode_sends(  # type: ignore[misc]
                    *columns, start=start, count=count, templates=templates, request_id=9
                ),
            ),
            (
                "encode_batch_rows",
                lambda kernel, start=start, count=count: kernel.encode_batch_rows(  # type: ignore[misc]
                    *columns, start=start, count=count
                ),
            ),
        ]
    for name, call in calls:
        if _outcome(call, compiled) != _outcome(call, reference):
            return name, 0
    return None, len(compiled.scan_send_replies(replies, 0, frame_bytes_max=1 << 16)[1])


def _outcome(call: Callable[[Any], Any], kernel: Any) -> tuple[str, Any]:
    try:
        return "returned", call(kernel)
    except ValueError as fault:
        return "raised", str(fault)

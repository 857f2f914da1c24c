"""Replies cut into pieces: what stands around the values that differ from one reply to the next."""

from collections.abc import Callable, Sequence
from typing import Final

from kappamq.wire.command import Command, HeaderType
from kappamq.wire.header_codec import encode_header

_MARK_ID: Final = 2_147_483_647
_FIXED_BYTES: Final = 17
"""Of a binary header, up to and with the length of the remark."""


class ReplyPieces:
    """The pieces of one kind of reply in both header encodings, as the kernel wants them.

    Found by encoding a reply with marks as values: the encoder stays the only one that knows how replies look.
    """

    def __init__(self, values: int, reply: Callable[[Command, Sequence[str]], Command]) -> None:
        """`reply` answers a request with that many values, which the encoding keeps in their order."""
        marks = [chr(0xE000 + number) for number in range(values)]
        texts = [mark.encode() for mark in marks]
        json = encode_header(reply(Command(0, _MARK_ID, header_type=HeaderType.JSON), marks))
        before, after = json.rsplit(str(_MARK_ID).encode(), 1)
        self.json = (*_cut(before, texts), after)
        """Around each value and the request id."""
        binary = encode_header(reply(Command(0, _MARK_ID, header_type=HeaderType.BINARY), marks))
        remark_bytes = int.from_bytes(binary[_FIXED_BYTES - 4 : _FIXED_BYTES], "big")
        fields_at = _FIXED_BYTES + remark_bytes + 4
        fields = _cut(binary[fields_at:], [len(text).to_bytes(4, "big") + text for text in texts])
        self.binary = (binary[:5], binary[9 : fields_at - 4], *fields)
        """Around request id, length of the fields, and each value with its length."""


def _cut(text: bytes, marks: list[bytes]) -> list[bytes]:
    """Pieces of a text between marks that it holds once each, in order."""
    pieces = []
    for mark in marks:
        piece, found, text = text.partition(mark)
        assert found, "a reply does not name all of its values"
        pieces.append(piece)
    return [*pieces, text]

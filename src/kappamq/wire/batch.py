"""Body of a batch send.

Per message: size i32 │ magic i32 (0) │ CRC i32 (0) │ flag i32 │ bodyLen i32, body │ propertiesLen i16, properties
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error

from kappamq.errors import InvalidMessage

_HEAD = Struct(">iiiii")
_I16 = Struct(">h")


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One message of a batch."""

    body: bytes
    properties: bytes
    flag: int = 0


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Body that carries all items in order."""
    pieces: list[bytes] = []
    for item in items:
        size = _HEAD.size + len(item.body) + 2 + len(item.properties)
        pieces += (
            _HEAD.pack(size, 0, 0, item.flag, len(item.body)),
            item.body,
            _I16.pack(len(item.properties)),
            item.properties,
        )
    return b"".join(pieces)


def decode_batch(body: bytes) -> list[BatchItem]:
    """Items of a batch. Raises `InvalidMessage` when lengths contradict each other or the body."""
    items: list[BatchItem] = []
    at = 0
    try:
        while at < len(body):
            size, _, _, flag, body_bytes = _HEAD.unpack_from(body, at)
            body_at = at + _HEAD.size
            if body_bytes < 0 or body_at + body_bytes + 2 > len(body):
                raise InvalidMessage(f"batch item {len(items)}: body of {body_bytes} bytes does not fit the batch")
            (properties_bytes,) = _I16.unpack_from(body, body_at + body_bytes)
            properties_at = body_at + body_bytes + 2
            end = properties_at + properties_bytes
            if properties_bytes < 0 or end > len(body) or end - at != size:
                raise InvalidMessage(
                    f"batch item {len(items)}: its parts take {end - at} bytes, it says {size} of {len(body) - at} left"
                )
            items.append(
                BatchItem(body=body[body_at : body_at + body_bytes], properties=body[properties_at:end], flag=flag)
            )
            at = end
    except struct_error:
        raise InvalidMessage(f"batch item {len(items)} is cut short") from None
    if not items:
        raise InvalidMessage("the batch is empty: send at least one message")
    return items

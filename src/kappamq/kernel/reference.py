"""Plain Python: the specification of what a compiled kernel must do byte for byte.

Record layout (all integers big-endian; hosts are 8 bytes for IPv4, 20 for IPv6):

    0 totalSize i32 │ 4 magic i32 │ 8 bodyCRC i32 │ 12 queueId i32 │ 16 flag i32 │ 20 queueOffset i64 │
    28 physicalOffset i64 │ 36 sysFlag i32 │ 40 bornTimestamp i64 │ 48 bornHost │ storeTimestamp i64 │ storeHost │
    reconsumeTimes i32 │ preparedTransactionOffset i64 │ bodyLen i32, body │ topicLen i8 (v2: i16), topic │
    propertiesLen i16, properties

The optional CRC over the whole record is the last property: `__CRC32#` 0x01, ten digits least significant first, 0x02.
"""

from operator import mul
from struct import Struct
from struct import error as struct_error
from zlib import crc32

INTERFACE = 1
"""Number of this set of functions: a compiled kernel with another number was built from other sources."""

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
CRC_PROPERTY_NAME = b"__CRC32#\x01"
CRC_PROPERTY_BYTES = 20
TOPIC_V1_BYTES_MAX = 127

_HEAD = Struct(">iiiiiqqiq")
_AFTER_BORN_HOST = Struct(">q")
_AFTER_STORE_HOST = Struct(">iqi")
_SHORT = Struct(">h")
_FRAME = Struct(">iI")

_POWERS_MAX = 256
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_POWERS_MAX, -1, -1)]


def crc31(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 of `data` without its top bit, as RocketMQ stores it."""
    return crc32(data) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: 31-polynomial over UTF-16 units, signed 32 bits."""
    return java_hash_extend(0, text)


def java_hash_extend(prefix_hash: int, text: str) -> int:
    """Hash of `prefix + text`, given the hash of `prefix`."""
    try:
        units: bytes | tuple[int, ...] = text.encode("latin-1")
    except UnicodeEncodeError:
        wide = text.encode("utf-16-be", "surrogatepass")
        units = Struct(f">{len(wide) // 2}H").unpack(wide)
    value = prefix_hash
    for start in range(0, len(units), _POWERS_MAX):
        chunk = units[start : start + _POWERS_MAX]
        size = len(chunk)
        value = (
            value * _POWERS[_POWERS_MAX - size] + sum(map(mul, chunk, _POWERS[_POWERS_MAX - size + 1 :]))
        ) & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def encode_record(
    *,
    body: bytes,
    topic: bytes,
    properties: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    log_offset: int,
    flags: int,
    born_at_ms: int,
    born_host: bytes,
    stored_at_ms: int,
    store_host: bytes,
    retry_count: int,
    prepared_offset: int,
    append_crc: bool,
) -> bytes:
    """Bytes of one record. With `append_crc` the properties end with a CRC over everything before it.

    Raises `OverflowError` for a value that does not fit its field.
    """
    if append_crc and properties and properties[-1] != 2:
        properties += b"\x02"
    body_bytes = len(body)
    topic_bytes = len(topic)
    properties_bytes = len(properties) + (CRC_PROPERTY_BYTES if append_crc else 0)
    is_v1 = topic_bytes <= TOPIC_V1_BYTES_MAX
    total = 75 + len(born_host) + len(store_host) + body_bytes + topic_bytes + properties_bytes + (0 if is_v1 else 1)
    try:
        head = _HEAD.pack(
            total,
            MAGIC_V1 if is_v1 else MAGIC_V2,
            crc31(body),
            queue_id,
            flag,
            queue_offset,
            log_offset,
            flags,
            born_at_ms,
        )
        record = b"".join(
            (
                head,
                born_host,
                _AFTER_BORN_HOST.pack(stored_at_ms),
                store_host,
                _AFTER_STORE_HOST.pack(retry_count, prepared_offset, body_bytes),
                body,
                bytes((topic_bytes,)) if is_v1 else _SHORT.pack(topic_bytes),
                topic,
                _SHORT.pack(properties_bytes),
                properties,
            )
        )
    except struct_error as fault:
        raise OverflowError(f"a value does not fit its field of the record: {fault}") from None
    if not append_crc:
        return record
    return record + CRC_PROPERTY_NAME + f"{crc31(record):010d}"[::-1].encode() + b"\x02"


def split_frames(buffer: bytes, frame_bytes_max: int) -> tuple[list[tuple[int, int, int, int]], int, str | None]:
    """Find the whole frames at the start of `buffer`.

    Returns `(header type, header start, body start, frame end)` for each, the number of bytes consumed, and what is
    wrong with the bytes that follow, if they can never become a frame.
    """
    frames: list[tuple[int, int, int, int]] = []
    at = 0
    size = len(buffer)
    while size - at >= 4:
        if size - at < 8:
            length = int.from_bytes(buffer[at : at + 4], "big", signed=True)
            fault = _length_fault(length, frame_bytes_max)
            return frames, at, fault
        length, mark = _FRAME.unpack_from(buffer, at)
        fault = _length_fault(length, frame_bytes_max)
        header_bytes = mark & 0xFFFFFF
        header_type = mark >> 24
        if fault is None and header_bytes > length - 4:
            fault = f"header of {header_bytes} bytes does not fit a frame of {length} bytes"
        if fault is None and header_type > 1:
            fault = f"unknown header type {header_type}"
        if fault is not None:
            return frames, at, fault
        end = at + 4 + length
        if end > size:
            break
        frames.append((header_type, at + 8, at + 8 + header_bytes, end))
        at = end
    return frames, at, None


def _length_fault(length: int, frame_bytes_max: int) -> str | None:
    if length < 4:
        return f"frame length {length} is too small"
    if length + 4 > frame_bytes_max:
        return f"frame length {length} is over the limit of {frame_bytes_max - 4}"
    return None

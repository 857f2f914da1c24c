"""Bytes of one stored message: the same in the commit log and in a pull reply. Layout: `kernel/reference.py`."""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from kappamq import kernel
from kappamq.errors import CorruptRecord
from kappamq.kernel import crc31, encode_record
from kappamq.kernel.columns_reference import RECORD_BYTES_MIN, Buffer
from kappamq.kernel.reference import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME
from kappamq.model.message import Flags, StoredMessage

BLANK_MAGIC: Final = -875286124
"""Marks the unused tail of a segment: i32 bytes left, i32 this."""
BLANK_BYTES: Final = 8

_MARK = Struct(">ii")

__all__ = [
    "BLANK_BYTES",
    "BLANK_MAGIC",
    "RECORD_BYTES_MIN",
    "Buffer",
    "NewRecord",
    "decode_mark",
    "decode_record",
    "decode_records",
    "encode_blank",
    "verify_record",
]


@dataclass(slots=True)
class NewRecord:
    """A message that is about to be stored: everything but its place and time.

    `properties` is the encoded text in UTF-8; hosts are packed (`ids.pack_host`). The IPv6 flags follow from the hosts.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_at_ms: int
    born_host: bytes
    store_host: bytes
    flag: int = 0
    flags: int = 0
    retry_count: int = 0
    prepared_offset: int = 0

    def encode(self, *, queue_offset: int, log_offset: int, stored_at_ms: int, append_crc: bool) -> bytes:
        """Bytes of the record at its place."""
        flags = self.flags & ~(Flags.BORN_HOST_V6 | Flags.STORE_HOST_V6)
        if len(self.born_host) == 20:
            flags |= Flags.BORN_HOST_V6
        if len(self.store_host) == 20:
            flags |= Flags.STORE_HOST_V6
        return encode_record(
            body=self.body,
            topic=self.topic.encode(),
            properties=self.properties,
            queue_id=self.queue_id,
            flag=self.flag,
            queue_offset=queue_offset,
            log_offset=log_offset,
            flags=int(flags),
            born_at_ms=self.born_at_ms,
            born_host=self.born_host,
            stored_at_ms=stored_at_ms,
            store_host=self.store_host,
            retry_count=self.retry_count,
            prepared_offset=self.prepared_offset,
            append_crc=append_crc,
        )


def encode_blank(bytes_left: int) -> bytes:
    """Head of the filler that ends a segment early."""
    return _MARK.pack(bytes_left, BLANK_MAGIC)


def decode_mark(buffer: Buffer, at: int) -> tuple[int, int]:
    """Total size and magic at `at`; both 0 where fewer than 8 bytes are left."""
    if len(buffer) - at < _MARK.size:
        return 0, 0
    size, magic = _MARK.unpack_from(buffer, at)
    return size, magic


def decode_record(buffer: Buffer, at: int = 0) -> StoredMessage:
    """The message at `at`. Lengths are checked against the record and the buffer; checksums are not."""
    return kernel.decode_record(buffer, at, StoredMessage, "")


def decode_records(buffer: Buffer) -> Iterator[StoredMessage]:
    """All messages of a pull reply, in order."""
    return iter(kernel.decode_records(buffer, StoredMessage, "")[0])


def verify_record(buffer: Buffer, at: int, *, log_offset: int) -> int:
    """Size of the valid record at `at`, which must say of itself that it lies at `log_offset`.

    Raises `CorruptRecord` with the reason when sizes, magic, position or a checksum are wrong. The appended CRC covers
    the whole record; a record without one (RocketMQ's default) is checked by its body CRC only.
    """
    message = decode_record(buffer, at)
    if message.log_offset != log_offset:
        raise CorruptRecord(
            f"record at log offset {log_offset} says it belongs to {message.log_offset}", log_offset=log_offset
        )
    end = at + message.size
    tail = bytes(buffer[end - CRC_PROPERTY_BYTES : end])
    if tail.startswith(CRC_PROPERTY_NAME) and tail[-1] == 2:
        digits = tail[len(CRC_PROPERTY_NAME) : -1][::-1]
        if not digits.isdigit() or int(digits) != crc31(bytes(buffer[at : end - CRC_PROPERTY_BYTES])):
            raise CorruptRecord(f"record at log offset {log_offset} fails its checksum", log_offset=log_offset)
    elif message.body_crc != crc31(message.body):
        raise CorruptRecord(f"record at log offset {log_offset} fails its body checksum", log_offset=log_offset)
    return message.size

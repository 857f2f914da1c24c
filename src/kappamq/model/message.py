"""Messages as users send them and as the cluster stores them, and the queues they travel through."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from msgspec import Struct

from kappamq.model.ids import format_host, offset_id
from kappamq.model.properties import Name, decode_properties

KEY_SEPARATOR: Final = " "
BODY_BYTES_MAX: Final = 4 * 1024 * 1024


class Flags(IntFlag):
    """System flags of a record (RocketMQ's sysFlag)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMITTED = 0x8
    ROLLED_BACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


TRANSACTION_MASK: Final = 0xC
COMPRESSION_MASK: Final = 0x700


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic on one broker (by name)."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        # RocketMQ: this exact text is hashed by the consistent-hash balancing strategy.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.queue_id}]"


@dataclass(slots=True)
class Message:
    """What a user sends: `keys` are indexed for lookup, `tags` select at the consumer, `properties` are free."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    wait_stored: bool = True

    @property
    def keys_text(self) -> str:
        """Keys as they are stored, separated by spaces."""
        return self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys)


class StoredMessage(Struct, gc=False):
    """A message read back from a log or a pull reply. `broker` is filled in by a client that knows where it pulled."""

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    log_offset: int
    flag: int
    flags: int
    born_at_ms: int
    born_host_packed: bytes
    stored_at_ms: int
    store_host_packed: bytes
    retry_count: int
    prepared_offset: int
    properties_text: str
    body_crc: int
    size: int
    broker: str = ""
    _properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """All properties, decoded once."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_text)
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(Name.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in self.properties.get(Name.KEYS, "").split(KEY_SEPARATOR) if key)

    @property
    def message_id(self) -> str:
        """The producer's unique id, or the offset id for a message without one."""
        return self.properties.get(Name.UNIQUE_ID) or self.offset_id

    @property
    def offset_id(self) -> str:
        """The broker's id, which says where the message is stored."""
        return offset_id(self.store_host_packed, self.log_offset)

    @property
    def born_host(self) -> str:
        return format_host(self.born_host_packed)

    @property
    def store_host(self) -> str:
        return format_host(self.store_host_packed)

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.broker, self.queue_id)

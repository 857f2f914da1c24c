"""Store directories made by hand, record by record."""

from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from zlib import crc32

from kappamq.model.ids import pack_host
from kappamq.model.properties import tags_code
from kappamq.model.record import NewRecord, encode_blank

HOST = pack_host("127.0.0.1", 10911)
_ENTRY = Struct(">qiq")


@dataclass
class StoreBuilder:
    """Appends records as a broker would; `write` makes the files. `hidden` records have no proof of being on disk."""

    root: Path
    segment_bytes: int = 4096
    log: bytearray = field(default_factory=bytearray)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    flushed: int = 0
    clock_ms: int = 1_700_000_000_000

    def append(self, topic: str, queue_id: int, body: bytes, *, tags: str | None = None, hidden: bool = False) -> None:
        entries = self.queues.setdefault((topic, queue_id), [])
        properties = f"KEYS\x01{body.decode()}\x02" + (f"TAGS\x01{tags}\x02" if tags else "")
        new = NewRecord(topic, queue_id, body, properties.encode(), self.clock_ms - 5, HOST, HOST)
        size = len(self._encode(new, 0, 0))
        left = self.segment_bytes - len(self.log) % self.segment_bytes
        if size + 8 > left:
            self.log += encode_blank(left) + b"\xee" * (left - 8)
        log_offset = len(self.log)
        self.log += self._encode(new, len(entries), log_offset)
        entries.append(_ENTRY.pack(log_offset, size, tags_code(tags)))
        self.clock_ms += 1000
        if not hidden:
            self.flushed = len(self.log)

    def _encode(self, new: NewRecord, queue_offset: int, log_offset: int) -> bytes:
        return new.encode(
            queue_offset=queue_offset, log_offset=log_offset, stored_at_ms=self.clock_ms, append_crc=False
        )

    def write(self, *, checkpoint_ms: int | None = 0, entries_per_file: int = 8) -> Path:
        commit_log = self.root / "commitlog"
        commit_log.mkdir(parents=True)
        for start in range(0, len(self.log), self.segment_bytes):
            data = bytes(self.log[start : start + self.segment_bytes])
            (commit_log / f"{start:020d}").write_bytes(data.ljust(self.segment_bytes, b"\0"))
        for (topic, queue_id), entries in self.queues.items():
            directory = self.root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True)
            for first in range(0, len(entries), entries_per_file):
                data = b"".join(entries[first : first + entries_per_file])
                (directory / f"{first * 20:020d}").write_bytes(data.ljust(entries_per_file * 20, b"\0"))
        if checkpoint_ms is not None:
            (self.root / "checkpoint").write_bytes(Struct(">q").pack(checkpoint_ms).ljust(4096, b"\0"))
            mark = Struct(">8sq").pack(b"session1", self.flushed)
            (self.root / "kappamq.flushed").write_bytes(mark + Struct(">I").pack(crc32(mark)))
        return self.root

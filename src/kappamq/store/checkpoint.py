"""What is known to be on disk: RocketMQ's `checkpoint`, and two small files of our own beside it.

checkpoint (4096 bytes, RocketMQ's): i64 store time of the last flushed record │ i64 … of the last in consume queues │
    i64 … in a complete index file │ i64 masterFlushedOffset │ i64 confirmed log offset │ zeros

kappamq.checkpoint (replaced as a whole): everything below log offset `dispatched` has its queue and index entries on
    disk, and the log is on disk up to `flushed`. It also names RocketMQ's checkpoint as we last wrote it: when that
    differs now, another broker used the directory in between and ours says nothing any more.
    As it is written just before RocketMQ's, it names the head that is there and the one that will be.
    8s mark │ 8s session │ q log start │ q checksums from │ q flushed │ q dispatched │ ? clean │ 40s head before │
    40s head after │ 40s header of the last index file │ i index files, each 17s name, q last log offset │
    i queues, each h length, topic, i queue id, q first, q end │ I crc

abort (RocketMQ's: there while a broker uses the directory): its process id; from us the session, 20 digits. Whoever
    opens the directory writes it before all else, so that it tells who was killed here last.

kappamq.flushed (written in place after each flush, not synced): 8s session │ q flushed │ I crc. Any version of it that
    survives is true, so it is a closer lower bound of what was acknowledged than the checkpoint.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from kappamq.store.files import File, FileSystem, read_whole, write_durably

CHECKPOINT_BYTES: Final = 4096
ROCKETMQ_NAME: Final = "checkpoint"
OWN_NAME: Final = "kappamq.checkpoint"
ABORT_NAME: Final = "abort"
FLUSHED_NAME: Final = "kappamq.flushed"
SESSION_BYTES: Final = 8
_ABORT_DIGITS: Final = 20
_MARK: Final = b"KAPPACP1"
# RocketMQ: how much older than both times a record must be for the scan after a crash to start at it.
TIME_MARGIN_MS: Final = 3000

I64_MAX: Final = 2**63 - 1

_HEAD = Struct(">qqqqq")
_OWN = Struct(">8s8sqqqq?40s40s40si")
_INDEX = Struct(">17sq")
_COUNT = Struct(">i")
_TOPIC = Struct(">h")
_QUEUE = Struct(">iqq")
_CRC = Struct(">I")
_FLUSHED = Struct(">8sqI")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCheckpoint:
    """RocketMQ's checkpoint."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirmed: int = 0

    def head(self) -> bytes:
        return _HEAD.pack(self.log_ms, self.queues_ms, self.index_ms, self.master_flushed, self.confirmed)

    @property
    def rescan_ms(self) -> int:
        """Records stored at or before this time are complete in log and queues."""
        return max(0, min(self.log_ms, self.queues_ms) - TIME_MARGIN_MS)


def load_times(files: FileSystem, root: Path) -> TimeCheckpoint:
    """RocketMQ's checkpoint; all zero when there is none."""
    data = read_whole(files, root / ROCKETMQ_NAME)
    if data is None or len(data) < _HEAD.size:
        return TimeCheckpoint()
    log_ms, queues_ms, index_ms, master_flushed, confirmed = _HEAD.unpack_from(data)
    return TimeCheckpoint(
        log_ms=log_ms, queues_ms=queues_ms, index_ms=index_ms, master_flushed=master_flushed, confirmed=confirmed
    )


def save_times(files: FileSystem, root: Path, times: TimeCheckpoint) -> None:
    """Write in place, as RocketMQ does: the head lies within one sector."""
    file = files.open(root / ROCKETMQ_NAME, create=True)
    try:
        if file.size() != CHECKPOINT_BYTES:
            file.resize(CHECKPOINT_BYTES)
        file.pwrite(times.head(), 0)
        file.sync()
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class QueueMark:
    """Where one queue stood."""

    topic: str
    queue_id: int
    min_offset: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCheckpoint:
    """Our checkpoint. `queues` may count entries of records behind `dispatched`, never fewer than those below it."""

    session: bytes
    log_start: int
    crc_from: int
    """Log offset from which all records have the appended checksum."""
    flushed: int
    dispatched: int
    is_clean: bool
    head_before: bytes
    head_after: bytes
    index_header: bytes = bytes(40)
    index_files: tuple[tuple[str, int], ...] = ()
    queues: tuple[QueueMark, ...] = field(default=())

    def encode(self) -> bytes:
        parts = [
            _OWN.pack(
                _MARK,
                self.session,
                self.log_start,
                min(self.crc_from, I64_MAX),
                self.flushed,
                self.dispatched,
                self.is_clean,
                self.head_before,
                self.head_after,
                self.index_header,
                len(self.index_files),
            )
        ]
        parts += [_INDEX.pack(name.encode(), end_log) for name, end_log in self.index_files]
        parts.append(_COUNT.pack(len(self.queues)))
        for queue in self.queues:
            topic = queue.topic.encode()
            parts += (_TOPIC.pack(len(topic)), topic, _QUEUE.pack(queue.queue_id, queue.min_offset, queue.end))
        data = b"".join(parts)
        return data + _CRC.pack(crc32(data))


def decode_own(data: bytes) -> OwnCheckpoint | None:
    """Our checkpoint; `None` when the bytes are not a whole one."""
    try:
        if _CRC.unpack(data[-4:])[0] != crc32(data[:-4]) or not data.startswith(_MARK):
            return None
        _mark, session, log_start, crc_from, flushed, dispatched, is_clean, before, after, header, index_count = (
            _OWN.unpack_from(data)
        )
        at = _OWN.size
        index_files = []
        for _ in range(index_count):
            name, end_log = _INDEX.unpack_from(data, at)
            index_files.append((name.decode(), end_log))
            at += _INDEX.size
        (queue_count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        queues = []
        for _ in range(queue_count):
            (topic_bytes,) = _TOPIC.unpack_from(data, at)
            at += _TOPIC.size + topic_bytes
            queues.append(QueueMark(data[at - topic_bytes : at].decode(), *_QUEUE.unpack_from(data, at)))
            at += _QUEUE.size
    except (struct.error, UnicodeDecodeError):
        return None
    return OwnCheckpoint(
        session=session,
        log_start=log_start,
        crc_from=crc_from,
        flushed=flushed,
        dispatched=dispatched,
        is_clean=is_clean,
        head_before=before,
        head_after=after,
        index_header=header,
        index_files=tuple(index_files),
        queues=tuple(queues),
    )


def save_abort(files: FileSystem, root: Path, session: bytes) -> None:
    """Say that the directory is in use, and by us."""
    write_durably(files, root / ABORT_NAME, b"%0*d" % (_ABORT_DIGITS, int.from_bytes(session, "big")))


def _was_other_killed(files: FileSystem, root: Path) -> bool:
    """Whether a broker that is not ours used the directory last and did not stop in order."""
    abort = read_whole(files, root / ABORT_NAME)
    return abort is not None and 0 < len(abort) < _ABORT_DIGITS


def load_own(files: FileSystem, root: Path) -> OwnCheckpoint | None:
    """Our checkpoint, if it is whole and no other broker has used the directory since."""
    if _was_other_killed(files, root):
        return None  # Perhaps before its first checkpoint, which is what would tell else.
    data = read_whole(files, root / OWN_NAME)
    own = decode_own(data) if data is not None else None
    if own is None or load_times(files, root).head() not in (own.head_before, own.head_after):
        return None
    return own


def save_own(files: FileSystem, root: Path, own: OwnCheckpoint) -> None:
    write_durably(files, root / OWN_NAME, own.encode())


def load_flushed(files: FileSystem, root: Path, session: bytes) -> int:
    """Log offset that the flush mark of this session proves to be on disk; 0 for none."""
    data = read_whole(files, root / FLUSHED_NAME)
    if data is None or len(data) < _FLUSHED.size:
        return 0
    found, flushed, crc = _FLUSHED.unpack_from(data)
    return int(flushed) if found == session and crc == crc32(data[:16]) else 0


class FlushMark:
    """Writes `kappamq.flushed`."""

    def __init__(self, files: FileSystem, root: Path, session: bytes) -> None:
        self._file: File = files.open(root / FLUSHED_NAME, create=True)
        self._session = session

    def write(self, flushed: int) -> None:
        head = self._session + flushed.to_bytes(8, "big", signed=True)
        self._file.pwrite(head + _CRC.pack(crc32(head)), 0)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

"""What a store directory says of its own state: stopped in order or not, flushed up to where, dispatched up to where.

abort                  exists while a broker runs, and after it crashed
checkpoint             RocketMQ's: i64 store time of the last flushed record │ i64 … in consume queues │ …
kappamq.checkpoint     ours: below `dispatched` queues and index are complete; only true while RocketMQ's says what ours
                       remembers of it
kappamq.flushed        8s session │ i64 flushed log offset │ u32 crc

The broker's own reader is `kappamq.store.checkpoint`, which jobs do not import; a test holds the two together.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

EVER: Final = 2**63 - 1
ABORT_NAME: Final = "abort"
_ABORT_DIGITS: Final = 20  # Of our session; RocketMQ writes its process id, which is shorter.

_MARK: Final = b"KAPPACP1"
_OWN = Struct(">8s8sqqqq?40s40s40si")
_INDEX = Struct(">17sq")
_COUNT = Struct(">i")
_TOPIC = Struct(">h")
_QUEUE = Struct(">iqq")
_FLUSHED = Struct(">8sqI")
_TIMES = Struct(">qq")
_HEAD_BYTES: Final = 40
# RocketMQ: how much older than both times a record must be for it to be complete after a crash.
_TIME_MARGIN_MS: Final = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMarks:
    """State of a store. What was not said is 0, `EVER` or `None`."""

    is_clean: bool
    flushed: int = 0
    dispatched: int | None = None
    """Log offset below which queues and index are complete; `None` without a checkpoint of ours."""
    crc_from: int = EVER
    """Log offset from which each record ends with a checksum over all of it."""
    rescan_ms: int = 0
    """Records stored at or before this time are complete, says RocketMQ's checkpoint."""
    index_files: tuple[tuple[str, int], ...] = ()
    """Name and last log offset."""
    queues: frozenset[tuple[str, int]] | None = None
    """Queues there were; `None` when not known."""


def read_marks(root: Path) -> StoreMarks:
    """Marks of a store, which may be in use."""
    head = _read(root / "checkpoint")[:_HEAD_BYTES]
    log_ms, queues_ms = _TIMES.unpack_from(head) if len(head) == _HEAD_BYTES else (0, 0)
    rescan_ms = max(0, min(log_ms, queues_ms) - _TIME_MARGIN_MS)
    is_clean = not (root / ABORT_NAME).exists()
    data = _read(root / "kappamq.checkpoint")
    if len(data) < _OWN.size or not data.startswith(_MARK) or data[-4:] != struct.pack(">I", crc32(data[:-4])):
        return StoreMarks(is_clean=is_clean, rescan_ms=rescan_ms)
    _mark, session, _start, crc_from, flushed, dispatched, was_clean, before, after, _header, count = _OWN.unpack_from(
        data
    )
    was_other_killed = 0 < len(_read(root / ABORT_NAME)) < _ABORT_DIGITS
    if was_other_killed or (head or bytes(_HEAD_BYTES)) not in (before, after):
        return StoreMarks(is_clean=is_clean, rescan_ms=rescan_ms)
    at = _OWN.size + count * _INDEX.size
    index_files = _INDEX.iter_unpack(data[_OWN.size : at])
    return StoreMarks(
        is_clean=is_clean and was_clean,
        flushed=max(flushed, _flushed(root, session)),
        dispatched=dispatched,
        crc_from=crc_from,
        rescan_ms=rescan_ms,
        index_files=tuple((name.decode(), last) for name, last in index_files),
        queues=frozenset(_queues(data, at)),
    )


def _queues(data: bytes, at: int) -> list[tuple[str, int]]:
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    found: list[tuple[str, int]] = []
    for _ in range(count):
        (topic_bytes,) = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size + topic_bytes
        found.append((data[at - topic_bytes : at].decode(), _QUEUE.unpack_from(data, at)[0]))
        at += _QUEUE.size
    return found


def _flushed(root: Path, session: bytes) -> int:
    data = _read(root / "kappamq.flushed")[: _FLUSHED.size]
    if len(data) < _FLUSHED.size:
        return 0
    found, flushed, crc = _FLUSHED.unpack(data)
    return int(flushed) if found == session and crc == crc32(data[:16]) else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""

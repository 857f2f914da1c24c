"""Read the records of a store directory in log order, without opening it for writing."""

from collections.abc import Iterator
from pathlib import Path

from kappamq.model.message import StoredMessage
from kappamq.model.record import decode_record
from kappamq.store.commit_log import CommitLog
from kappamq.store.files import FileSystem, RealFileSystem
from kappamq.store.log_scan import find_valid_record, is_blank_mark, valid_records
from kappamq.store.settings import StoreSettings


def dump_records(
    root: Path,
    settings: StoreSettings,
    *,
    topic: str | None = None,
    start: int = 0,
    files: FileSystem | None = None,
) -> Iterator[StoredMessage]:
    """Valid records from log offset `start` on. Damaged stretches are passed over: `check_store` is what reports them.

    Works on a store in use, too: it then ends somewhere near the end of the log.
    """
    log = CommitLog(
        files if files is not None else RealFileSystem(), root / "commitlog", segment_bytes=settings.segment_bytes
    )
    log.load(writable=False)
    try:
        for segment in log.segments:
            view = segment.map
            limit = segment.end - segment.start
            at: int | None = 0
            while at is not None:
                for position, size in valid_records(view, at, limit, log_start=segment.start):
                    at = position + size
                    if segment.start + position < start:
                        continue
                    message = decode_record(view[position : position + size])
                    if topic is None or message.topic == topic:
                        yield message
                data = segment.next_data(segment.start + at)
                if is_blank_mark(view, at, limit) or data is None:
                    break
                at = find_valid_record(view, max(at + 1, data - segment.start), limit, log_start=segment.start)
    finally:
        log.close(remove_unused=False)

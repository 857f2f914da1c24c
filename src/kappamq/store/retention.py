"""Which segments may go: too old, too many, or in the way of a disk that fills up. Decides; the store deletes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kappamq.store.settings import StoreSettings

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What retention looks at: where a segment lies and when it was last written."""

    start: int
    end: int
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What one round deleted, and why. `paths` are the files, oldest first."""

    min_log_offset: int
    reason: Literal["none", "expired", "too large", "disk nearly full"]
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskState:
    """Room on the disk, and whether appends are refused because of it."""

    used_ratio: float
    usable_bytes: int
    is_full: bool
    reason: str = ""


def deletable(
    segments: Sequence[SegmentAge],
    settings: StoreSettings,
    *,
    now_ms: int,
    hour: int,
    used_ratio: float,
    keep_from: int,
) -> tuple[int, Literal["none", "expired", "too large", "disk nearly full"]]:
    """Log offset below which segments may be deleted now, and why. Those from `keep_from` on always stay."""
    candidates = [segment for segment in segments if segment.end <= keep_from][: settings.segments_deleted_max]
    if not candidates:
        return (segments[0].start if segments else 0), "none"
    floor = candidates[0].start
    # RocketMQ: age is the file's modification time, and the first young file ends the round.
    may_expire = hour in settings.delete_hours or used_ratio > settings.disk_delete_ratio
    expired = floor
    if may_expire:
        for segment in candidates:
            if segment.modified_at_ms + settings.retention_hours * HOUR_MS > now_ms:
                break
            expired = segment.end
    oversized = floor
    if settings.log_bytes_max is not None:
        for segment in candidates:
            if keep_from - segment.start <= settings.log_bytes_max:
                break
            oversized = segment.end
    is_forced = settings.disk_force_delete and used_ratio > settings.disk_force_ratio
    if is_forced and max(expired, oversized) == floor:
        # One at a time: its space may be enough.
        return candidates[0].end, "disk nearly full"
    if oversized > expired:
        return oversized, "too large"
    return (expired, "expired") if expired > floor else (floor, "none")

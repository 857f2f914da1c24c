"""What the store can be told, checked when it is built."""

from dataclasses import dataclass
from typing import Final, Literal

from kappamq.errors import ConfigError

UNIT_BYTES: Final = 20
"""Size of one consume-queue entry."""
SEGMENT_BYTES_MIN: Final = 4096

DELAY_LEVELS_MS: Final = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Settings of one store directory. File sizes must equal those the directory was made with."""

    segment_bytes: int = 1 << 30
    """Length of one commit-log file (RocketMQ: mappedFileSizeCommitLog)."""
    queue_segment_bytes: int = 6_000_000
    """Length of one consume-queue file, rounded up to whole entries (RocketMQ: mappedFileSizeConsumeQueue)."""
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    is_indexed: bool = True
    """Whether keys are indexed at all."""
    append_crc: bool = True
    """End each record with a checksum over all of it; RocketMQ's own covers the body only."""
    message_bytes_max: int = 4 * 1024 * 1024
    visible: Literal["flushed", "written"] = "flushed"
    """Which records consumers may see: those on disk, or (faster, lossy after a power cut) those in the page cache."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS

    retention_hours: float = 72
    delete_hours: tuple[int, ...] = (4,)
    """Local hours of the day in which expired segments are deleted; at other times only when space is short."""
    log_bytes_max: int | None = None
    """Oldest segments go when the log is longer than this."""
    disk_delete_ratio: float = 0.75
    """Above this use of the disk, expired segments go at any hour."""
    disk_force_ratio: float = 0.85
    """Above this, the oldest segments go whatever their age."""
    disk_force_delete: bool = True
    """Whether segments that are not old enough may go at all when the disk fills up."""
    disk_full_ratio: float = 0.90
    """Above this, appends are refused until use is at or below `disk_force_ratio` again."""
    segments_deleted_max: int = 10
    """Most segments one round of retention deletes."""

    queue_files_open_max: int = 2048
    hold_entries_above: int = 16
    """When more queues than this grow at once, their last entries are held in memory for a while."""
    hot_bytes: int = 512 * 1024 * 1024
    """Distance from the end of the log within which records are taken to be in the page cache."""
    verify_bytes: int = 64 * 1024 * 1024
    """Length of the log's tail whose checksums are verified at every start; the rest is verified when it is read."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    checkpoint_records: int = 100_000
    """Published since the last checkpoint, at which `Store.needs_checkpoint` turns true: bounds the next rescan."""
    on_damage: Literal["refuse", "truncate"] = "refuse"
    """What to do about damage below the flushed end: refuse to start, or give up everything behind it."""

    def __post_init__(self) -> None:
        if self.segment_bytes < SEGMENT_BYTES_MIN:
            raise ConfigError(f"segment_bytes is {self.segment_bytes}: use at least {SEGMENT_BYTES_MIN}")
        if self.queue_segment_bytes < UNIT_BYTES:
            raise ConfigError(f"queue_segment_bytes is {self.queue_segment_bytes}: use at least {UNIT_BYTES}")
        if self.index_slots < 1 or self.index_entries < 2:
            raise ConfigError(
                f"index_slots is {self.index_slots} and index_entries {self.index_entries}: use at least 1 and 2"
            )
        if self.visible not in ("flushed", "written"):
            raise ConfigError(f"visible is {self.visible!r}: use 'flushed' or 'written'")
        if self.on_damage not in ("refuse", "truncate"):
            raise ConfigError(f"on_damage is {self.on_damage!r}: use 'refuse' or 'truncate'")
        if not 0 < self.disk_delete_ratio <= self.disk_force_ratio <= self.disk_full_ratio <= 1:
            raise ConfigError(
                f"disk ratios {self.disk_delete_ratio}, {self.disk_force_ratio}, {self.disk_full_ratio} "
                "must grow and lie between 0 and 1"
            )

    @property
    def queue_file_bytes(self) -> int:
        """Real length of a consume-queue file."""
        return -(-self.queue_segment_bytes // UNIT_BYTES) * UNIT_BYTES

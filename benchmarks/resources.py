"""What a process has used so far, read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time since the start, and memory now.

    `resident_mb` includes the pages of mapped files, which the kernel may drop at any time; `private_mb` does not.
    """

    cpu_seconds: float
    resident_mb: float
    private_mb: float


def usage_of(pid: int) -> Usage:
    """Read one process, all its threads included, its children not. Raises FileNotFoundError when it is gone."""
    # The command's name is in parentheses and may hold blanks: count fields from behind it.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    sizes = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (
            line.partition(":") for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        )
        if name in ("VmRSS", "RssAnon")
    }
    return Usage(
        cpu_seconds=(user_ticks + system_ticks) / TICKS_PER_SECOND,
        resident_mb=round(sizes["VmRSS"] / MEGABYTE, 1),
        private_mb=round(sizes["RssAnon"] / MEGABYTE, 1),
    )

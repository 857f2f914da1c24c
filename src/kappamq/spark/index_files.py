"""Files of the key index: written whole from ordered keys, read and checked whole.

    header   0 first store time i64 │ 8 last store time i64 │ 16 first log offset i64 │ 24 last log offset i64 │
             32 slots in use i32 │ 36 number of the next entry i32 (the first entry is number 1)
    slot     40 + 4 * slot          i32 number of the newest entry of the chain, 0 for none
    entry    40 + 4 * slots + 20 * number
             0 hash i32 │ 4 log offset i64 │ 12 seconds since the first store time i32 │ 16 next older entry i32

A file is named by the local time of its creation in 17 digits. The log does not tell that time: a file that is written
again keeps the name of the one that began at the same log offset, and otherwise gets the store time of its first entry.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kappamq.kernel import chain_keys, link_heads
from kappamq.kernel.reference import KEY_ROW

INDEX_SLOTS: Final = 5_000_000
INDEX_ENTRIES: Final = 20_000_000
HEADER: Final = Struct(">qqqqii")
NAME_DIGITS: Final = 17
SECONDS_MAX: Final = 2**31 - 1
SLOT_BYTES: Final = 4
ENTRY: Final = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("older", ">i4")])

Key = tuple[int, int, int]
"""Hash, log offset and store time."""


def file_bytes(slots: int, entries: int) -> int:
    return HEADER.size + slots * SLOT_BYTES + entries * ENTRY.itemsize


def index_paths(store: Path) -> list[Path]:
    """Files of the index, oldest first."""
    return sorted(
        path for path in (store / "index").glob("*") if len(path.name) == NAME_DIGITS and path.name.isdecimal()
    )


def names_by_start(store: Path) -> dict[int, str]:
    """First log offset → name, of the index files that there are."""
    found: dict[int, str] = {}
    for path in index_paths(store):
        with path.open("rb") as file:
            header = file.read(HEADER.size)
        if len(header) == HEADER.size:
            found.setdefault(HEADER.unpack(header)[2], path.name)
    return found


def choose_names(starts: Iterable[tuple[int, int]], known: Mapping[int, str]) -> list[str]:
    """Names of files by the log offset and store time of their first entries, in order; no two are equal."""
    names: list[str] = []
    for log_offset, stored_at_ms in starts:
        local = time.strftime("%Y%m%d%H%M%S", time.localtime(stored_at_ms // 1000))
        name = known.get(log_offset) or f"{local}{stored_at_ms % 1000:03d}"
        if names and name <= names[-1]:
            name = f"{int(names[-1]) + 1:0{NAME_DIGITS}d}"
        names.append(name)
    return names


def write_index_file(path: Path, keys: Iterable[Key], *, slots: int, entries: int) -> int:
    """Write the file of ordered keys, at most `entries - 1`, as a broker would have; returns their number."""
    table = bytearray(slots * SLOT_BYTES)
    count, used = 1, 0
    begin_ms = begin_log = end_ms = end_log = 0
    with path.open("wb") as file:
        file.truncate(file_bytes(slots, entries))
        file.seek(HEADER.size + len(table) + ENTRY.itemsize)
        for stored_at_ms, some in groupby(keys, lambda key: key[2]):
            packed = b"".join([KEY_ROW.pack(hashed, log_offset) for hashed, log_offset, _ms in some])
            if count == 1:
                begin_ms, begin_log = stored_at_ms, KEY_ROW.unpack_from(packed)[1]
            seconds = max(0, min((stored_at_ms - begin_ms) // 1000, SECONDS_MAX))
            data, heads, fresh = chain_keys(table, packed, at=0, slots=slots, number=count, seconds=seconds)
            link_heads(table, heads, at=0)
            file.write(data)
            count += len(packed) // KEY_ROW.size
            used += fresh
            end_ms, end_log = stored_at_ms, KEY_ROW.unpack_from(packed, len(packed) - KEY_ROW.size)[1]
        file.seek(0)
        file.write(HEADER.pack(begin_ms, end_ms, begin_log, end_log, used, count))
        file.write(table)
    return count - 1


class IndexFileView:
    """One file, for reading. Raises `ValueError` when its length is not the one of its sizes."""

    def __init__(self, path: Path, *, slots: int, entries: int) -> None:
        found, wanted = path.stat().st_size, file_bytes(slots, entries)
        if found != wanted:
            raise ValueError(f"it has {found} bytes, not {wanted}: give its --index-slots and --index-entries")
        self._slots = slots
        data = np.memmap(path, dtype=np.uint8, mode="r")
        self.count = min(max(1, HEADER.unpack(data[: HEADER.size].tobytes())[5]), entries)
        """Number of the next entry."""
        table_end = HEADER.size + slots * SLOT_BYTES
        self._table = data[HEADER.size : table_end].view(">i4")
        entries_start = table_end + ENTRY.itemsize
        self.entries: npt.NDArray[Any] = data[entries_start : table_end + self.count * ENTRY.itemsize].view(ENTRY)

    def chain_faults(self) -> Iterator[tuple[int, str]]:
        """Log offset and words of the first entry that is not in its chain, and of slots that miss the newest one."""
        hashes = self.entries["hash"].astype(np.int64)
        numbers = np.arange(1, self.count, dtype=np.int64)
        slots = hashes % self._slots
        order = np.argsort(slots, kind="stable")
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = slots[order][1:] != slots[order][:-1]
        wanted = np.zeros(len(order), dtype=np.int64)
        wanted[order[1:]] = numbers[order[:-1]]
        wanted[order[is_first]] = 0
        wrong = np.flatnonzero((wanted != self.entries["older"]) | (hashes < 0))
        if len(wrong):
            at = int(wrong[0])
            older = int(self.entries["older"][at])
            words = f"entry {at + 1} continues with {older} instead of {int(wanted[at])}"
            yield int(self.entries["log_offset"][at]), words
            return
        heads = np.zeros(self._slots, dtype=np.int64)
        np.maximum.at(heads, slots, numbers)
        if bool((heads != self._table).any()):
            start = int(self.entries["log_offset"][0]) if self.count > 1 else 0
            yield start, "slots do not point to the newest entries"

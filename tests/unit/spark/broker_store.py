"""Small stores that a broker's own code has written."""

import shutil
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from kappamq.clock import ManualClock
from kappamq.store.settings import StoreSettings
from kappamq.store.store import Store
from tests.faults.records import commit, new_record, open_store, small_settings

COUNT = 60
SLOTS, ENTRIES = 17, 40


def settings() -> StoreSettings:
    return small_settings(index_slots=SLOTS, index_entries=ENTRIES)


def write_store(root: Path, *, is_stopped: bool = True) -> Store:
    """Several segments, queues and index files; delayed and odd messages, a topic that was deleted and made again."""
    clock = ManualClock()
    store = open_store(None, settings(), root=root, clock=clock)
    for number in range(COUNT):
        if number == COUNT // 2:
            commit(store)
            store.delete_topic("short")
        records = [
            new_record(
                b"%03d" % number + b"x" * 300,
                topic="orders",
                queue_id=number % 2,
                tags="AB"[number % 2],
                keys=f"shared k{number}",
                unique_id=f"ID{number}",
            ),
            new_record(b"plain", topic="payments", queue_id=3),
        ]
        if number < 10 or number > COUNT - 5:
            records.append(new_record(b"again", topic="short", keys="s"))
        if number % 9 == 0:
            later = new_record(b"later", topic="SCHEDULE_TOPIC_XXXX", queue_id=2, tags="A")
            later.properties += b"DELAY\x013\x02"
            records.append(later)
            odd = new_record(b"odd", topic="odd", tags="A", keys=" a  b ")
            odd.properties += b"TAGS\x01B\x02TAGS\x01\x02KEYS\x01\x02UNIQ_KEY\x01\x02"
            records.append(odd)
        store.append(records)
        if number % 7 == 0:
            commit(store)
        clock.advance(ms=700)
    commit(store)
    if is_stopped:
        store.close()
    return store


# Damage. Each returns the kind and log offset of what a check has to find.

Found = set[tuple[str, int]]
_UNIT = Struct(">qiq")
_I64 = Struct(">q")
_ENTRIES_AT = 40 + SLOTS * 4


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip_body(root: Path) -> Found:
    path = root / "commitlog" / f"{8192:020d}"
    data = path.read_bytes()
    at = data.index(b"x" * 300, 2000)
    change(path, at, b"y")
    start = max(found for magic in (b"\xda\xa3\x20\xa7",) if (found := data.rfind(magic, 0, at)) >= 0) - 4
    return {("log", 8192 + start)}


def _queue_file(root: Path, queue_id: int) -> Path:
    return root / "consumequeue" / "orders" / str(queue_id) / f"{400:020d}"


def wrong_entry(root: Path) -> Found:
    path = _queue_file(root, 0)
    log_offset, size, code = _UNIT.unpack_from(path.read_bytes(), 60)
    change(path, 60, _UNIT.pack(log_offset, size, code + 1))
    return {("queue", log_offset)}


def missing_entry(root: Path) -> Found:
    path = _queue_file(root, 1)
    at = (COUNT // 2 - 20 - 1) * _UNIT.size
    log_offset = _UNIT.unpack_from(path.read_bytes(), at)[0]
    assert log_offset
    change(path, at, bytes(_UNIT.size))
    return {("queue", log_offset)}


def surplus_entry(root: Path) -> Found:
    path = _queue_file(root, 1)
    at = (COUNT // 2 - 20) * _UNIT.size
    change(path, at, _UNIT.pack(5, 100, 0))
    return {("queue", 5)}


def missing_queue(root: Path) -> Found:
    directory = root / "consumequeue" / "payments" / "3"
    log_offset = _UNIT.unpack_from((directory / f"{0:020d}").read_bytes())[0]
    shutil.rmtree(directory)
    return {("queue", log_offset)}


def moved_key(root: Path) -> Found:
    path = sorted((root / "index").iterdir())[1]
    data = path.read_bytes()
    offsets = [_I64.unpack_from(data, _ENTRIES_AT + 20 * number + 4)[0] for number in range(ENTRIES)]
    number = next(number for number in range(5, ENTRIES) if offsets[number + 1] > offsets[number])
    change(path, _ENTRIES_AT + 20 * number + 4, _I64.pack(offsets[number + 1]))
    return {("index", offsets[number]), ("index", offsets[number + 1])}


def wrong_slot(root: Path) -> Found:
    path = sorted((root / "index").iterdir())[0]
    data = path.read_bytes()
    slot = next(slot for slot in range(SLOTS) if any(data[40 + 4 * slot : 44 + 4 * slot]))
    change(path, 40 + 4 * slot, bytes(4))
    return {("index", _I64.unpack_from(data, 16)[0])}


DAMAGE: tuple[Callable[[Path], Found], ...] = (
    flip_body,
    wrong_entry,
    missing_entry,
    surplus_entry,
    missing_queue,
    moved_key,
    wrong_slot,
)

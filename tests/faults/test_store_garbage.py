"""Queues and index are never believed over the log: garbage, missing and short files are noticed and derived again."""

from random import Random

import pytest

from kappamq.errors import CorruptRecord
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.consume_queue import UNIT
from kappamq.store.store import FetchLimit, Store
from tests.faults.records import ROOT, commit, fetch_all, new_record, open_store, small_settings
from tests.faults.simulated_files import SimulatedFileSystem

QUEUE = ROOT / "consumequeue" / "orders" / "0"
COUNT = 50  # Two and a half queue files, several segments and index files.


def filled(files: SimulatedFileSystem) -> Store:
    store = open_store(files)
    for number in range(COUNT):
        store.append([new_record(b"%03d" % number + b"x" * 300, tags="A", keys=f"k{number}")])
        if number == COUNT // 2:
            commit(store)
            store.checkpoint()
    commit(store)
    return store


def stop(files: SimulatedFileSystem, store: Store, how: str) -> None:
    if how == "clean":
        store.close()
    else:
        files.kill()


def assert_whole(files: SimulatedFileSystem) -> Store:
    store = open_store(files)
    found = [int(message.body[:3]) for message in decode_records(fetch_all(store))]
    assert found == list(range(COUNT))
    for number in range(COUNT):
        result = store.query("orders", f"k{number}", limit=8, begin_ms=0, end_ms=1 << 60)
        assert [int(record_body[:3]) for record_body in map(body_of, result.records)] == [number]
    report = store.recovery
    store.close()
    assert [str(violation) for violation in check_store(ROOT, small_settings(), files=files).violations] == []
    store.recovery = report
    return store


def body_of(record: bytes) -> bytes:
    return next(decode_records(record)).body


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_queue_directory_deleted(how: str) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    for name in files.list_directory(QUEUE):
        files.unlink(QUEUE / name)
    files.remove_directory(QUEUE)
    assert assert_whole(files).recovery.rebuilt_queues == ["orders/0"]


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("file", [0, 1, 2])
def test_one_queue_file_deleted(how: str, file: int) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    files.unlink(QUEUE / f"{file * 400:020d}")
    assert_whole(files)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("file", [0, 1, 2])
def test_queue_file_cut_short(how: str, file: int) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    files.open(QUEUE / f"{file * 400:020d}").resize(60)
    assert_whole(files)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("seed", range(10))
def test_garbage_behind_the_end_of_a_queue(how: str, seed: int) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    random = Random(seed)
    at = COUNT * 20 - 800
    units = [UNIT.pack(random.randrange(30000), random.randrange(1, 500), random.randrange(5)) for _ in range(10)]
    files.overwrite(QUEUE / f"{800:020d}", at, random.choice((b"".join(units), random.randbytes(200))))
    assert_whole(files)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("seed", range(10))
def test_garbage_over_the_end_of_a_queue(how: str, seed: int) -> None:
    """The last entries are overwritten: the queue is cut where it agrees with the log, and derived from there."""
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    random = Random(seed)
    files.overwrite(QUEUE / f"{800:020d}", 100, random.randbytes(300))
    if how == "kill":
        files.overwrite(QUEUE / f"{400:020d}", 40, random.randbytes(360))
    assert_whole(files)


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_index_deleted(how: str) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    for name in files.list_directory(ROOT / "index"):
        files.unlink(ROOT / "index" / name)
    assert assert_whole(files).recovery.rebuilt_index


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_index_file_cut_short(how: str) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    files.open(ROOT / "index" / files.list_directory(ROOT / "index")[0]).resize(100)
    assert assert_whole(files).recovery.rebuilt_index


@pytest.mark.parametrize("seed", range(10))
def test_slots_of_the_last_index_file_are_derived_again_after_a_crash(seed: int) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), "kill")
    names = files.list_directory(ROOT / "index")
    files.overwrite(ROOT / "index" / names[-1], 0, Random(seed).randbytes(40 + 17 * 4))
    assert_whole(files)


@pytest.mark.parametrize("name", ["kappamq.checkpoint", "checkpoint", "kappamq.flushed"])
@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("harm", ["delete", "garbage"])
def test_checkpoint_files_harmed(name: str, how: str, harm: str) -> None:
    files = SimulatedFileSystem()
    stop(files, filled(files), how)
    if harm == "delete":
        files.unlink(ROOT / name)
    else:
        files.overwrite(ROOT / name, 0, Random(1).randbytes(16))
    assert_whole(files)


@pytest.mark.parametrize("seed", range(30))
def test_random_garbage_in_the_index_never_misleads(seed: int) -> None:
    """What the index finds is checked against the record; what it loses, the checker names."""
    files = SimulatedFileSystem()
    store = filled(files)
    store.close()
    random = Random(seed)
    for name in files.list_directory(ROOT / "index"):
        files.overwrite(ROOT / "index" / name, random.randrange(40, 800), random.randbytes(60))
    assert check_store(ROOT, small_settings(), files=files).violations
    store = open_store(files)
    for number in range(COUNT):
        for record in store.query("orders", f"k{number}", limit=8, begin_ms=0, end_ms=1 << 60).records:
            assert int(body_of(record)[:3]) == number


@pytest.mark.parametrize("seed", range(30))
def test_garbage_in_the_middle_of_a_queue_is_never_served(seed: int) -> None:
    """Entries that look right but name other places: nothing but the right record comes out, and never in silence."""
    files = SimulatedFileSystem()
    filled(files).close()
    random = Random(seed)
    records = open_store(files).entries("orders", 0, 0, COUNT)
    files.kill()
    wrong = random.choice(records)
    files.overwrite(QUEUE / f"{0:020d}", 100, UNIT.pack(wrong.log_offset + random.choice((0, 7)), wrong.size, 0))
    store = open_store(files)
    if wrong.queue_offset == 5:
        return
    assert store.fetch("orders", 0, 0, limit=FetchLimit()).count == 5
    with pytest.raises(CorruptRecord, match="entry 5"):
        store.fetch("orders", 0, 5, limit=FetchLimit())
    assert check_store_text(files, store) != ""


def check_store_text(files: SimulatedFileSystem, store: Store) -> str:
    store.close()
    return "\n".join(map(str, check_store(ROOT, small_settings(), files=files).violations))

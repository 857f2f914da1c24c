"""The table that adds entries to queues."""

import pytest

from kappamq.errors import StorageError
from kappamq.kernel.reference import SEND_ROW
from kappamq.kernel.targets_reference import HELD_BYTES_MAX
from kappamq.store.consume_queue import BLANK_UNIT, UNIT, ConsumeQueue, QueueFiles
from kappamq.store.dispatch import Arrival, Batch
from kappamq.store.plain_runs import PlainRun
from kappamq.store.queue_table import QueueTable
from kappamq.store.settings import UNIT_BYTES
from tests.faults.records import ROOT
from tests.faults.simulated_files import SimulatedFileSystem


def table(files: SimulatedFileSystem) -> QueueTable:
    return QueueTable(QueueFiles(files, file_bytes=200, open_max=8), ROOT / "consumequeue")


def arrival(queue_offset: int, log_offset: int, *, size: int = 100, topic: str = "t") -> Arrival:
    return Arrival(topic, 0, queue_offset, 7, 1, "", log_offset, size, (), True)


def entries(queue: ConsumeQueue | None) -> list[tuple[int, int, int]]:
    assert queue is not None
    return list(queue.all_units(queue.min_offset, queue.end))


def test_repeated_arrivals_are_passed_over() -> None:
    queues = table(SimulatedFileSystem())
    for _ in range(2):
        queues.put([arrival(number, number * 100) for number in range(5)])
    assert len(entries(queues.get(("t", 0)))) == 5


def test_new_queue_that_starts_late_is_filled_up_with_blanks() -> None:
    files = SimulatedFileSystem()
    queues = table(files)
    queues.put([arrival(13, 5000), arrival(14, 5100)])
    queue = queues.get(("t", 0))
    assert queue is not None
    assert (queue.min_offset, queue.end) == (13, 15)
    data = files.open(queue.directory / f"{200:020d}").pread(200, 0)
    assert data == BLANK_UNIT * 3 + UNIT.pack(5000, 100, 7) + UNIT.pack(5100, 100, 7) + bytes(100)


def test_gap_is_noted_and_bridged_on_request() -> None:
    queues = table(SimulatedFileSystem())
    queues.put([arrival(0, 0), arrival(3, 300)])
    queue = queues.get(("t", 0))
    assert queues.gaps == {queue}
    assert len(entries(queue)) == 1
    queues.bridges_gaps = True
    queues.put([arrival(3, 300), arrival(4, 400)])
    assert entries(queue) == [(0, 100, 7), (100, 0x7FFFFFFF, 0), (100, 0x7FFFFFFF, 0), (300, 100, 7), (400, 100, 7)]
    with pytest.raises(StorageError, match="lacks"):
        queues.put([arrival(5_000_000, 500)])


def test_numbers_that_begin_anew_replace_the_old_ones() -> None:
    queues = table(SimulatedFileSystem())
    queues.put([arrival(number, number * 100) for number in range(12)])
    queues.put([arrival(0, 2000), arrival(1, 2100)])
    assert entries(queues.get(("t", 0))) == [(2000, 100, 7), (2100, 100, 7)]
    queues.put([arrival(1, 3000)])
    assert entries(queues.get(("t", 0))) == [(2000, 100, 7), (3000, 100, 7)]


def test_failed_write_can_be_repeated() -> None:
    files = SimulatedFileSystem()
    queues = table(files)
    batch = [arrival(0, 0), arrival(0, 100, topic="u")]

    def fail(action: str, path: object) -> None:
        if action == "pwrite" and "/u/" in str(path):
            raise OSError(28, "No space left on device")

    files.on_step = fail
    with pytest.raises(OSError, match="No space"):
        queues.put(batch)
    files.on_step = None
    queues.put(batch)
    assert len(entries(queues.get(("t", 0)))) == len(entries(queues.get(("u", 0)))) == 1


def test_entries_of_many_queues_are_held_until_they_are_written() -> None:
    files = SimulatedFileSystem()
    queues = QueueTable(QueueFiles(files, file_bytes=200, open_max=8), ROOT / "consumequeue", hold_above=1)
    queues.put([arrival(0, 0, topic="a")])
    batch = Batch(0, [arrival(1, 100, topic="a"), arrival(0, 200, topic="b")])
    queues.put_batches([batch], may_hold=True)
    a, b = queues.get(("a", 0)), queues.get(("b", 0))
    assert a is not None
    assert b is not None
    assert entries(a) == [(0, 100, 7), (100, 100, 7)]
    assert a.units(0, 2) == UNIT.pack(0, 100, 7) + UNIT.pack(100, 100, 7), "in the file and in memory"
    assert entries(b) == [(200, 100, 7)]
    assert (a.written, b.written, queues.holding) == (1, 0, 2)
    assert files.list_directory(b.directory) == []
    assert [queues.write_held(1) for _ in range(3)] == [1, 1, 0]
    assert (a.written, b.written, queues.holding) == (2, 1, 0)
    assert (entries(a), entries(b)) == ([(0, 100, 7), (100, 100, 7)], [(200, 100, 7)])


def test_held_entries_are_few() -> None:
    queues = QueueTable(QueueFiles(SimulatedFileSystem(), file_bytes=200, open_max=8), ROOT, hold_above=0)
    many = HELD_BYTES_MAX // UNIT_BYTES + 1
    queues.put_batches([Batch(0, [arrival(number, number * 100) for number in range(many)])], may_hold=True)
    queue = queues.get(("t", 0))
    assert queue is not None
    assert queue.written == many, "more than may be held: written at once"
    queues.put_batches([Batch(0, [arrival(many, many * 100)])], may_hold=True)
    assert queue.written == many
    queue.cut(50, log_end=5000)
    assert len(entries(queue)) == 50


def test_a_deleted_topic_leaves_no_held_entries() -> None:
    files = SimulatedFileSystem()
    queues = QueueTable(QueueFiles(files, file_bytes=200, open_max=8), ROOT / "consumequeue", hold_above=0)
    queues.put_batches([Batch(0, [arrival(0, 0)])], may_hold=True)
    queues.remove_topic("t")
    queues.write_held(10)
    assert files.list_directory(ROOT / "consumequeue") == []


def test_entries_in_files_and_in_memory_are_read_together() -> None:
    queues = QueueTable(QueueFiles(SimulatedFileSystem(), file_bytes=200, open_max=8), ROOT, hold_above=0)
    queues.put_batches([Batch(0, [arrival(0, 0), arrival(1, 100)])], may_hold=True)
    queues.write_held(10)
    queues.put_batches([Batch(0, [arrival(2, 200), arrival(3, 300)])], may_hold=True)
    queue = queues.get(("t", 0))
    assert queue is not None
    assert (queue.written, queue.end) == (2, 4)
    assert [unit[0] for unit in UNIT.iter_unpack(queue.units(1, 10))] == [100, 200, 300]
    assert [unit[0] for unit in UNIT.iter_unpack(queue.units(0, 3))] == [0, 100, 200]


def test_queues_of_packed_targets_are_those_of_their_names() -> None:
    queues = table(SimulatedFileSystem())
    first = queues.obtain("t", 0)
    run = PlainRun(b"")
    targets = [run.targets.number_of(topic, queue_id) for topic, queue_id in ((b"t", 0), (b"v", 2), (b"u", 1))]
    run.rows += b"".join([SEND_ROW.pack(target, *[0] * 16) for target in (targets[2], targets[0], targets[2])])
    queues.find_targets(run)
    assert run.targets.tail_of(targets[0]) is first
    assert run.targets.tail_of(targets[2]) is queues.get(("u", 1))
    assert queues.get(("v", 2)) is None, "no row names it"
    queues.remove_topic("t")
    queues.find_targets(run)
    again = queues.get(("t", 0))
    assert again is not None
    assert again is not first
    assert run.targets.tail_of(targets[0]) is again

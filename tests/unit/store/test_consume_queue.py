"""Entries of one queue, and the files they are in."""

from kappamq.store.consume_queue import UNIT, ConsumeQueue, QueueFiles
from kappamq.store.dispatch import Arrival
from kappamq.store.queue_table import QueueTable
from tests.faults.records import ROOT
from tests.faults.simulated_files import SimulatedFileSystem


def table(files: SimulatedFileSystem) -> QueueTable:
    return QueueTable(QueueFiles(files, file_bytes=200, open_max=8), ROOT / "consumequeue")


def arrival(queue_offset: int, log_offset: int, *, size: int = 100, topic: str = "t") -> Arrival:
    return Arrival(topic, 0, queue_offset, 7, 1, "", log_offset, size, (), True)


def entries(queue: ConsumeQueue | None) -> list[tuple[int, int, int]]:
    assert queue is not None
    return list(queue.all_units(queue.min_offset, queue.end))


def test_entries_over_several_files() -> None:
    files = SimulatedFileSystem()
    queues = table(files)
    queues.put([arrival(number, number * 100) for number in range(25)])
    queue = queues.get(("t", 0))
    assert entries(queue) == [(number * 100, 100, 7) for number in range(25)]
    assert queue is not None
    assert [queue.first_at(log_offset, 0, 25) for log_offset in (0, 1, 950, 2400, 2401)] == [0, 1, 10, 24, 25]
    assert files.list_directory(queue.directory) == [f"{start:020d}" for start in (0, 200, 400)]
    assert queue.units(8, 100) == UNIT.pack(800, 100, 7) + UNIT.pack(900, 100, 7)
    assert queue.units(1000, 1) == b""
    assert queue.unit(1000) is None


def test_cut_and_load() -> None:
    files = SimulatedFileSystem()
    queues = table(files)
    queues.put([arrival(number, number * 100) for number in range(25)])
    queue = queues.get(("t", 0))
    assert queue is not None
    queue.cut(12, log_end=1200)
    assert not queue.has_data_behind()
    again = table(files)
    again.load()
    loaded = again.get(("t", 0))
    assert loaded is not None
    assert (loaded.first_stored, loaded.stored_max, loaded.unit(11), loaded.unit(12)) == (
        0,
        20,
        (1100, 100, 7),
        (0, 0, 0),
    )
    loaded.settle(5, log_end=500)
    assert loaded.has_data_behind()
    queues.put([arrival(12, 1200)])
    assert len(entries(queue)) == 13


def test_open_files_are_limited() -> None:
    files = SimulatedFileSystem()
    queues = table(files)
    for number in range(40):
        queues.put([arrival(0, number * 100, topic=f"t{number}")])
        assert queues.get((f"t{number}", 0)) is not None
        entries(queues.get((f"t{number}", 0)))
    assert len(queues.pool._writing) <= 8
    assert len(queues.pool._mapped) <= 9
    assert all(entries(queues.get((f"t{number}", 0))) for number in range(40))
    assert len(queues) == len(list(queues)) == 40

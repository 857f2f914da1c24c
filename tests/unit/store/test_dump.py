"""Records read without a broker."""

from kappamq.store.dump import dump_records
from tests.faults.records import ROOT, commit, new_record, open_store, small_settings
from tests.faults.simulated_files import SimulatedFileSystem

COUNT = 40
SEGMENT = ROOT / "commitlog" / f"{8192:020d}"


def test_dump_passes_over_damage() -> None:
    files = SimulatedFileSystem()
    store = open_store(files)
    store.append([new_record(b"%03d" % number + b"x" * 400) for number in range(COUNT)])
    commit(store)
    store.close()
    dumped = list(dump_records(ROOT, small_settings(), files=files))
    assert [int(message.body[:3]) for message in dumped] == list(range(COUNT))
    assert list(dump_records(ROOT, small_settings(), files=files, topic="other")) == []
    later = list(dump_records(ROOT, small_settings(), files=files, start=dumped[10].log_offset))
    assert int(later[0].body[:3]) == 10
    files.flip(SEGMENT, 100)
    assert len(list(dump_records(ROOT, small_settings(), files=files))) == COUNT - 1

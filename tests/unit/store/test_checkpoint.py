"""What the checkpoint files prove."""

import pytest

from kappamq.store.checkpoint import (
    FlushMark,
    OwnCheckpoint,
    QueueMark,
    TimeCheckpoint,
    decode_own,
    load_flushed,
    load_own,
    save_abort,
    save_own,
    save_times,
)
from tests.faults.records import ROOT
from tests.faults.simulated_files import SimulatedFileSystem

TIMES = TimeCheckpoint(log_ms=5000, queues_ms=4000, index_ms=3000, confirmed=77)
OWN = OwnCheckpoint(
    session=b"session!",
    log_start=0,
    crc_from=1 << 63,
    flushed=100,
    dispatched=90,
    is_clean=True,
    head_before=TimeCheckpoint().head(),
    head_after=TIMES.head(),
    index_header=bytes(range(40)),
    index_files=(("20231114221320007", 80),),
    queues=(QueueMark("orders", 3, 5, 9), QueueMark("%RETRY%g", 0, 0, 0)),
)


def made() -> SimulatedFileSystem:
    files = SimulatedFileSystem()
    files.make_directory(ROOT)
    return files


def test_round_trip() -> None:
    decoded = decode_own(OWN.encode())
    assert decoded is not None
    assert decoded.queues == OWN.queues
    assert (decoded.index_files, decoded.index_header) == (OWN.index_files, OWN.index_header)
    assert (decoded.flushed, decoded.dispatched, decoded.is_clean, decoded.crc_from) == (100, 90, True, 2**63 - 1)


def test_any_harm_makes_it_worthless() -> None:
    data = OWN.encode()
    for at in range(len(data)):
        assert decode_own(data[:at]) is None
        assert decode_own(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


@pytest.mark.parametrize("written", [None, TIMES])
def test_valid_with_the_head_before_and_after(written: TimeCheckpoint | None) -> None:
    files = made()
    save_own(files, ROOT, OWN)
    if written is not None:
        save_times(files, ROOT, written)
    assert load_own(files, ROOT) is not None
    save_times(files, ROOT, TimeCheckpoint(log_ms=6000))
    assert load_own(files, ROOT) is None


def test_flush_mark_counts_for_its_own_session_only() -> None:
    files = made()
    assert load_flushed(files, ROOT, b"session!") == 0
    mark = FlushMark(files, ROOT, b"session!")
    mark.write(12345)
    assert load_flushed(files, ROOT, b"session!") == 12345
    assert load_flushed(files, ROOT, b"another!") == 0
    files.flip(ROOT / "kappamq.flushed", 12)
    assert load_flushed(files, ROOT, b"session!") == 0


def test_rescan_time_is_never_negative() -> None:
    assert TIMES.rescan_ms == 1000
    assert TimeCheckpoint(log_ms=5000).rescan_ms == 0


def test_a_kill_of_another_broker_makes_it_worthless() -> None:
    """Even before that one wrote a checkpoint: what lies behind our log may be its acknowledged records."""
    files = made()
    save_own(files, ROOT, OWN)
    save_abort(files, ROOT, b"\0" * 8)
    assert load_own(files, ROOT) is not None
    abort = files.open(ROOT / "abort")
    abort.resize(0)
    abort.pwrite(b"4194303", 0)
    abort.close()
    assert load_own(files, ROOT) is None

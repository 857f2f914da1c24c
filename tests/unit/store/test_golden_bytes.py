"""The worked example of the format: one message, and every byte that it leaves in each file."""

import hashlib
from pathlib import Path

from kappamq.clock import ManualClock
from kappamq.model.ids import pack_host
from kappamq.model.record import NewRecord
from kappamq.store.checkpoint import TimeCheckpoint, load_times, save_times
from kappamq.store.files import RealFileSystem
from kappamq.store.settings import StoreSettings
from kappamq.store.store import Store
from tests.faults.records import commit

KEYS = b"KEYS\x01ORDER-1001\x02UNIQ_KEY\x01C0A8010A1A2B18B4AAC24F1E00000001\x02"
PROPERTIES = KEYS + b"TAGS\x01TagA\x02CLUSTER\x01DefaultCluster\x02"


def example() -> NewRecord:
    return NewRecord(
        topic="TopicTest",
        queue_id=1,
        body=b"Hello RocketMQ",
        properties=PROPERTIES,
        born_at_ms=1_700_000_000_000,
        born_host=pack_host("192.168.1.10", 50000),
        store_host=pack_host("192.168.1.20", 10911),
    )


def filler(size: int) -> NewRecord:
    return NewRecord("TopicTest", 1, b"f" * size, b"", 0, pack_host("0.0.0.0", 0), pack_host("0.0.0.0", 0))


def test_commit_log_consume_queue_and_index(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_123)
    store = Store.open(tmp_path, StoreSettings(append_crc=False), clock=clock)
    # Five records before it, so that it is number 5 at log offset 4096, as in the example.
    store.append([filler(0), filler(0), filler(0), filler(0)])
    store.append([filler(4096 - store.written - 100)])
    assert store.append([example()])[0] == (4096, 205, 5, 1_700_000_000_123)
    commit(store)
    store.close()

    with (tmp_path / "commitlog" / f"{0:020d}").open("rb") as log:
        record = log.read(8192)[4096 : 4096 + 205]
    assert hashlib.sha1(record).hexdigest() == "bbdb6a665e1f02ed5f2abdf2c4072a544ed8a0f9"
    unit = (tmp_path / "consumequeue" / "TopicTest" / "1" / f"{0:020d}").read_bytes()
    assert len(unit) == 6_000_000
    assert unit[100:120].hex(" ", -4) == "00000000 00001000 000000cd 00000000 0027a807"
    assert not any(unit[120:])

    (index,) = (tmp_path / "index").iterdir()
    assert index.name[:4] == "2023"
    assert len(index.name) == 17
    assert index.stat().st_size == 420_000_040
    with index.open("rb") as file:
        data = file.read(20_000_200)
    times = (1_700_000_000_123).to_bytes(8, "big") * 2
    offsets = (4096).to_bytes(8, "big") * 2
    assert data[:40] == times + offsets + b"\0\0\0\x02\0\0\0\x03"
    assert data[3_077_188:3_077_192] == b"\0\0\0\x01"
    assert data[17_740_204:17_740_208] == b"\0\0\0\x02"
    assert data[20_000_060:20_000_080].hex(" ", -4) == "4f05a247 00000000 00001000 00000000 00000000"
    assert data[20_000_080:20_000_100].hex(" ", -4) == "5cf31721 00000000 00001000 00000000 00000000"


def test_appended_checksum(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(), clock=ManualClock(1_700_000_000_123))
    # The checksum covers log and queue offset, so the example's own places are needed.
    data = example().encode(queue_offset=5, log_offset=4096, stored_at_ms=1_700_000_000_123, append_crc=True)
    assert len(data) == 225
    assert data.endswith(b"__CRC32#\x011973568750\x02")
    store.append([example()])
    commit(store)
    assert b"__CRC32#\x01" in store.read(0)
    store.close()


def test_segment_ends_with_a_blank_mark(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(segment_bytes=4096), clock=ManualClock())
    store.append([filler(0)])
    left = 4096 - 200
    size = left - store.append([filler(4096 - store.written - 200 - 120)])[0].end
    assert size == 0
    assert store.append([filler(200)])[0].log_offset == 4096
    store.close()
    data = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert data[left : left + 8].hex(" ", -4) == "000000c8 cbd43194"


def test_checkpoint_bytes(tmp_path: Path) -> None:
    files = RealFileSystem()
    times = TimeCheckpoint(
        log_ms=1_700_000_000_123, queues_ms=1_700_000_000_123, index_ms=1_700_000_000_000, confirmed=4096
    )
    save_times(files, tmp_path, times)
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == 4096
    assert data[:40].hex(" ", -8) == (
        "0000018bcfe5687b 0000018bcfe5687b 0000018bcfe56800 0000000000000000 0000000000001000"
    )
    assert not any(data[40:])
    assert load_times(files, tmp_path) == times
    assert times.rescan_ms == 1_699_999_997_123


def test_directory_is_laid_out_as_rocketmq_expects(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(), clock=ManualClock())
    store.append([example()])
    commit(store)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert (tmp_path / "abort").read_text().isdigit()
    store._log.prepare_segment()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2
    store.close()
    assert not (tmp_path / "abort").exists()
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]
    assert (tmp_path / "commitlog" / f"{0:020d}").stat().st_size == 1 << 30

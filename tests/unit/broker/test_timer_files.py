"""Bytes of the timer wheel, the timer log and their checkpoint."""

from pathlib import Path

import pytest

from kappamq.broker.timer_files import Slot, TimerCheck, TimerLog, TimerWheel, Unit
from kappamq.model.properties import java_hash
from kappamq.store.files import RealFileSystem

FILES = RealFileSystem()
TICK_MS = 1_700_000_059_000
# The worked example of the store specification: a message of TopicTest, 205 bytes at log offset 4096.
UNIT = Unit(-1, 1, 1_700_000_000_000, 59_000, 4096, 205, java_hash("TopicTest"))
UNIT_BYTES = bytes.fromhex(
    "00000034 ffffffffffffffff 00000001 0000018bcfe56800 0000e678 0000000000001000 000000cd 8e987641 0000000000000000"
)
SLOT_BYTES = bytes.fromhex("000000006553f13b 0000000000000000 0000000000000000 00000001 00000000")


def test_a_unit_and_its_slot_are_those_of_rocketmq(tmp_path: Path) -> None:
    wheel = TimerWheel(FILES, tmp_path / "timerwheel")
    log = TimerLog(FILES, tmp_path / "timerlog")
    log.append([UNIT])
    wheel.put(TICK_MS, Slot(0, 0, 1))
    with (tmp_path / "timerwheel").open("rb") as file:
        file.seek(16_385_888)
        assert file.read(32) == SLOT_BYTES
    with (tmp_path / "timerlog" / ("0" * 20)).open("rb") as file:
        assert file.read(52) == UNIT_BYTES
    assert (tmp_path / "timerwheel").stat().st_size == 38_707_200
    assert (tmp_path / "timerlog" / ("0" * 20)).stat().st_size == 104_857_600
    assert log.unit(0) == UNIT
    assert UNIT.tick_ms == TICK_MS
    wheel.close()
    log.close()


def test_a_slot_of_another_turn_is_empty(tmp_path: Path) -> None:
    wheel = TimerWheel(FILES, tmp_path / "timerwheel", slots=100)
    wheel.put(5000, Slot(0, 52, 2))
    assert wheel.slot(5000) == Slot(0, 52, 2)
    assert wheel.slot(105_000) is None
    assert wheel.next_filled(1000, 5000) is None
    assert wheel.next_filled(1000, 6000) == 5000
    assert wheel.next_filled(6000, 200_000) is None
    assert wheel.ticks_beyond(53) == []
    assert wheel.ticks_beyond(52) == [5000]
    wheel.clear(5000)
    assert wheel.slot(5000) is None
    wheel.close()


@pytest.mark.parametrize("tail", [0, 51, 67, 68])
def test_units_do_not_cross_files(tmp_path: Path, tail: int) -> None:
    file_bytes = 52 * 2 + tail
    log = TimerLog(FILES, tmp_path, file_bytes=file_bytes)
    units = [UNIT._replace(log_offset=number) for number in range(7)]
    log.append(units[:3])
    log.append(units[3:])
    end = log.end
    log.close()
    again = TimerLog(FILES, tmp_path, file_bytes=file_bytes)
    found = list(again.recover(0))
    assert [unit for _, unit in found] == units
    assert again.end == end
    assert [again.unit(position) for position, _ in found] == units
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {file_bytes}
    again.close()


def test_a_torn_log_ends_before_the_gap_and_forgets_what_is_behind(tmp_path: Path) -> None:
    log = TimerLog(FILES, tmp_path, file_bytes=5200)
    log.append([UNIT._replace(log_offset=number) for number in range(5)])
    log.close()
    path = tmp_path / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[104:156] = bytes(52)
    path.write_bytes(data)
    again = TimerLog(FILES, tmp_path, file_bytes=5200)
    assert [unit.log_offset for _, unit in again.recover(52)] == [1]
    assert again.end == 104
    again.append([UNIT])
    assert [unit.log_offset for _, unit in again.recover(0)] == [0, 1, 4096]
    again.close()


def test_old_files_go_with_their_last_unit(tmp_path: Path) -> None:
    log = TimerLog(FILES, tmp_path, file_bytes=52 * 2 + 16)
    log.append([UNIT._replace(written_at_ms=1000 * number) for number in range(6)])
    log.drop_before(1000)
    assert log.start == 0
    log.drop_before(1001)
    assert log.start == 120
    assert log.unit(0) is None
    log.drop_before(10**12)
    assert log.start == 240
    log.close()


def test_progress_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "timercheck"
    assert TimerCheck.load(FILES, path) is None
    check = TimerCheck(TICK_MS, 520, 10, 1_700_000_000_000, 3)
    check.save(FILES, path)
    assert path.stat().st_size == 4096
    assert path.read_bytes()[:56] == check.encode()
    assert TimerCheck.load(FILES, path) == check


def test_a_wheel_of_another_size_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(b"\x01" * 77)
    wheel = TimerWheel(FILES, tmp_path / "timerwheel")
    assert wheel.is_new
    assert wheel.ticks_beyond(0) == []
    wheel.close()

"""One file of a log."""

import tempfile
from pathlib import Path

import pytest

from kappamq.errors import StorageError
from kappamq.store.files import RealFileSystem
from kappamq.store.segment import Segment, segment_name, segment_starts

FILES = RealFileSystem()


def test_names() -> None:
    assert segment_name(1 << 30) == "00000000001073741824"
    assert segment_starts([segment_name(20), segment_name(0)], Path("/log")) == [0, 20]
    for name in ("1", "x" * 20, "٣" * 20, segment_name(0) + ".bak"):
        with pytest.raises(StorageError, match="not a segment"):
            segment_starts([name], Path("/log"))


def test_segment_has_its_length_from_the_start_and_takes_no_space(tmp_path: Path) -> None:
    segment = Segment.create(FILES, tmp_path, 1 << 24, size=1 << 24)
    assert (segment.start, segment.end) == (1 << 24, 2 << 24)
    assert segment.path.stat().st_size == 1 << 24
    assert segment.path.stat().st_blocks * 512 < 1 << 16
    assert segment.data_end(segment.start) is None
    segment.close()
    with pytest.raises(StorageError, match="has 16777216 bytes"):
        Segment.open(FILES, tmp_path, 1 << 24, size=1 << 23)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a tmpfs")
def test_looking_for_data_takes_no_space_on_a_tmpfs() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        segment = Segment.create(FILES, Path(place), 0, size=1 << 22)
        segment.write(b"a" * 100, 0)
        before = segment.path.stat().st_blocks
        assert segment.data_end(0) == 100
        assert segment.path.stat().st_blocks == before
        segment.close()


def test_clearing_zeroes_everything_behind(tmp_path: Path) -> None:
    segment = Segment.create(FILES, tmp_path, 0, size=1 << 22)
    segment.write(b"a" * 100, 0)
    segment.write(b"b" * 100, 3_000_000)
    assert segment.data_end(0) == 3_000_100
    assert segment.data_end(100) == 3_000_100
    assert segment.data_end(3_000_050) == 3_000_100
    segment.clear_from(50)
    assert segment.map[:100] == b"a" * 50 + bytes(50)
    assert segment.data_end(50) is None
    assert segment.path.stat().st_size == 1 << 22
    segment.sync()
    segment.close()


def test_map_outlives_the_file(tmp_path: Path) -> None:
    segment = Segment.create(FILES, tmp_path, 0, size=8192)
    segment.write(b"still here", 0)
    view = segment.map
    segment.close()
    segment.path.unlink()
    assert view[:10] == b"still here"

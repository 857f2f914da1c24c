"""File sizes of a store tell its settings."""

from pathlib import Path

import pytest

from kappamq.cli.store import settings_of
from kappamq.errors import StorageError
from kappamq.store.settings import StoreSettings


def test_sizes_are_taken_from_the_files(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "consumequeue" / "t" / "0").mkdir(parents=True)
    assert settings_of(tmp_path) == StoreSettings()
    (tmp_path / "commitlog" / "00000000000000000000").write_bytes(b"x" * 8192)
    (tmp_path / "commitlog" / "00000000000000008192").write_bytes(b"x" * 100)
    (tmp_path / "consumequeue" / "t" / "0" / "00000000000000000000").write_bytes(b"x" * 400)
    settings = settings_of(tmp_path)
    assert (settings.segment_bytes, settings.queue_segment_bytes) == (8192, 400)


def test_another_directory_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no commit log"):
        settings_of(tmp_path)

"""Config files survive crashes and speak RocketMQ's dialect."""

from pathlib import Path
from random import Random

import pytest

from kappamq.errors import StorageError
from kappamq.store.config_files import backup_of, load_config, save_config
from tests.faults.simulated_files import Killed, SimulatedFileSystem

PATH = Path("/config/offsets.json")


def test_integer_keys_are_bare_and_the_version_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    assert load_config(path) is None
    save_config(path, {"offsetTable": {"T@G": {0: 1}}})
    save_config(path, {"offsetTable": {"T@G": {0: 250, 1: 7}}})
    assert "0:250" in path.read_text().replace(" ", "")
    assert load_config(path) == {"offsetTable": {"T@G": {0: 250, 1: 7}}} or load_config(path) == {
        "offsetTable": {"T@G": {"0": 250, "1": 7}}
    }
    assert "0:1" in backup_of(path).read_text().replace(" ", "")
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["consumerOffset.json", "consumerOffset.json.bak"]


@pytest.mark.parametrize("content", [b"", b"{broken", b"\0\0\0\0"])
def test_broken_file_falls_back_to_the_one_before(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "topics.json"
    save_config(path, {"version": 1})
    save_config(path, {"version": 2})
    path.write_bytes(content)
    assert load_config(path) == {"version": 1}


def test_two_broken_files_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{broken")
    backup_of(path).write_bytes(b"[]")
    with pytest.raises(StorageError, match="no usable configuration"):
        load_config(path)


@pytest.mark.parametrize("step", range(1, 12))
@pytest.mark.parametrize("cuts_power", [True, False])
def test_crash_while_saving_leaves_one_version(step: int, cuts_power: bool) -> None:
    for seed in range(20):
        files = SimulatedFileSystem()
        save_config(PATH, {"version": 1}, files=files)
        save_config(PATH, {"version": 2}, files=files)
        left = step

        def count_down(_action: str, _path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        files.on_step = count_down
        try:
            save_config(PATH, {"version": 3}, files=files)
        except Killed:
            pass
        if cuts_power:
            files.power_cut(Random(seed))
        else:
            files.kill()
        assert load_config(PATH, files=files) in ({"version": 2}, {"version": 3})

"""The JSON files in `config/`: RocketMQ's dialect, and its way to survive a crash while saving.

Saving renames the current file to `.bak` and writes a new one, so one of both is always whole.
"""

from pathlib import Path
from typing import Any

from kappamq.errors import RemoteProtocolError, StorageError
from kappamq.model import fastjson
from kappamq.store.files import FileSystem, RealFileSystem, make_directory_durably, read_whole, storage_error


def load_config(path: Path, *, files: FileSystem | None = None) -> dict[str, Any] | None:
    """Content of a config file, or of its `.bak` when it is missing, empty or broken; `None` when there is neither.

    Raises `StorageError` when both exist and neither can be read: going on would forget what was configured.
    """
    files = files if files is not None else RealFileSystem()
    faults = []
    for candidate in (path, backup_of(path)):
        try:
            data = read_whole(files, candidate)
        except OSError as error:
            raise storage_error(f"reading {candidate} failed", error) from error
        if not data or not data.strip(b"\0 \t\r\n"):
            continue
        try:
            value = fastjson.loads(data)
        except RemoteProtocolError as error:
            faults.append(f"{candidate}: {error}")
            continue
        if isinstance(value, dict):
            return value
        faults.append(f"{candidate}: not a JSON object")
    if faults:
        raise StorageError(f"no usable configuration ({'; '.join(faults)}): restore or delete the files")
    return None


def save_config(path: Path, value: dict[str, Any], *, files: FileSystem | None = None) -> None:
    """Replace a config file, durably, keeping the one before as `.bak`."""
    files = files if files is not None else RealFileSystem()
    data = fastjson.dumps(value, pretty=True).encode()
    temporary = path.with_name(path.name + ".tmp")
    try:
        make_directory_durably(files, path.parent)
        file = files.open(temporary, create=True)
        try:
            file.resize(0)
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        if files.exists(path):
            files.rename(path, backup_of(path))
        files.rename(temporary, path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise storage_error(f"saving {path} failed", error) from error


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")

"""Key-value settings: what is kept, where, and what a failing disk changes."""

import json
from pathlib import Path

import pytest

from kappamq.errors import NotFound, RemoteProtocolError, StorageError, UsageError
from kappamq.nameserver import kv as kv_module
from kappamq.nameserver.kv import KeyValues


def test_put_get_delete_in_memory() -> None:
    values = KeyValues()
    values.put("ns", "k", "v")
    assert values.get("ns", "k") == "v"
    assert values.namespace("ns") == {"k": "v"}
    values.delete("ns", "k")
    values.delete("ns", "k")
    assert values.namespace("ns") == {}
    with pytest.raises(NotFound, match="Key: k"):
        values.get("ns", "k")


def test_values_survive_in_rocketmqs_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    values = KeyValues(path)
    values.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    assert json.loads(path.read_bytes()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}}}
    values.put("ORDER_TOPIC_CONFIG", "u", "broker-a:8")
    assert KeyValues(path).namespace("ORDER_TOPIC_CONFIG") == {"t": "broker-a:4", "u": "broker-a:8"}
    backup = json.loads(path.with_name("kvConfig.json.bak").read_bytes())
    assert backup["configTable"]["ORDER_TOPIC_CONFIG"] == {"t": "broker-a:4"}


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"")
    assert KeyValues(path).namespace("any") == {}


@pytest.mark.parametrize(("text", "error"), [(b"[1]", StorageError), (b"not json", RemoteProtocolError)])
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, text: bytes, error: type[Exception]) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(text)
    with pytest.raises(error):
        KeyValues(path)
    assert path.read_bytes() == text


def test_a_failing_disk_changes_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    values = KeyValues(tmp_path / "kv.json")
    values.put("ns", "k", "old")
    values._path = blocked / "kv.json"  # A directory that cannot be made: its parent is a file.
    with pytest.raises(StorageError, match="the change is not made"):
        values.put("ns", "k", "new")
    assert values.get("ns", "k") == "old"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "ENTRIES_MAX", 1)
    values = KeyValues()
    values.put("ns", "k", "v")
    values.put("ns", "k", "w")
    with pytest.raises(UsageError, match="limit"):
        values.put("ns", "k2", "v")
    with pytest.raises(UsageError, match="null"):
        values.put("", "k", "v")
    with pytest.raises(UsageError, match="longer"):
        values.put("ns", "k", "x" * 100_000)

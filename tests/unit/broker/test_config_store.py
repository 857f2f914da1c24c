import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker import config_store
from kappamq.broker.config_store import ConfigFile
from kappamq.errors import StorageError
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.store.config_files import load_config, save_config


class Written:
    """A table of topics whose writes are counted, and can be made to wait or to fail."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.topics: dict[str, TopicConfig] = {}
        self.writes = 0
        self.fails = False
        self.file = ConfigFile(path, self._content, table="topicConfigTable")
        monkeypatch.setattr(config_store, "save_config", self._save)

    def _content(self) -> dict[str, Any]:
        return {"dataVersion": DataVersion(timestamp=1), "topicConfigTable": dict(self.topics)}

    def _save(self, path: Path, value: dict[str, Any]) -> None:
        self.writes += 1
        if self.fails:
            raise StorageError("no space")
        save_config(path, value)

    def add(self, name: str) -> None:
        self.topics[name] = TopicConfig(topic_name=name)
        self.file.changed()

    def on_disk(self) -> list[str]:
        value = load_config(self.path)
        return list(value["topicConfigTable"]) if value is not None else []


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(tmp_path / "topics.json", monkeypatch)


def test_those_who_wait_at_the_same_time_share_a_write(table: Written) -> None:
    async def scenario() -> None:
        async def create(name: str) -> None:
            table.add(name)
            await table.file.saved()
            assert name in table.on_disk()

        await asyncio.gather(*(create(f"t{number}") for number in range(50)))
        assert table.writes <= 2
        await table.file.saved()
        assert table.writes <= 2

    asyncio.run(scenario())


def test_a_change_during_a_write_is_not_taken_for_saved(table: Written) -> None:
    async def scenario() -> None:
        table.add("first")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(table.file.saved())
            await asyncio.sleep(0)  # The snapshot is taken; the thread writes.
            table.add("second")
            await table.file.saved()
            assert table.on_disk() == ["first", "second"]

    asyncio.run(scenario())


def test_without_disk_space_the_change_is_refused_and_saved_later(table: Written) -> None:
    async def scenario() -> None:
        table.fails = True
        table.add("first")
        with pytest.raises(StorageError):
            await table.file.saved()
        table.fails = False
        await table.file.save_if_changed()
        assert table.on_disk() == ["first"]

    asyncio.run(scenario())


def test_the_file_is_the_same_as_written_in_one_go(table: Written, tmp_path: Path) -> None:
    async def scenario() -> None:
        for names in (["a", 'quoted "b"'], ["c"]):
            for name in names:
                table.add(name)
            await table.file.saved()
        table.topics["a"] = TopicConfig(topic_name="a", perm=4, attributes={"k": "v"})
        del table.topics["c"]
        table.file.changed()
        await table.file.saved()

    asyncio.run(scenario())
    whole = tmp_path / "whole.json"
    save_config(whole, {"dataVersion": DataVersion(timestamp=1), "topicConfigTable": table.topics})
    assert table.path.read_bytes() == whole.read_bytes()

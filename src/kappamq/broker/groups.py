"""Consumer groups: their configuration. Owned by the event loop, kept in `config/subscriptionGroup.json`."""

from collections.abc import Callable
from typing import Final

import msgspec

from kappamq.clock import Clock
from kappamq.errors import GroupNotFound, Refused
from kappamq.model.config import DataVersion, GroupConfig
from kappamq.model.names import SYSTEM_GROUPS, check_group

GROUPS_MAX: Final = 1_000_000


class Groups:
    """All consumer groups of this broker."""

    def __init__(self, *, auto_create: bool, clock: Clock, on_change: Callable[[], None]) -> None:
        self.auto_create = auto_create
        """Whether a consumer's first sight creates its group."""
        self._clock = clock
        self._on_change = on_change
        self._table: dict[str, GroupConfig] = {}
        self.version = DataVersion(timestamp=clock.now_ms())

    def load(self, value: dict[str, object] | None) -> None:
        """Fill the table at start from the file and with the groups that every broker has."""
        if value is not None:
            file = msgspec.convert(value, _GroupFile, strict=False)
            self.version = file.data_version
            self._table.update(file.subscription_group_table)
        for name in SYSTEM_GROUPS:
            self._table.setdefault(name, GroupConfig(group_name=name))

    def as_file(self) -> dict[str, object]:
        """Content of `subscriptionGroup.json`."""
        return {"dataVersion": self.version, "forbiddenTable": {}, "subscriptionGroupTable": dict(self._table)}

    def table(self) -> dict[str, GroupConfig]:
        """A copy of the table."""
        return dict(self._table)

    def find(self, name: str) -> GroupConfig | None:
        return self._table.get(name)

    def get(self, name: str) -> GroupConfig:
        """A group that must exist."""
        group = self._table.get(name)
        if group is None:
            raise GroupNotFound(
                f"subscription group [{name}] does not exist, create it or start a consumer of it first"
            )
        return group

    def get_or_create(self, name: str) -> GroupConfig:
        """A group a consumer has named: created on first sight where that is allowed."""
        group = self._table.get(name)
        if group is not None:
            return group
        if not self.auto_create:
            return self.get(name)
        check_group(name)
        return self.put(GroupConfig(group_name=name))

    def put(self, group: GroupConfig) -> GroupConfig:
        """Create or change a group."""
        check_group(group.group_name)
        if len(self._table) >= GROUPS_MAX:
            raise Refused(f"this broker has {GROUPS_MAX} groups, its limit: delete some", code=1)
        self._table[group.group_name] = group
        self._changed()
        return group

    def remove(self, name: str) -> bool:
        """Forget a group; whether there was one."""
        if self._table.pop(name, None) is None:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        self.version = self.version.next(self._clock.now_ms())
        self._on_change()


class _GroupFile(msgspec.Struct, rename="camel"):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, GroupConfig] = msgspec.field(default_factory=dict)

"""Progress of consumer groups: committed offsets and pending resets. Kept in `config/consumerOffset.json`."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from kappamq.clock import Clock
from kappamq.model.config import DataVersion

PULLED_MAX: Final = 1_000_000
"""Queues of groups whose pulls are remembered; more are not reported as in flight."""

_COMMITS_PER_VERSION: Final = 500


class CommittedOffsets:
    """`(topic, group)` → queue id → the offset the group reads next. Owned by the event loop."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._resets: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._commits = 0
        self.version = DataVersion(timestamp=clock.now_ms())
        self.is_dirty = False

    def load(self, value: dict[str, Any] | None) -> None:
        """Fill the table at start; keys are `topic@group`, queue ids may be quoted or not."""
        if value is None:
            return
        version = value.get("dataVersion")
        if version is not None:
            self.version = msgspec.convert(version, DataVersion, strict=False)
        for key, offsets in (value.get("offsetTable") or {}).items():
            topic, separator, group = str(key).partition("@")
            if separator:
                self._table[topic, group] = {int(queue_id): int(offset) for queue_id, offset in offsets.items()}

    def as_file(self) -> dict[str, Any]:
        """Content of `consumerOffset.json`, also sent to slaves."""
        return {
            "dataVersion": self.version,
            "offsetTable": {f"{topic}@{group}": dict(offsets) for (topic, group), offsets in self._table.items()},
        }

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Record progress, back or forth. Ignored while a reset waits to be noticed by the consumer."""
        if (topic, group) in self._resets and queue_id in self._resets[topic, group]:
            return
        self._set(topic, group, queue_id, offset)

    def _set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        self._table.setdefault((topic, group), {})[queue_id] = offset
        self.is_dirty = True
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self.version = self.version.next(self._clock.now_ms())

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """Committed offset, or the one that a pending reset will bring."""
        offsets = self._table.get((topic, group))
        return None if offsets is None else offsets.get(queue_id)

    def of(self, topic: str, group: str) -> dict[int, int]:
        """All queues of a topic that a group has progress in."""
        return dict(self._table.get((topic, group), {}))

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Move a group; the next pull of the queue is told so, commits until then are ignored."""
        self._set(topic, group, queue_id, offset)
        self._resets.setdefault((topic, group), {})[queue_id] = offset

    @property
    def has_resets(self) -> bool:
        """Whether any reset waits to be noticed."""
        return bool(self._resets)

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which ends with this call."""
        resets = self._resets.get((topic, group))
        if resets is None:
            return None
        offset = resets.pop(queue_id, None)
        if not resets:
            del self._resets[topic, group]
        return offset

    def pulled(self, topic: str, group: str, queue_id: int, start: int) -> None:
        """A member of the group asks for messages from `start` on: it has been given all before."""
        if len(self._pulled) < PULLED_MAX or (topic, group, queue_id) in self._pulled:
            self._pulled[topic, group, queue_id] = start

    def pulled_to(self, topic: str, group: str, queue_id: int) -> int:
        """Where the group's last pull of a queue began, 0 before the first one. Not kept on disk."""
        return self._pulled.get((topic, group, queue_id), 0)

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, member in self._table if member == group]

    def groups_of(self, topic: str) -> list[str]:
        return [group for name, group in self._table if name == topic]

    def items(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """All progress: topic, group, offsets by queue id."""
        for (topic, group), offsets in list(self._table.items()):
            yield topic, group, dict(offsets)

    def clone(self, source: str, target: str, topic: str | None) -> None:
        """Give `target` the progress of `source`, in one topic or in all."""
        for name, group in list(self._table):
            if group == source and (topic is None or name == topic):
                for queue_id, offset in self._table[name, group].items():
                    self._set(name, target, queue_id, offset)

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda name, _: name == topic)

    def forget_group(self, group: str) -> None:
        self._forget(lambda _, member: member == group)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        for key in [key for key in self._table if is_gone(*key)]:
            del self._table[key]
            self._resets.pop(key, None)
            self.is_dirty = True
        for place in [place for place in self._pulled if is_gone(*place[:2])]:
            del self._pulled[place]

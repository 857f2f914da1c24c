"""Dead letters: which groups have some, what they are, and sending them once more where they came from.

%DLQ%group ─▶ select by time, key, tag ─▶ skip what was redriven ─▶ origin topic (or another) ─▶ commit progress

What was redriven is remembered twice. The committed offset of a group of our own passes over all that lies behind
it. A selection leaves holes, which no offset can tell: therefore the unique id of a redriven message is derived from
its dead letter, and the key index of the target says whether it is there.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from kappamq.admin.groups import Groups
from kappamq.admin.reach import Reach
from kappamq.client.aio.producer import Producer
from kappamq.client.core.receiving import decode_pull
from kappamq.errors import NotFound, TopicNotFound, UsageError
from kappamq.model.config import GroupConfig
from kappamq.model.ids import unique_id
from kappamq.model.message import Message, Queue, StoredMessage
from kappamq.model.names import DEAD_LETTER_PREFIX, GROUP_CHARACTERS_MAX, check_group, dead_letter_topic
from kappamq.model.properties import RESERVED, Name
from kappamq.wire import bodies
from kappamq.wire.headers import TopicListRequest

PULL_BATCH: Final = 32
READER_GROUP: Final = "TOOLS_CONSUMER"
"""Exists on every broker from the start; it only reads."""
PROGRESS_PREFIX: Final = "KAPPA_REDRIVE_"
PRODUCER_GROUP: Final = "kappamq-redrive"
FROM_TOPIC_PROPERTY: Final = "KAPPA_REDRIVEN_FROM"
FROM_ID_PROPERTY: Final = "KAPPA_REDRIVEN_ID"
KEPT_PROPERTIES: Final = frozenset({Name.SHARDING_KEY, Name.INSTANCE_ID, Name.PRIORITY})
"""Names of the protocol that are part of what the user sent."""
_DIGEST_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters; without conditions all of them. Times are those at which they died."""

    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    tag: str | None = None

    def has(self, message: StoredMessage) -> bool:
        return (
            (self.since_ms is None or message.stored_at_ms >= self.since_ms)
            and (self.until_ms is None or message.stored_at_ms < self.until_ms)
            and (self.key is None or self.key in message.keys)
            and (self.tag is None or self.tag == message.tags)
        )


ALL: Final = Selection()


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """One line about the dead letters of a group."""

    group: str
    count: int
    oldest_at_ms: int
    newest_at_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up, and where it came from."""

    message: StoredMessage

    @property
    def origin_topic(self) -> str | None:
        properties = self.message.properties
        return properties.get(Name.DEAD_ORIGIN_TOPIC) or properties.get(Name.RETRY_TOPIC)

    @property
    def origin_id(self) -> str | None:
        """Offset id of the message as it was first stored."""
        properties = self.message.properties
        return properties.get(Name.DEAD_ORIGIN_MESSAGE_ID) or properties.get(Name.ORIGIN_MESSAGE_ID)

    @property
    def cause(self) -> str | None:
        """What the consumer said, or who it was if it said nothing; only our own brokers and consumers tell."""
        return self.message.properties.get(Name.CAUSE)


@dataclass(slots=True)
class Redrive:
    """What a redrive will do, does, or has done."""

    group: str
    selected: int = 0
    """Dead letters that the selection covers and that lie before the end at the start."""
    skipped: int = 0
    """Of these, redriven earlier."""
    sent: Counter[str] = field(default_factory=Counter)
    """Topic → messages; in a dry run those that would be sent."""
    is_dry: bool = False

    @property
    def sent_count(self) -> int:
        return self.sent.total()


class DeadLetters:
    """Operations on dead letters."""

    def __init__(self, reach: Reach, groups: Groups) -> None:
        self._cluster = reach.cluster
        self._groups = groups

    async def overview(self) -> list[DeadLetterSummary]:
        """Groups that have dead letters."""
        reply = await self._cluster.name_servers.call(TopicListRequest())
        topics = sorted(name for name in bodies.decode_topic_list(reply.body) if name.startswith(DEAD_LETTER_PREFIX))
        summaries = [await self._summary(topic) for topic in topics]
        return [summary for summary in summaries if summary.count]

    async def _summary(self, topic: str) -> DeadLetterSummary:
        count, times = 0, []
        for queue in await self._cluster.queues_of(topic):
            start, end = await self._cluster.min_offset(queue), await self._cluster.max_offset(queue)
            count += max(0, end - start)
            for offset in {start, end - 1} if end > start else ():
                found = await self._cluster.pull(queue, offset, group=READER_GROUP, count_max=1)
                times += [message.stored_at_ms for message in found]
        group = topic.removeprefix(DEAD_LETTER_PREFIX)
        return DeadLetterSummary(group, count, min(times, default=0), max(times, default=0))

    async def read(self, group: str, selection: Selection = ALL) -> AsyncIterator[DeadLetter]:
        """Dead letters of a group, oldest first in each queue. Raises `NotFound` when it never had any."""
        for queue in await self._queues(group):
            end = await self._cluster.max_offset(queue)
            async for message in self._read_queue(queue, selection, end=end):
                if selection.has(message):
                    yield DeadLetter(message)

    async def _queues(self, group: str) -> list[Queue]:
        check_group(group)
        try:
            return await self._cluster.queues_of(dead_letter_topic(group))
        except TopicNotFound:
            raise NotFound(f"group {group!r} has no dead letters: see `kappamq dlq list`") from None

    async def _read_queue(
        self, queue: Queue, selection: Selection, *, end: int, start: int = 0
    ) -> AsyncIterator[StoredMessage]:
        """Messages up to `end`, those before `since` left out as far as the broker can tell."""
        if selection.since_ms is not None:
            start = max(start, await self._cluster.search_offset(queue, selection.since_ms))
        start = max(start, await self._cluster.min_offset(queue))
        while start < end:
            raw = await self._cluster.pull_raw(queue, start, group=READER_GROUP, count_max=PULL_BATCH)
            for message in decode_pull(raw.body, broker=queue.broker) if raw.body else ():
                if message.queue_offset < end:
                    yield message
            if raw.next_offset <= start:
                return
            start = raw.next_offset

    # ── Redriving ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def redrive(
        self,
        group: str,
        selection: Selection = ALL,
        *,
        to: str | None = None,
        again: bool = False,
        is_dry: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Redrive:
        """Send dead letters to the topic each came from, or to `to`; without `again` only those not redriven before.

        All targets are checked first: if one does not exist (`TopicNotFound`), or a message does not name its own
        (`UsageError`), nothing is sent. If a send fails, everything before it is sent and remembered: call again.
        `on_progress` is told how many of how many selected are dealt with. Two redrives of one group at the same time
        may send a message twice.
        """
        ends = {queue: await self._cluster.max_offset(queue) for queue in await self._queues(group)}
        report = Redrive(group, is_dry=is_dry)
        total = await self._check_targets(ends, selection, to)
        remembers = await self._ensure_progress(group, is_dry=is_dry)
        async with Producer(cluster=self._cluster, group=PRODUCER_GROUP) as producer:
            for queue, end in ends.items():
                committed = await self._committed(queue, group) if remembers else 0
                progress = Prefix(max(committed, await self._cluster.min_offset(queue)))
                try:
                    async for message in self._read_queue(queue, selection, end=end):
                        if not selection.has(message):
                            continue
                        was_redriven = message.queue_offset < committed or (
                            remembers and await self._is_at_target(message, to)
                        )
                        report.selected += 1
                        if was_redriven and not again:
                            report.skipped += 1
                        else:
                            copy = redriven_message(message, to=to, salt=uuid4().hex if was_redriven else "")
                            if not is_dry:
                                await producer.send(copy)
                            report.sent[copy.topic] += 1
                        progress.add(message.queue_offset)
                        if on_progress is not None:
                            on_progress(report.selected, total)
                finally:
                    if progress.end > committed and not is_dry:
                        await self._cluster.commit_offset(queue, progress_group_of(group), progress.end)
        return report

    async def _check_targets(self, ends: Mapping[Queue, int], selection: Selection, to: str | None) -> int:
        """Number of selected messages, once it is sure that each has somewhere to go."""
        known: set[str] = set()
        total = 0
        if to is not None:
            if to in {queue.topic for queue in ends}:
                raise UsageError(f"topic {to!r} is where the dead letters are: choose another topic with --to")
            await self._cluster.name_servers.route(to)
            known.add(to)
        for queue, end in ends.items():
            async for message in self._read_queue(queue, selection, end=end):
                if selection.has(message):
                    total += 1
                    target = target_of(message, to)
                    if target not in known:
                        await self._cluster.name_servers.route(target)
                        known.add(target)
        return total

    async def _ensure_progress(self, group: str, *, is_dry: bool) -> bool:
        """Whether there was a redrive before; the group that remembers it exists afterwards."""
        name = progress_group_of(group)
        if name in await self._groups.names(include_system=True):
            return True
        if not is_dry:  # Brokers take no commits of groups that they do not know.
            await self._groups.create(GroupConfig(group_name=name, consume_broadcast_enable=False))
        return False

    async def _committed(self, queue: Queue, group: str) -> int:
        return await self._cluster.committed_offset(queue, progress_group_of(group)) or 0

    async def _is_at_target(self, message: StoredMessage, to: str | None) -> bool:
        target = target_of(message, to)
        found = await self._cluster.query_messages(
            target, redriven_id(message, target), count_max=1, begin_ms=message.stored_at_ms, by_unique_id=True
        )
        return bool(found)


class Prefix:
    """Grows while offsets come without a gap: everything before `end` is dealt with."""

    def __init__(self, end: int) -> None:
        self.end = end

    def add(self, offset: int) -> None:
        if offset == self.end:
            self.end += 1


def progress_group_of(group: str) -> str:
    """The group whose committed offset on the dead-letter topic tells what was redriven."""
    name = PROGRESS_PREFIX + group
    if len(name) <= GROUP_CHARACTERS_MAX:
        return name
    digest = hashlib.sha256(group.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{name[: GROUP_CHARACTERS_MAX - _DIGEST_CHARACTERS]}{digest}"


def target_of(message: StoredMessage, to: str | None) -> str:
    """Topic that a dead letter goes to. Raises `UsageError` if neither the caller nor the message says it."""
    target = to or DeadLetter(message).origin_topic
    if target is None:
        raise UsageError(f"dead letter {message.offset_id} does not say where it came from: choose a topic with --to")
    return target


def redriven_message(message: StoredMessage, *, to: str | None, salt: str = "") -> Message:
    """The dead letter as its producer sent it, under an id of its own, with properties that name the dead letter."""
    target = target_of(message, to)
    properties = {
        name: value for name, value in message.properties.items() if name not in RESERVED or name in KEPT_PROPERTIES
    }
    properties[FROM_TOPIC_PROPERTY] = message.topic
    properties[FROM_ID_PROPERTY] = message.offset_id
    properties[Name.UNIQUE_ID] = redriven_id(message, target, salt=salt)
    keys = message.properties.get(Name.KEYS, "")
    return Message(target, message.body, tags=message.tags, keys=keys, properties=properties, flag=message.flag)


def redriven_id(message: StoredMessage, target: str, *, salt: str = "") -> str:
    """Unique id of the copy: the same each time, unless salted. Its time is that of the dead letter.

    RocketMQ: tools search for a unique id from the time on that it carries, so it may be early but not late.
    """
    digest = hashlib.sha256(f"{message.topic} {message.offset_id} {target} {salt}".encode()).digest()
    died = datetime.fromtimestamp(message.stored_at_ms / 1000, UTC)
    month = died.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return unique_id(
        digest[:4],
        pid=int.from_bytes(digest[4:6]),
        nonce=int.from_bytes(digest[6:10]),
        since_month_ms=message.stored_at_ms - round(month.timestamp() * 1000),
        counter=int.from_bytes(digest[10:12]),
    )

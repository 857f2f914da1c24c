"""The fast lane for pulls: those that find messages in memory are answered from their bytes, all of one read at once.

    scan_pulls ─▶ plan by key ─▶ Store.hot_entries ─▶ gather_pulls: records copied once, into the reply

`PullHandlers` decides once for each kind of pull (its key) whether it may be answered at all and wants every message; a
plan remembers that until topics, groups, members or rules change. Whatever else may happen to a pull (nothing there
yet, a filter, an offset that was moved, records that are not in memory or not verified, a slave to be suggested) is for
the handlers. Only a pull that is behind and has to wait for its turn (`cold_reads`) waits here, as bytes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from sys import intern
from typing import Final, NamedTuple

from kappamq.broker.cold_reads import ColdReads
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.handlers.pull import PullHandlers, reply_fields
from kappamq.broker.members import Members
from kappamq.broker.reply_pieces import ReplyPieces
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.errors import KappaError
from kappamq.kernel import gather_pulls, scan_pulls
from kappamq.net.connection import Connection
from kappamq.net.turns import reply_all
from kappamq.store.reading import FetchStatus
from kappamq.store.store import Store
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.frame import FRAME_BYTES_MAX
from kappamq.wire.header_codec import decode_header
from kappamq.wire.headers import PullRequest, decode_fields

PLANS_MAX: Final = 100_000
"""Kinds of pulls that are remembered."""
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Pulls of one read that come after so many bytes of answers wait until the peer has taken those."""


WAITING_MAX: Final = 10_000
"""Pulls that wait here for their turn; more wait with the handlers."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who asks for what, once it is known that the answer is every message."""

    topic: str
    group: str
    queue_id: int
    commits: bool


class _Planned(NamedTuple):
    """A pull that is about to be answered: of which read, where in it, from which offset, and what it commits."""

    plan: _Plan
    read: int
    position: int
    start: int
    committed: int


class _Waiting(NamedTuple):
    """A pull that waits for its turn. What it commits is committed."""

    connection: Connection
    plan: _Plan
    known: tuple[object, ...]
    """What the plan was made under."""
    header: bytes
    request_id: int
    kind: int
    start: int
    wanted: int


_Pull = tuple[int, int, int, bytes, int, int, int]
_Job = tuple[int, int, bytes, bytes | mmap, int, int, int, int, int]


class FastPulls:
    """Takes pulls from the bytes of a read. Owned by the event loop."""

    def __init__(
        self,
        *,
        handlers: PullHandlers,
        topics: Topics,
        groups: Groups,
        members: Members,
        offsets: CommittedOffsets,
        store: Store,
        cold: ColdReads,
        statistics: Statistics,
    ) -> None:
        self._handlers = handlers
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._store = store
        self._cold = cold
        self._waiting = 0
        self._called: list[_Waiting] = []
        """Those whose turn it is."""
        self._statistics = statistics
        self._plans: dict[bytes, _Plan | None] = {}
        self._known: tuple[object, ...] = ()
        self._pieces = ReplyPieces(3, _marked_reply)

    def __call__(self, connection: Connection, buffer: bytes, at: int, count_max: int) -> int:
        """Answer plain pulls from `at` on; returns where they end."""
        return self.together([(connection, buffer, at, count_max)])[0]

    def together(self, reads: Sequence[tuple[Connection, bytes, int, int]]) -> list[int]:
        """The same for reads of several connections, each with a position and how many to take from there at most."""
        ends = [at for _connection, _buffer, at, _count in reads]
        if not self._has_plans():
            return ends
        planned: list[_Planned] = []
        jobs: list[_Job] = []
        for number, (connection, buffer, at, count_max) in enumerate(reads):
            end, pulls = scan_pulls(buffer, at, count_max=count_max, frame_bytes_max=connection.frame_bytes_max)
            ends[number] = self._plan(connection, buffer, pulls, number, planned, jobs, end=end) if pulls else at
        if not jobs:
            return ends
        frames, taken = self._gather(jobs)
        self._note(planned, taken)
        for plan in reversed(planned[len(taken) :]):
            ends[plan.read] = plan.position  # Not answered like this: the first of each read counts.
        self._reply(reads, planned, frames)
        return ends

    def _has_plans(self) -> bool:
        """Whether pulls may be answered here at all; forgets plans that were made under other circumstances."""
        rules = self._handlers.rules
        if self._offsets.has_resets or rules.slave_read:
            return False
        known = (self._topics.version, self._groups.version, self._members.version, rules)
        if known != self._known or len(self._plans) > PLANS_MAX:
            self._plans.clear()
            self._known = known
        return True

    def _gather(self, jobs: "list[_Job]") -> tuple[list[bytes], list[tuple[int, int]]]:
        return gather_pulls(
            jobs,
            bytes_max=self._handlers.rules.bytes_max,
            frame_bytes_max=FRAME_BYTES_MAX,
            total_bytes_max=REPLY_BYTES_MAX,
            json=self._pieces.json,
            binary=self._pieces.binary,
        )

    def _plan(
        self,
        connection: Connection,
        buffer: bytes,
        pulls: "list[_Pull]",
        read: int,
        planned: "list[_Planned]",
        jobs: "list[_Job]",
        *,
        end: int,
    ) -> int:
        """Add the pulls of one read that find messages in memory, up to the first that does not; returns where."""
        plans = self._plans
        count_max = self._handlers.rules.count_max
        for position, request_id, kind, key, start, count, committed in pulls:
            plan = plans[key] if key in plans else self._make_plan(key, buffer, position, kind)
            if plan is None:
                return position
            entries = self._store.hot_entries(plan.topic, plan.queue_id, start, min(max(count, 1), count_max))
            if entries is None:
                # One before it in this read may still turn out to be for the handlers, and then so are all behind it.
                is_first = not planned or planned[-1].read != read
                may_wait = is_first and self._cold.must_wait and self._waiting < WAITING_MAX
                if not may_wait or not self._store.is_behind(plan.topic, plan.queue_id, start):
                    return position
                header = _header_at(buffer, position)
                waiting = _Waiting(
                    connection, plan, self._known, header, request_id, kind, start, min(count, count_max)
                )
                self._wait(waiting, committed)
                continue
            units, log, log_start, lowest, min_offset, max_offset = entries
            planned.append(_Planned(plan, read, position, start, committed))
            jobs.append((request_id, kind, units, log, log_start, lowest, start, min_offset, max_offset))
        return end

    def _wait(self, pull: _Waiting, committed: int) -> None:
        plan = pull.plan
        if plan.commits and committed >= 0:
            self._offsets.commit(plan.topic, plan.group, plan.queue_id, committed)
        self._offsets.pulled(plan.topic, plan.group, plan.queue_id, pull.start)
        pull.connection.expect_replies(1)
        self._waiting += 1
        self._cold.when_turn(lambda: self._call(pull))

    def _call(self, pull: _Waiting) -> None:
        """It is the turn of a pull: those that are called together are answered together."""
        if not self._called:
            asyncio.get_running_loop().call_soon(self._answer_called)
        self._called.append(pull)

    def _answer_called(self) -> None:
        called, self._called = self._called, []
        self._waiting -= len(called)
        has_plans = self._has_plans()
        planned: list[_Planned] = []
        jobs: list[_Job] = []
        asked: list[_Waiting] = []
        self._cold.grant(len(called))
        for pull in called:
            plan, start, entries = pull.plan, pull.start, None
            if has_plans and pull.known is self._known:
                entries = self._store.hot_entries(plan.topic, plan.queue_id, start, max(pull.wanted, 1))
            if entries is None:
                self._hand_over(pull)
                continue
            units, log, log_start, lowest, min_offset, max_offset = entries
            asked.append(pull)
            planned.append(_Planned(plan, 0, 0, start, -1))
            jobs.append((pull.request_id, pull.kind, units, log, log_start, lowest, start, min_offset, max_offset))
        self._cold.grant(0)
        if not jobs:
            return
        frames, taken = self._gather(jobs)
        self._note(planned, taken)
        for pull in asked[len(taken) :]:
            self._hand_over(pull)
        replies: dict[Connection, list[bytes]] = {}
        for pull, frame in zip(asked, frames):
            replies.setdefault(pull.connection, []).append(frame)
        reply_all([(connection, b"".join(mine), len(mine)) for connection, mine in replies.items()])

    def _hand_over(self, pull: _Waiting) -> None:
        if pull.connection.is_open:
            self._handlers.answer(pull.connection, decode_header(pull.kind, pull.header, b""))

    def _reply(
        self,
        reads: Sequence[tuple[Connection, bytes, int, int]],
        planned: "list[_Planned]",
        frames: list[bytes],
    ) -> None:
        """Hand each connection its frames, which follow each other."""
        replies: list[tuple[Connection, bytes, int]] = []
        begin = 0
        for number in range(len(frames)):
            read = planned[number].read
            if number + 1 == len(frames) or planned[number + 1].read != read:
                replies.append((reads[read][0], b"".join(frames[begin : number + 1]), 0))
                begin = number + 1
        if replies:
            reply_all(replies)

    def _note(self, planned: "list[_Planned]", taken: list[tuple[int, int]]) -> None:
        """Progress and statistics of what was handed out; pulls of a group mostly follow each other."""
        last = planned[0].plan
        messages = size = times = 0
        for (plan, _read, _position, start, committed), (count, count_bytes) in zip(planned, taken):
            if plan.commits and committed >= 0:
                self._offsets.commit(plan.topic, plan.group, plan.queue_id, committed)
            self._offsets.pulled(plan.topic, plan.group, plan.queue_id, start)
            if plan.topic is not last.topic or plan.group is not last.group:
                self._statistics.fetched(last.topic, last.group, messages, size, times=times)
                messages = size = times = 0
                last = plan
            messages += count
            size += count_bytes
            times += 1
        if times:
            self._statistics.fetched(last.topic, last.group, messages, size, times=times)

    def _make_plan(self, key: bytes, buffer: bytes, position: int, kind: int) -> _Plan | None:
        """What the handlers make of such a pull; `None` when they have to deal with each themselves."""
        try:
            request = decode_header(kind, _header_at(buffer, position), b"")
            pull = decode_fields(request.fields, PullRequest)
            # A group that is new is for the handlers to create.
            is_plain = self._groups.find(pull.group) is not None and self._handlers.selector_of(pull).is_everything
        except KappaError:
            is_plain = False
        commits = bool(is_plain and pull.flags & PullRequest.COMMIT_OFFSET)
        # Interned: pulls of one topic and group are told by identity.
        plan = _Plan(intern(pull.topic), intern(pull.group), pull.queue_id, commits) if is_plain else None
        self._plans[key] = plan
        return plan


def _header_at(buffer: bytes, position: int) -> bytes:
    """The header of the frame that begins there and was seen to be whole."""
    header_at = position + 8
    header_bytes = int.from_bytes(buffer[position + 5 : header_at], "big")
    return buffer[header_at : header_at + header_bytes]


def _marked_reply(request: Command, values: Sequence[str]) -> Command:
    fields = reply_fields(reader="0", next_offset=values[0], min_offset=values[1], max_offset=values[2])
    return request.reply(ResponseCode.SUCCESS, FetchStatus.FOUND.name, fields=fields)

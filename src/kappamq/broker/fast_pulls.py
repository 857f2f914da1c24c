"""The fast lane for pulls: those that find messages in memory are answered from their bytes, all of one turn at once.

    answer_pulls ─▶ plan by key ─▶ window of the queue ─▶ records copied once, into the replies
         │ one of them is missing
         ▼
    PullHandlers.selector_of: a plan · HotReads.open_window: a window ─▶ once more

`PullHandlers` decides once for each kind of pull (its key) whether it may be answered at all and wants every message; a
plan remembers that until topics, groups, members or rules change. Windows are the store's, see `store/hot_reads.py`.
Whatever else may happen to a pull (nothing there yet, a filter, an offset that was moved, records that are not in
memory or not verified, a slave to be suggested) is for the handlers. Only a pull that is behind and has to wait for its
turn (`cold_reads`) waits here, as bytes.
"""

import asyncio
from collections.abc import Iterable, Sequence
from mmap import mmap
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
from kappamq.kernel import PullPlan, answer_pulls, gather_pulls
from kappamq.net.connection import Connection
from kappamq.net.turns import reply_all
from kappamq.store.reading import FetchStatus
from kappamq.store.store import Store
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.frame import FRAME_BYTES_MAX, FRAME_HEAD_BYTES
from kappamq.wire.header_codec import decode_header
from kappamq.wire.headers import PullRequest, decode_fields

PLANS_MAX: Final = 100_000
"""Kinds of pulls that are remembered."""
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Pulls of one turn that come after so many bytes of answers wait until the peers have taken those."""


WAITING_MAX: Final = 10_000
"""Pulls that wait here for their turn; more wait with the handlers."""


class _Asker(NamedTuple):
    """Who asks for which queue; the answer is every message."""

    topic: str
    group: str
    queue_id: int


class _Waiting(NamedTuple):
    """A pull that waits for its turn. What it commits is committed."""

    connection: Connection
    asker: _Asker
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
        self._took = 0
        """How many of the answers under way, to pulls that are behind, are counted already."""
        self._called: list[_Waiting] = []
        """Those whose turn it is."""
        self._statistics = statistics
        self._plans: dict[bytes, PullPlan | None] = {}
        self._plan_of: dict[_Asker, PullPlan] = {}
        """The same plans, by who asks: kinds of pulls share what was pulled and committed last."""
        self._known: tuple[object, ...] = ()
        self._pieces = ReplyPieces(3, _marked_reply)

    def __call__(self, connection: Connection, buffer: bytes, at: int, count_max: int) -> int:
        """Answer plain pulls from `at` on; returns where they end."""
        return self.together([(connection, buffer, at, count_max)])[0]

    def together(self, reads: list[tuple[Connection, bytes, int, int]]) -> list[int]:
        """The same for reads of several connections, each with a position and how many to take from there at most."""
        if not self._has_plans():
            return [at for _connection, _buffer, at, _count in reads]
        self._store.hot_reads.forget_old()
        rules = self._handlers.rules
        self._took = 0
        ends, replies, used, cold = answer_pulls(
            reads,
            self._plans,
            lambda number, pull, cold: self._provide(reads[number], pull, cold),
            count_max=rules.count_max,
            cold_max=self._cold.allowance,
            bytes_max=rules.bytes_max,
            request_bytes_max=reads[0][0].frame_bytes_max,
            frame_bytes_max=FRAME_BYTES_MAX,
            total_bytes_max=REPLY_BYTES_MAX,
            json=self._pieces.json,
            binary=self._pieces.binary,
        )
        if used:
            self._cold.took(cold - self._took)
            self._note(used)
            reply_all(replies)
        return ends

    def _has_plans(self) -> bool:
        """Whether pulls may be answered here at all; forgets plans that were made under other circumstances."""
        rules = self._handlers.rules
        if self._offsets.has_resets or rules.slave_read:
            return False
        known = (self._topics.version, self._groups.version, self._members.version, rules)
        if known != self._known or len(self._plans) > PLANS_MAX:
            self._plans.clear()
            self._plan_of.clear()
            self._known = known
        return True

    def _provide(self, read: tuple[Connection, bytes, int, int], pull: _Pull, cold: int) -> int | None:
        """See to it that a pull finds what it lacks; returns where to go on, `None` if it is for the handlers."""
        connection, buffer, _at, _count = read
        position, request_id, kind, key, start, count, committed = pull
        if cold > self._took:
            self._cold.took(cold - self._took)
            self._took = cold
        plan = self._plans[key] if key in self._plans else self._make_plan(key, buffer, position, kind)
        if plan is None:
            return None
        asker = plan.about
        assert isinstance(asker, _Asker), "plans are made here"
        queue = self._store.queue(asker.topic, asker.queue_id)
        if queue is None:
            return None
        if plan.queue is not queue:
            plan.queue, plan.windows = queue, queue.windows
        count_max = self._handlers.rules.count_max
        wanted = min(max(count, 1), count_max)
        window = self._store.hot_reads.open_window(queue, start, wanted, count_max=count_max)
        if window is not None:
            return position
        may_wait = self._cold.must_wait and self._waiting < WAITING_MAX
        if not may_wait or not self._store.is_behind(asker.topic, asker.queue_id, start):
            return None
        if plan.times:
            self._note([plan])  # What came before it counts before it.
        header = _header_at(buffer, position)
        self._wait(_Waiting(connection, asker, self._known, header, request_id, kind, start, wanted), committed)
        return position + FRAME_HEAD_BYTES + len(header)

    def _wait(self, pull: _Waiting, committed: int) -> None:
        self._note_asked(pull.asker, pull.start, committed)
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
        jobs: list[_Job] = []
        asked: list[_Waiting] = []
        self._cold.grant(len(called))
        for pull in called:
            asker, start, entries = pull.asker, pull.start, None
            if has_plans and pull.known is self._known:
                entries = self._store.hot_entries(asker.topic, asker.queue_id, start, pull.wanted)
            if entries is None:
                self._hand_over(pull)
                continue
            units, log, log_start, lowest, min_offset, max_offset = entries
            asked.append(pull)
            jobs.append((pull.request_id, pull.kind, units, log, log_start, lowest, start, min_offset, max_offset))
        self._cold.grant(0)
        if not jobs:
            return
        frames, taken = gather_pulls(
            jobs,
            bytes_max=self._handlers.rules.bytes_max,
            frame_bytes_max=FRAME_BYTES_MAX,
            total_bytes_max=REPLY_BYTES_MAX,
            json=self._pieces.json,
            binary=self._pieces.binary,
        )
        for pull in asked[len(taken) :]:
            self._hand_over(pull)
        replies: dict[Connection, list[bytes]] = {}
        for pull, frame, (count, record_bytes) in zip(asked, frames, taken):
            self._note_asked(pull.asker, pull.start, -1)
            self._statistics.fetched(pull.asker.topic, pull.asker.group, count, record_bytes)
            replies.setdefault(pull.connection, []).append(frame)
        reply_all([(connection, b"".join(mine), len(mine)) for connection, mine in replies.items()])

    def _hand_over(self, pull: _Waiting) -> None:
        if pull.connection.is_open:
            self._handlers.answer(pull.connection, decode_header(pull.kind, pull.header, b""))

    def _note(self, used: Iterable[PullPlan]) -> None:
        """Progress and statistics of what was handed out; plans of a group mostly follow each other."""
        topic = group = ""
        messages = record_bytes = times = 0
        for plan in used:
            if not plan.times:
                continue  # Noted already.
            asker = plan.about
            assert isinstance(asker, _Asker), "plans are made here"
            self._note_asked(asker, plan.start, plan.committed)
            if asker.topic != topic or asker.group != group:
                if times:
                    self._statistics.fetched(topic, group, messages, record_bytes, times=times)
                topic, group, _queue_id = asker
                messages = record_bytes = times = 0
            messages += plan.messages
            record_bytes += plan.record_bytes
            times += plan.times
            plan.clear()
        if times:
            self._statistics.fetched(topic, group, messages, record_bytes, times=times)

    def _note_asked(self, asker: _Asker, start: int, committed: int) -> None:
        """A pull tells up to where its group has what was handed out, and perhaps how much of that it is done with."""
        if committed >= 0:
            self._offsets.commit(*asker, committed)
        self._offsets.pulled(*asker, start)

    def _make_plan(self, key: bytes, buffer: bytes, position: int, kind: int) -> PullPlan | None:
        """What the handlers make of such a pull; `None` when they have to deal with each themselves."""
        try:
            request = decode_header(kind, _header_at(buffer, position), b"")
            pull = decode_fields(request.fields, PullRequest)
            # A group that is new is for the handlers to create.
            is_plain = self._groups.find(pull.group) is not None and self._handlers.selector_of(pull).is_everything
        except KappaError:
            is_plain = False
        if not is_plain:
            self._plans[key] = None
            return None
        asker = _Asker(pull.topic, pull.group, pull.queue_id)
        plan = self._plans[key] = self._plan_of.setdefault(asker, PullPlan(asker))
        return plan


def _header_at(buffer: bytes, position: int) -> bytes:
    """The header of the frame that begins there and was seen to be whole."""
    header_at = position + FRAME_HEAD_BYTES
    header_bytes = int.from_bytes(buffer[position + 5 : header_at], "big")
    return buffer[header_at : header_at + header_bytes]


def _marked_reply(request: Command, values: Sequence[str]) -> Command:
    fields = reply_fields(reader="0", next_offset=values[0], min_offset=values[1], max_offset=values[2])
    return request.reply(ResponseCode.SUCCESS, FetchStatus.FOUND.name, fields=fields)

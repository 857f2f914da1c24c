"""The fast lane: plain sends go from the bytes of their reads to the log and back without an object for each.

    on_frames ─▶ kernel.scan_sends ─▶ Appender.submit_run ─▶ Store.append_run ─▶ group commit ─▶ encode_send_replies

The lane takes what `SendHandlers` would do the same with every time, and leaves everything else where it is, in order:
messages with a delay, an instant or a transaction, retries, topics that are new or not writable, and headers
or properties that are unusual in any way. Only the compiled kernel makes it worth while.

A run takes in what all connections send within one turn of the event loop: with many connections that have one send
under way each, they share the append as well as the sync.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kappamq.broker.appender import Appender
from kappamq.broker.fast_pulls import FastPulls
from kappamq.broker.handlers.send import SendRules
from kappamq.broker.reply_pieces import ReplyPieces
from kappamq.broker.router import answer_fault
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.errors import KappaError
from kappamq.kernel import Targets, encode_send_replies, scan_sends, scan_turn
from kappamq.kernel.reference import BINARY_MARK, CRC_PROPERTY_BYTES, MORE_MARK, ONE_WAY_MARK, SEND_ROW, TARGETS_MAX
from kappamq.model.config import Permission
from kappamq.model.names import WRITE_PROTECTED_TOPICS, is_retry_topic
from kappamq.model.properties import PROPERTIES_BYTES_MAX
from kappamq.net.connection import Connection
from kappamq.net.turns import Arrived, Reads, reply_all
from kappamq.store.plain_runs import PlainRun, RunBatch
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import ONE_WAY_FLAG, Command, HeaderType

TOPICS_KNOWN_MAX: Final = 100_000
"""Names of topics that are remembered, with whether the lane may serve them."""
RECORD_OVERHEAD_MAX: Final = 65_536
"""What a record may take beyond its body."""
RUN_TEXT_BYTES_MAX: Final = 8 * 1024 * 1024
"""A run with that much text takes in no further read."""
TEXT_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 1 - CRC_PROPERTY_BYTES


@dataclass(slots=True)
class _Run:
    """Sends of one turn, and who waits for how many answers: one entry for each source."""

    run: PlainRun
    askers: list[tuple[Connection, int]] = field(default_factory=list)


class FastLane:
    """Offered to each connection as `on_frames`. Takes nothing before `use`."""

    def __init__(
        self,
        *,
        topics: Topics,
        appender: Appender,
        statistics: Statistics,
        segment_bytes: int,
        unique_ids: bytearray,
        pulls: FastPulls | None = None,
    ) -> None:
        """Messages without a unique id get the next of `unique_ids` (`kernel.take_unique_id`)."""
        self._unique_ids = unique_ids
        self._pulls = pulls
        self._topics = topics
        self._appender = appender
        self._statistics = statistics
        self._segment_bytes = segment_bytes
        self._known: dict[bytes, int] = {}
        self._targets = Targets()
        self._known_version = topics.version
        self._rules: SendRules | None = None
        self._stamp = b""
        self._body_bytes_max = 0
        self._replies: dict[int, tuple[ReplyPieces, ReplyPieces]] = {}
        self._turn: _Run | None = None

    def use(self, rules: SendRules) -> None:
        """Follow these rules for sends from now on."""
        self._rules = rules if rules.permission & Permission.WRITE else None
        self._turn = None
        self._stamp = rules.stamp.encode()
        # A record that does not fit a segment is for others to refuse.
        self._body_bytes_max = min(rules.message_bytes_max, self._segment_bytes - RECORD_OVERHEAD_MAX)
        self._replies = {code: _pieces(rules, code) for code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)}

    def __call__(self, connection: Connection, buffer: bytes, at: int, count_max: int) -> int:
        """Take plain sends and pulls from `at` on; returns where they end."""
        while at < len(buffer):
            after = self._take_sends(connection, buffer, at, count_max)
            if after < len(buffer) and self._pulls is not None and count_max > 0:
                after = self._pulls(connection, buffer, after, count_max)
            if after == at:
                break
            at = after
        return at

    def turn(self, reads: Reads, others: Arrived) -> None:
        """Take what all connections brought in one turn: plain sends together, and the rest one by one."""
        self._appender.begin_turn()
        try:
            for connection, data in others:
                if connection.takes_frames:
                    reads.add(connection, data)
                else:
                    connection.receive(data)
            left = self._take_together(reads)
            if left:
                self._go_on(left)
        finally:
            self._appender.write()

    def _go_on(self, left: list[tuple[Connection, bytes, int]]) -> None:
        """With what follows plain sends, from a position in what was read: pulls together, the rest as it is."""
        ends = [at for _connection, _data, at in left]
        if self._pulls is not None:
            ends = self._pulls.together([(connection, data, at, connection.room) for connection, data, at in left])
        for (connection, data, _at), end in zip(left, ends):
            connection.go_on(data, end)

    def _take_together(self, reads: Reads) -> list[tuple[Connection, bytes, int]]:
        """Take plain sends at the beginning of what came; returns from where it goes on, where it does."""
        rules = self._rules
        room = self._appender.room
        if rules is None or room <= 0 or not self._knows_topics():
            return [(connection, data, 0) for connection, data in zip(reads.connections, reads.buffers)]
        turn = self._open_turn(rules)
        run = turn.run
        is_new = not run.count
        taken = scan_turn(
            reads.buffers,
            reads.rooms,
            run.rows,
            run.texts,
            run.targets,
            source=len(run.sources),
            topics=self._known,
            stamp=self._stamp,
            ids=self._unique_ids,
            count_max=room,
            frame_bytes_max=reads.connections[0].frame_bytes_max if reads.connections else 0,
            body_bytes_max=self._body_bytes_max,
            text_bytes_max=TEXT_BYTES_MAX,
            batch_bytes_max=self._segment_bytes - RECORD_OVERHEAD_MAX,
        )
        total, left = reads.note_taken(taken, sources=run.sources, askers=turn.askers)
        if total:
            run.count += total
            if is_new:
                self._submit(turn)
            else:
                self._appender.extend_run(total)
        return left

    def _knows_topics(self) -> bool:
        """Whether any topic is known as it is now; forgets them all, and their queues, when they have changed."""
        if (
            self._known_version is not self._topics.version
            or len(self._known) > TOPICS_KNOWN_MAX
            or len(self._targets) >= TARGETS_MAX
        ):
            self._known.clear()
            self._targets = Targets()
            self._known_version = self._topics.version
            self._turn = None
        return bool(self._known)

    def _open_turn(self, rules: SendRules) -> _Run:
        """The run that sends may be added to now."""
        turn = self._turn
        if turn is None or (
            turn.run.count and (turn.run is not self._appender.open_run or len(turn.run.texts) > RUN_TEXT_BYTES_MAX)
        ):
            turn = self._turn = _Run(PlainRun(rules.store_host, targets=self._targets))
        return turn

    def _take_sends(self, connection: Connection, buffer: bytes, at: int, count_max: int) -> int:
        rules = self._rules
        if rules is None:
            return at
        self._knows_topics()
        while True:
            room = min(count_max, self._appender.room)
            if room <= 0:
                return at
            turn = self._open_turn(rules)
            run = turn.run
            is_new = not run.count
            at, count, answers, unknown = scan_sends(
                buffer,
                at,
                run.rows,
                run.texts,
                run.targets,
                source=len(run.sources),
                topics=self._known,
                stamp=self._stamp,
                ids=self._unique_ids,
                count_max=room,
                frame_bytes_max=connection.frame_bytes_max,
                body_bytes_max=self._body_bytes_max,
                text_bytes_max=TEXT_BYTES_MAX,
                batch_bytes_max=self._segment_bytes - RECORD_OVERHEAD_MAX,
            )
            if count:
                run.sources.append((buffer, connection.peer_host))
                run.count += count
                turn.askers.append((connection, answers))
                connection.expect_replies(answers)
                count_max -= count
                if is_new:
                    self._submit(turn)
                else:
                    self._appender.extend_run(count)
            if unknown is None:
                return at
            self._known[unknown] = self._queues_of(unknown)

    def _queues_of(self, name: bytes) -> int:
        """Number of queues of a topic that the lane may write; 0 for any other."""
        topic = self._topics.find(name.decode("utf-8", "replace"))
        if topic is None or topic.topic_name in WRITE_PROTECTED_TOPICS or is_retry_topic(topic.topic_name):
            return 0
        return topic.queue_count if topic.perm & Permission.WRITE else 0

    def _submit(self, turn: _Run) -> None:
        self._appender.submit_run(turn.run, lambda outcome, is_late: self._done(turn, outcome, is_late))

    def _done(self, turn: _Run, outcome: RunBatch | KappaError, is_late: bool) -> None:
        run = turn.run
        if isinstance(outcome, KappaError):
            self._refuse(turn, outcome)
            return
        single, batch = self._replies[ResponseCode.FLUSH_DISK_TIMEOUT if is_late else ResponseCode.SUCCESS]
        frames = encode_send_replies(
            run.rows,
            run.places,
            run.texts,
            run.targets,
            sources=len(turn.askers),
            host=run.store_host,
            json=single.json,
            binary=single.binary,
            batch_json=batch.json,
            batch_binary=batch.binary,
        )
        reply_all([(connection, mine, answers) for (connection, answers), mine in zip(turn.askers, frames) if answers])
        # Nobody who sends needs to wait for that.
        self._statistics.stored_run(run.targets, outcome.queue_rows)

    def _refuse(self, turn: _Run, fault: KappaError) -> None:
        """Tell each sender what went wrong, as if it had come alone."""
        self._statistics.put_failed += turn.run.count
        for row in SEND_ROW.iter_unpack(turn.run.rows):
            _target, source, request_id, marks = row[:4]
            if marks & MORE_MARK:
                continue
            request = Command(
                code=RequestCode.SEND_MESSAGE_V2,
                request_id=request_id,
                flag=ONE_WAY_FLAG if marks & ONE_WAY_MARK else 0,
                header_type=HeaderType.BINARY if marks & BINARY_MARK else HeaderType.JSON,
            )
            answer_fault(turn.askers[source][0], request, fault)


def _pieces(rules: SendRules, code: ResponseCode) -> tuple[ReplyPieces, ReplyPieces]:
    """Replies with a unique id, and to a batch that has none."""

    def reply(request: Command, values: Sequence[str]) -> Command:
        unique_id = values[3] if len(values) > 3 else None
        fields = rules.reply_fields(
            offset_ids=values[0], queue_id=values[1], queue_offset=values[2], unique_id=unique_id
        )
        return request.reply(code, fields=fields)

    return ReplyPieces(4, reply), ReplyPieces(3, reply)

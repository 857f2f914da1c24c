"""The fast lane and the ordinary path leave the same bytes on disk and give the same answers, whatever comes in."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappamq.broker.appender import Appender
from kappamq.broker.cold_reads import PULLS_MAX, ColdReads
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.fast_lane import FastLane
from kappamq.broker.fast_pulls import FastPulls
from kappamq.broker.groups import Groups
from kappamq.broker.handlers.pull import PullHandlers, PullRules
from kappamq.broker.handlers.send import SendHandlers, SendRules
from kappamq.broker.locks import QueueLocks
from kappamq.broker.members import Members
from kappamq.broker.placing import PlacingRules
from kappamq.broker.router import Router
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import BuiltInTopics, Topics
from kappamq.clock import Clock, ManualClock
from kappamq.model.config import GroupConfig, Permission
from kappamq.model.ids import pack_host
from kappamq.model.record import decode_records
from kappamq.model.subscription import ClientConnection, ConsumerMembership, Subscription
from kappamq.net.connection import Connection, ConnectionLimits
from kappamq.net.turns import Reads
from kappamq.store.check import check_store
from kappamq.store.store import Store
from kappamq.wire.batch import BatchItem, encode_batch
from kappamq.wire.command import Command
from kappamq.wire.frame import FrameDecoder, encode_frame
from kappamq.wire.headers import PullRequest, SendRequest, encode_fields
from tests.contract.kernel_traffic import pulls, reads, sends
from tests.faults.records import small_settings

SETTLE_STEPS = 30_000
# Hundreds of stores are opened and synced, and nothing here is about the disk.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PLAIN = "UNIQ_KEY\x01ID{}\x02TAGS\x01a\x02"


class Peer(asyncio.Transport):
    """The other end of a connection: keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.received = b""
        self.is_gone = False

    def write(self, data: Any) -> None:
        self.received += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def pause_reading(self) -> None:
        return None

    def resume_reading(self) -> None:
        return None

    def close(self) -> None:
        self.is_gone = True

    def abort(self) -> None:
        self.is_gone = True


class Desk:
    """The sending half of a broker over a real store, with or without the fast lane."""

    def __init__(
        self,
        root: Path,
        tasks: asyncio.TaskGroup,
        *,
        has_lane: bool,
        unanswered_max: int = 8192,
        room: int = 100_000,
        hot_bytes: int = 1 << 30,
        segment_bytes: int = 1 << 17,
    ) -> None:
        clock = ManualClock()
        self.root = root
        self.settings = small_settings(
            visible="written", segment_bytes=segment_bytes, message_bytes_max=150, hot_bytes=hot_bytes
        )
        self.store = Store.open(root, self.settings, clock=clock)
        built_in = BuiltInTopics(cluster="c", broker="b", template_queues=4, auto_create=True, delay_levels=18)
        self.topics = Topics(built_in, clock=clock, on_change=lambda: None)
        self.topics.load(None, [])
        for name, queues in (("Orders", 4), ("T", 1)):
            self.topics.for_send(name, template="TBW102", queues=queues)
        self.topics.ensure("Closed", 4, Permission.READ)
        self.statistics = Statistics(clock=clock, cluster="c")
        self.appender = Appender(
            self.store,
            clock=clock,
            durable=False,
            on_arrivals=lambda arrivals: self.pulls.parked.wake(arrivals),
            on_run=lambda batch: self.pulls.parked.wake_run(batch),
            unacknowledged_max=room,
            flush_timeout_seconds=5,
        )
        self.rules = SendRules(
            store_host=pack_host("127.0.0.1", 10911),
            broker="b",
            cluster="DefaultCluster",
            region="DefaultRegion",
            trace_on=True,
            message_bytes_max=150,
            permission=6,
            placing=PlacingRules(delay_levels=18, timer_enabled=True, timer_max_delay_seconds=3600),
            reject_transactions=False,
        )
        self.groups = Groups(auto_create=True, clock=clock, on_change=lambda: None)
        self.groups.put(GroupConfig(group_name="reader"))
        self.groups.put(GroupConfig(group_name="off", consume_enable=False))
        unique_ids = bytearray(b"contract" + bytes(8))
        handlers = SendHandlers(
            topics=self.topics,
            groups=self.groups,
            locks=QueueLocks(clock=clock, lease_seconds=60),
            appender=self.appender,
            statistics=self.statistics,
            rules=self.rules,
            clock=clock,
            check_transactions=lambda: None,
            wait_told=lambda: asyncio.sleep(0),
            unique_ids=unique_ids,
        )
        self._build_pulls(tasks, clock)
        self.lane = FastLane(
            topics=self.topics,
            appender=self.appender,
            statistics=self.statistics,
            segment_bytes=self.settings.segment_bytes,
            unique_ids=unique_ids,
            pulls=FastPulls(
                cold=self.cold,
                handlers=self.pulls,
                topics=self.topics,
                groups=self.groups,
                members=self.members,
                offsets=self.offsets,
                store=self.store,
                statistics=self.statistics,
            ),
        )
        self.lane.use(self.rules)
        self._router = Router(tasks=tasks)
        self._router.serve(handlers.table(), self.pulls.table())
        self._limits = ConnectionLimits(unanswered_max=unanswered_max)
        self._has_lane = has_lane
        self.bulk = 0
        self.connection, self.peer = self.connect()

    def _build_pulls(self, tasks: asyncio.TaskGroup, clock: Clock) -> None:
        self.members = Members(clock=clock, timeout_seconds=120, on_change=lambda _: None)
        self.offsets = CommittedOffsets(clock=clock)
        self.cold = ColdReads(self.store)
        self.store.hot_reads.on_cold_read = self.cold.may_read
        self.pulls = PullHandlers(
            topics=self.topics,
            groups=self.groups,
            members=self.members,
            offsets=self.offsets,
            store=self.store,
            cold=self.cold,
            statistics=self.statistics,
            rules=PullRules(
                permission=6,
                count_max=4,
                bytes_max=700,
                cold_bytes_max=700,
                long_polling=True,
                short_polling_ms=1000,
                sql_filter=True,
                filter_retries=True,
                slave_read=False,
                hot_bytes=1 << 30,
            ),
            clock=clock,
            parked_max=100,
            tasks=tasks,
        )

    def connect(self) -> tuple[Connection, "Peer"]:
        """One more client; its group reads all of one topic and one tag of another."""
        peer = Peer()
        connection = Connection(
            self._router, limits=self._limits, on_frames=self._on_frames if self._has_lane else None
        )
        connection.connection_made(peer)
        subscriptions = (Subscription(topic="Orders", sub_version=3), Subscription(topic="T", sub_string="a"))
        membership = ConsumerMembership(group="reader", subscriptions=subscriptions)
        self.members.join_consumer(membership, ClientConnection(client_id="c", address="a"), connection)
        return connection, peer

    def _on_frames(self, connection: Connection, buffer: bytes, at: int, count_max: int) -> int:
        end = self.lane(connection, buffer, at, count_max)
        self.bulk += end > at
        return end

    async def receive(self, data: bytes) -> None:
        if self._has_lane:
            self.lane.turn(Reads([], [], []), [(self.connection, data)])
        else:
            self.connection.data_received(data)
        for _ in range(20):  # A backlog goes on in later turns of the loop.
            await asyncio.sleep(0)
        for _ in range(SETTLE_STEPS):
            if self.connection.standing.unanswered <= len(self.pulls.parked) and not self.is_preparing:
                break
            # Threads read records that are not in memory, and make the next segment.
            await asyncio.sleep(0.001)
        for _ in range(5):  # Answers of one turn of the loop are written together, after it.
            await asyncio.sleep(0)

    @property
    def is_preparing(self) -> bool:
        preparation = self.appender._preparation
        return preparation is not None and not preparation.done()

    def close(self) -> tuple[Any, ...]:
        """Everything that can be seen from outside."""
        self.store.close()
        assert not check_store(self.root, self.settings).violations
        contents = {
            str(path.relative_to(self.root)): path.read_bytes()
            for folder in ("commitlog", "consumequeue", "index")
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file()
        }
        counted = self.statistics
        counted.sample()
        return (
            contents,
            self.peer.received,
            self.peer.is_gone,
            (counted.put_count, counted.put_bytes, counted.put_failed, counted.get_count, counted.get_miss),
            {key: (item.value, item.times) for key, item in counted._items.items()},
            (list(self.offsets.items()), self.offsets._pulled, len(self.pulls.parked), sorted(self.groups.table())),
        )


async def outcome(data: list[bytes], *, has_lane: bool, **limits: int) -> Any:
    random.seed(7)  # Queues and ids that the broker chooses.
    with TemporaryDirectory(dir=MEMORY) as directory:
        async with asyncio.TaskGroup() as tasks:
            desk = Desk(Path(directory), tasks, has_lane=has_lane, **limits)
            for read in data:
                await desk.receive(read)
            return desk.close()


relaxed = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60
)


@relaxed
@given(st.lists(st.lists(sends(), max_size=6).map(b"".join), max_size=4), st.sampled_from((8192, 3)))
def test_same_bytes_and_answers(data: list[bytes], unanswered_max: int) -> None:
    lane, ordinary = (
        list(asyncio.run(outcome(data, has_lane=has_lane, unanswered_max=unanswered_max))) for has_lane in (True, False)
    )
    if unanswered_max == 3:
        # A refusal may overtake sends that wait for their turn: when the backlog goes on differs.
        lane[1], ordinary[1] = _sorted_frames(lane[1]), _sorted_frames(ordinary[1])
    assert lane == ordinary


def _sorted_frames(data: bytes) -> list[bytes]:
    return sorted(map(encode_frame, FrameDecoder().feed(data)))


@relaxed
@given(st.lists(sends(), min_size=1, max_size=6).map(b"".join), st.lists(st.integers(0, 2000), max_size=5))
def test_same_however_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    assert asyncio.run(outcome(pieces, has_lane=True)) == asyncio.run(outcome(pieces, has_lane=False))


@relaxed
@given(reads())
def test_broken_bytes_end_the_connection_in_both(data: bytes) -> None:
    lane = asyncio.run(outcome([data], has_lane=True))
    ordinary = asyncio.run(outcome([data], has_lane=False))
    assert lane[2] == ordinary[2]
    if not lane[2]:
        # Of a read that breaks the protocol the lane may have stored what came before the fault.
        assert lane == ordinary


@relaxed
@given(
    st.lists(st.lists(sends() | pulls(), max_size=6).map(b"".join), max_size=5),
    st.sampled_from((8192, 3)),
    st.sampled_from((1 << 30, 500)),
)
def test_pulls_are_answered_alike(data: list[bytes], unanswered_max: int, hot_bytes: int) -> None:
    limits = {"unanswered_max": unanswered_max, "hot_bytes": hot_bytes}
    lane, ordinary = (list(asyncio.run(outcome(data, has_lane=has_lane, **limits))) for has_lane in (True, False))
    # Who is woken first among those who wait, and when a thread is done, is open.
    lane[1], ordinary[1] = _sorted_frames(lane[1]), _sorted_frames(ordinary[1])
    assert lane == ordinary


def pull_frame(number: int, *, start: int = 0, **changes: Any) -> bytes:
    values: dict[str, Any] = {"group": "reader", "topic": "Orders", "queue_id": 0, "count_max": 32, "flags": 2}
    command = PullRequest(**values | {"start": start, "suspend_ms": 1000} | changes).command()
    command.request_id = number
    return encode_frame(command)


def test_pulls_leave_the_lane_where_they_have_to_wait(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(frame(1) + frame(2))
        await desk.receive(pull_frame(3) + pull_frame(4, start=2) + pull_frame(5, start=1))
        assert [(reply.request_id, reply.code) for reply in answers(desk)] == [(1, 0), (2, 0), (3, 0), (5, 0)]
        assert answers(desk)[2].fields["nextBeginOffset"] == "2"
        assert len(desk.pulls.parked) == 1
        await desk.receive(frame(6))
        assert [reply.request_id for reply in answers(desk)[4:]] == [6, 4]
        assert desk.statistics.get_count == 4

    run(play, tmp_path)


def test_a_group_that_changes_is_looked_at_again(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(frame(1))
        await desk.receive(pull_frame(2))
        assert answers(desk)[-1].code == 0
        desk.groups.put(GroupConfig(group_name="reader", consume_enable=False))
        await desk.receive(pull_frame(3))
        assert answers(desk)[-1].code == 16
        desk.groups.put(GroupConfig(group_name="reader"))
        desk.members.lost(desk.connection)
        await desk.receive(pull_frame(4))
        assert answers(desk)[-1].code == 24

    run(play, tmp_path)


def test_a_reset_is_told_by_the_handlers(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(frame(1) + frame(2))
        desk.offsets.reset("Orders", "reader", 0, 1)
        await desk.receive(pull_frame(3) + pull_frame(4))
        assert [(reply.code, reply.fields["nextBeginOffset"]) for reply in answers(desk)[2:]] == [(21, "1"), (0, "2")]

    run(play, tmp_path)


async def use_up_the_turn(desk: Desk) -> None:
    """Let pulls that are behind have to wait: others send, and this turn has had all it may."""
    for _ in range(SETTLE_STEPS):
        for _ in range(PULLS_MAX):
            desk.cold.may_read("Orders", 9, 0, 1)
        if desk.cold.must_wait:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("pulls are not limited")


def test_who_is_behind_waits_for_its_turn_in_the_lane(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        for number in range(1, 9):
            await desk.receive(frame(number))
        await use_up_the_turn(desk)
        seen, bulk = len(answers(desk)), desk.bulk
        commits = {"flags": PullRequest.SUSPEND | PullRequest.COMMIT_OFFSET, "committed_offset": 1}
        desk.lane.turn(
            Reads([], [], []),
            [(desk.connection, pull_frame(11, start=1, count_max=2, **commits) + pull_frame(12, start=3))],
        )
        assert desk.connection.standing.unanswered == 2
        assert len(answers(desk)) == seen
        assert desk.offsets.find("Orders", "reader", 0) == 1  # What a pull says about progress does not wait.
        await settled(desk)
        found = {reply.request_id: reply for reply in answers(desk)[seen:]}
        assert {number: reply.fields["nextBeginOffset"] for number, reply in found.items()} == {11: "3", 12: "6"}
        assert [message.queue_offset for message in decode_records(found[12].body)] == [3, 4, 5]
        assert desk.bulk == bulk
        assert desk.statistics.get_found == 2

    run(play, tmp_path, hot_bytes=1)


def test_who_waited_for_its_turn_hears_what_has_changed_meanwhile(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        for number in range(1, 9):
            await desk.receive(frame(number))
        await use_up_the_turn(desk)
        desk.lane.turn(Reads([], [], []), [(desk.connection, pull_frame(11))])
        assert desk.connection.standing.unanswered == 1
        desk.offsets.reset("Orders", "reader", 0, 5)
        await settled(desk)
        reset = answers(desk)[-1]
        assert (reset.request_id, reset.code, reset.fields["nextBeginOffset"]) == (11, 21, "5")
        await use_up_the_turn(desk)
        desk.lane.turn(Reads([], [], []), [(desk.connection, pull_frame(12))])
        assert desk.connection.standing.unanswered == 1
        desk.groups.put(GroupConfig(group_name="reader", consume_enable=False))
        await settled(desk)
        assert (answers(desk)[-1].request_id, answers(desk)[-1].code) == (12, 16)
        assert desk.connection.standing.unanswered == 0

    run(play, tmp_path, hot_bytes=1)


def test_windows_that_are_behind_answer_as_many_as_may_be_and_the_rest_wait(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        for number in range(1, 9):
            await desk.receive(frame(number))
        for _ in range(100 * SETTLE_STEPS):
            desk.cold.may_read("Orders", 9, 0, 1)
            if desk.cold.allowance == 2:
                break
            if desk.cold.allowance > PULLS_MAX or not desk.cold.allowance:
                await asyncio.sleep(0.001)  # Others send, but nobody has noticed yet; or this turn is over.
        assert desk.cold.allowance == 2
        seen = len(answers(desk))
        flags = PullRequest.SUSPEND | PullRequest.COMMIT_OFFSET
        reads = [pull_frame(20 + number, flags=flags, committed_offset=number) for number in range(4)]
        desk.store.hot_reads.on_cold_read = lambda topic, queue_id, start, end: (
            None if desk.cold.may_read(topic, queue_id, start, end) is None else end
        )
        desk.lane.turn(Reads([], [], []), [(desk.connection, b"".join(reads))])
        assert [reply.request_id for reply in answers(desk)[seen:]] == [20, 21]
        assert desk.cold.must_wait
        assert desk.connection.standing.unanswered == 2
        assert desk.offsets.find("Orders", "reader", 0) == 3  # The last one counts, though it waits.
        await settled(desk)
        assert [reply.request_id for reply in answers(desk)[seen:]] == [20, 21, 22, 23]
        assert desk.statistics.get_found == 4

    run(play, tmp_path, hot_bytes=1)


def test_which_pulls_take_the_lane(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(frame(1) + frame(2, text="UNIQ_KEY\x01I2\x02TAGS\x01b\x02") + frame(3))
        found = {}
        subscribed = PullRequest.SUSPEND | PullRequest.SUBSCRIPTION
        for name, data in {
            "plain": pull_frame(9),
            "lite": written(pull_frame(9), separators=(",", ":"), code=361),
            "commit": pull_frame(9, flags=PullRequest.SUSPEND | PullRequest.COMMIT_OFFSET, committed_offset=1),
            "everything asked for": pull_frame(9, flags=subscribed, subscription="*", expression_type="TAG"),
            "tags": pull_frame(9, flags=subscribed, subscription="a || b", expression_type="TAG"),
            "one tag": pull_frame(9, flags=subscribed, subscription="b"),
            "SQL": pull_frame(9, flags=subscribed, subscription="TAGS = 'b'", expression_type="SQL92"),
            "spaces": written(pull_frame(9), separators=(", ", ": ")),
        }.items():
            seen, bulk = len(answers(desk)), desk.statistics.get_found
            taken = desk.lane(desk.connection, data, 0, 100)
            if not taken:
                await desk.receive(data)
            (reply,) = answers(desk)[seen:]
            assert desk.statistics.get_found == bulk + 1
            found[name] = (taken > 0, [message.queue_offset for message in decode_records(reply.body)])
        everything, tagged = [0, 1, 2], [1]
        assert found == {
            "plain": (True, everything),
            "lite": (True, everything),
            "commit": (True, everything),
            "everything asked for": (True, everything),
            "tags": (False, everything),
            "one tag": (False, tagged),
            "SQL": (False, tagged),
            "spaces": (True, everything),
        }

    run(play, tmp_path)


def written(data: bytes, *, separators: tuple[str, str], **changes: int) -> bytes:
    """The same frame from another encoder."""
    header = json.dumps(json.loads(data[8:]) | changes, separators=separators).encode()
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


async def settled(desk: Desk) -> None:
    for _ in range(SETTLE_STEPS):
        if not desk.connection.standing.unanswered:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("not all are answered")


def test_sends_of_one_turn_share_an_append(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        other, other_peer = desk.connect()
        before = len(desk.store._pending)
        desk.connection.data_received(frame(1))
        other.data_received(frame(2) + frame(3))
        desk.connection.data_received(frame(4))
        desk.appender.write()
        assert (len(desk.store._pending), desk.store.max_offset("Orders", 0)) == (before, 4)
        await desk.receive(b"")
        assert [reply.request_id for reply in answers(desk)] == [1, 4]
        found = FrameDecoder().feed(other_peer.received)
        assert [(reply.request_id, reply.fields["queueOffset"]) for reply in found] == [(2, "1"), (3, "2")]

    run(play, tmp_path)


def frame(number: int, *, text: str = PLAIN, queue_id: int = 0, **named: Any) -> bytes:
    request = SendRequest(
        producer_group="pg", topic="Orders", queue_id=queue_id, born_at_ms=5, properties=text.format(number)
    )
    command = request.command(body=b"body", one_way=named.get("one_way", False))
    command.request_id = number
    return encode_frame(command)


def answers(desk: Desk) -> list[Command]:
    return FrameDecoder().feed(desk.peer.received)


def run(play: Callable[[Desk], Awaitable[None]], root: Path, **limits: int) -> None:
    """Play a scene at a desk that has the lane."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            desk = Desk(root, tasks, has_lane=True, **limits)
            await play(desk)
            desk.close()

    asyncio.run(main())


def batch_frame(number: int, count: int, properties: str = "") -> bytes:
    request = SendRequest(
        producer_group="pg", topic="Orders", queue_id=0, born_at_ms=5, batch=True, properties=properties
    )
    items = [BatchItem(b"item", b"TAGS\x01a\x02") for _ in range(count)]
    command = Command(320, number, encode_fields(request), encode_batch(items))
    return encode_frame(command)


def test_a_batch_is_one_send_of_many_messages(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(frame(1) + batch_frame(2, 3) + frame(3))
        assert desk.bulk == 1
        assert [reply.fields["queueOffset"] for reply in answers(desk)] == ["0", "1", "4"]
        assert len(answers(desk)[1].fields["msgId"].split(",")) == 3
        assert "transactionId" not in answers(desk)[1].fields
        desk.statistics.sample()
        assert desk.statistics._items["TOPIC_PUT_NUMS", "Orders"].times == 3

    run(play, tmp_path)


def test_a_batch_gets_its_own_id_back(tmp_path: Path) -> None:
    """The one of the request, as RocketMQ does; the messages have theirs, and the log does not know it."""

    async def play(desk: Desk) -> None:
        await desk.receive(batch_frame(1, 2, "UNIQ_KEY\x01A1B2\x02WAIT\x01true\x02") + batch_frame(2, 2))
        assert desk.bulk == 1
        assert [reply.fields.get("transactionId") for reply in answers(desk)] == ["A1B2", None]

    run(play, tmp_path)


@pytest.mark.parametrize("count", range(1, 60, 3))
def test_batches_move_to_the_next_segment_together(count: int) -> None:
    """The lane must break the log where the handlers do; a segment has room for about 500 of these messages."""
    data = [batch_frame(number, 4) + frame(number) * count for number in range(600 // (count + 4))]
    lane, ordinary = (
        asyncio.run(outcome(data, has_lane=has_lane, segment_bytes=(1 << 16) + 4000)) for has_lane in (True, False)
    )
    assert len([name for name in lane[0] if name.startswith("commitlog")]) > 1
    assert lane == ordinary


def test_order_of_arrival_holds_between_both_paths(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        unusual = PLAIN + "CLUSTER\x01x\x02"
        await desk.receive(b"".join([frame(n, text=PLAIN if n % 3 else unusual) for n in range(12)]))
        assert desk.bulk == 4
        assert [reply.request_id for reply in answers(desk)] == list(range(12))
        assert [reply.fields["queueOffset"] for reply in answers(desk)] == [str(n) for n in range(12)]

    run(play, tmp_path)


def test_a_busy_broker_refuses_what_is_over_its_limit(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(b"".join([frame(n) for n in range(8)]))
        codes = {reply.request_id: reply.code for reply in answers(desk)}
        assert [codes[n] for n in range(8)] == [0] * 5 + [2] * 3
        await desk.receive(frame(9))
        assert answers(desk)[-1].code == 0

    run(play, tmp_path, room=5)


def test_a_store_that_refuses_is_told_to_each_sender(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        desk.store._is_disk_full = True
        await desk.receive(frame(1) + frame(2, one_way=True) + frame(3))
        assert [(reply.request_id, reply.code != 0) for reply in answers(desk)] == [(1, True), (3, True)]
        assert desk.statistics.put_failed == 3
        assert desk.appender.unacknowledged == 0
        desk.store._is_disk_full = False
        await desk.receive(frame(4))
        assert answers(desk)[-1].fields["queueOffset"] == "0"

    run(play, tmp_path)


def test_a_topic_that_is_closed_or_gone_leaves_the_lane(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        await desk.receive(frame(1))
        assert desk.bulk == 1
        desk.topics.remove("Orders")
        desk.topics.ensure("Orders", 1, Permission.READ)
        await desk.receive(frame(2))
        assert (desk.bulk, answers(desk)[-1].code) == (1, 16)

    run(play, tmp_path)


def test_a_lane_without_rules_takes_nothing(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        lane = FastLane(
            topics=desk.topics,
            appender=desk.appender,
            statistics=desk.statistics,
            segment_bytes=1 << 30,
            unique_ids=bytearray(16),
        )
        assert lane(desk.connection, frame(1), 0, 100) == 0

    run(play, tmp_path)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")

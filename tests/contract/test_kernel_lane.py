"""Both kernels take the same sends into the fast lane and make the same bytes of them."""

from dataclasses import replace
from struct import Struct
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappamq.kernel import reference
from kappamq.wire.batch import BatchItem, encode_batch
from kappamq.wire.command import Command, HeaderType
from kappamq.wire.frame import encode_frame
from tests.contract.kernel_traffic import STAMP, TOPICS, framed, pulls, reads, sends, with_queues

compiled = pytest.importorskip("kappamq.kernel._compiled", reason="the compiled kernel is not built")

LIMITS: dict[str, Any] = {
    "topics": TOPICS,
    "stamp": STAMP,
    "count_max": 100,
    "frame_bytes_max": 1 << 20,
    "body_bytes_max": 150,
    "text_bytes_max": 32_000,
    "batch_bytes_max": 500,
}
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
HOST_V6 = bytes(range(20))
PIECES: dict[str, Any] = {
    "json": (b"<", b"|", b"|", b"|", b"|", b">"),
    "binary": (b"<", b"|", b"|", b"|", b"|", b"|", b">"),
    "batch_json": (b"{", b"/", b"/", b"/", b"}"),
    "batch_binary": (b"{", b"/", b"/", b"/", b"/", b"}"),
}
PLAIN = "UNIQ_KEY\x01ID1\x02TAGS\x01TagA\x02KEYS\x01k1  k2\x02"


class Run:
    """What scans make, one after the other, with the sources that placing needs."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.rows = bytearray()
        self.texts = bytearray()
        self.targets = kernel.Targets()
        self.sources: list[tuple[bytes, bytes]] = []
        self.ids = bytearray(b"\x00\xffcounts" + b"\xff" * 7 + b"\xfe")
        self.limits = LIMITS | {"ids": self.ids}

    def scan(self, data: bytes, at: int = 0, *, host: bytes = HOST, **limits: Any) -> Any:
        taken = self.kernel.scan_sends(
            data, at, self.rows, self.texts, self.targets, source=len(self.sources), **self.limits | limits
        )
        self.sources.append((data, host))
        return taken

    def scan_turn(self, buffers: list[bytes], rooms: list[int], **limits: Any) -> Any:
        return self.kernel.scan_turn(
            buffers, rooms, self.rows, self.texts, self.targets, source=len(self.sources), **self.limits | limits
        )

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Run)
        return (self.rows, self.texts, list(self.targets), self.ids) == (
            other.rows,
            other.texts,
            list(other.targets),
            other.ids,
        )


def nexts(targets: Any) -> list[int]:
    return [targets.tail_of(number).next for number in range(len(targets))]


relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


@relaxed
@given(reads(), st.sampled_from(({}, {"count_max": 1}, {"text_bytes_max": 130}, {"frame_bytes_max": 300})))
def test_scan_takes_the_same_sends(data: bytes, limits: dict[str, Any]) -> None:
    mine, theirs = Run(compiled), Run(reference)
    assert mine.scan(data, **limits) == theirs.scan(data, **limits)
    assert mine == theirs


@relaxed
@given(
    st.lists(st.tuples(st.lists(sends() | reads(), max_size=3).map(b"".join), st.integers(0, 4)), max_size=6),
    st.sampled_from((100, 3)),
)
def test_a_turn_takes_the_same_sends(data: list[tuple[bytes, int]], count_max: int) -> None:
    mine, theirs = Run(compiled), Run(reference)
    buffers, rooms = [buffer for buffer, _room in data], [room for _buffer, room in data]
    assert mine.scan_turn(buffers, rooms, count_max=count_max) == theirs.scan_turn(buffers, rooms, count_max=count_max)
    assert mine == theirs


@relaxed
@given(sends(), sends())
def test_scan_goes_on_from_any_frame(first: bytes, second: bytes) -> None:
    data = first + second
    mine, theirs = Run(compiled), Run(reference)
    assert mine.scan(data, len(first)) == theirs.scan(data, len(first))
    assert mine == theirs


@relaxed
@given(st.lists(reads(), max_size=4))
def test_a_run_grows_with_each_scan(data: list[bytes]) -> None:
    mine, theirs = Run(compiled), Run(reference)
    assert [mine.scan(read) for read in data] == [theirs.scan(read) for read in data]
    assert mine == theirs


@relaxed
@given(
    st.lists(st.tuples(st.lists(sends(), max_size=4).map(b"".join), st.sampled_from((HOST, HOST_V6))), max_size=4),
    st.booleans(),
    st.sampled_from((HOST, HOST_V6)),
    st.integers(0, 3000),
)
def test_places_and_replies(data: list[tuple[bytes, bytes]], append_crc: bool, store: bytes, room: int) -> None:
    run = Run(reference)
    for read, host in data:
        run.scan(read, host=host)
    mine, theirs = with_queues(compiled, list(run.targets)), with_queues(reference, list(run.targets))
    count = len(run.rows) // reference.SEND_ROW.size
    first = 0
    while True:
        arguments: dict[str, Any] = {
            "first": first,
            "log_offset": 1 << 33,
            "room": room,
            "stored_at_ms": 1_700_000_000_123,
            "store_host": store,
            "append_crc": append_crc,
        }
        placed = compiled.place_sends(run.rows, run.texts, run.sources, mine, **arguments)
        assert placed == reference.place_sends(run.rows, run.texts, run.sources, theirs, **arguments)
        assert nexts(mine) == nexts(theirs)
        replies: dict[str, Any] = {"sources": len(run.sources), "host": store, **PIECES}
        rows = run.rows[first * reference.SEND_ROW.size :]
        answered = compiled.encode_send_replies(rows, placed[1], run.texts, mine, **replies)
        assert answered == reference.encode_send_replies(rows, placed[1], run.texts, theirs, **replies)
        taken = len(placed[1]) // reference.PLACE_ROW.size
        first += taken
        if first >= count or not taken:
            break


def test_a_plain_send_is_taken_whole() -> None:
    text = PLAIN.replace("\x01", "\\u0001").replace("\x02", "\\u0002")
    header = f'{{"code":310,"extFields":{{"a":"pg","b":"Orders","e":"3","g":"5","i":"{text}"}},"opaque":9}}'.encode()
    data = framed(0, header, b"body")
    run = Run(compiled)
    assert run.scan(data) == (len(data), 1, 1, None)
    assert list(run.targets) == [(b"Orders", 3)]
    assert run.texts == PLAIN.encode() + STAMP
    values = reference.SEND_ROW.unpack(run.rows)
    assert values[:4] == (0, 0, 9, 0)
    assert data[values[4] : values[4] + values[5]] == b"body"
    assert run.texts[values[8] : values[8] + values[9]] == b"ID1"
    assert run.texts[values[10] : values[10] + values[11]] == b"k1  k2"
    assert values[12:] == (reference.java_hash("TagA"), 0, 0, 0, 5)
    run.scan(data)
    assert reference.SEND_ROW.unpack(run.rows[reference.SEND_ROW.size :])[:2] == (0, 1)


@pytest.mark.parametrize("odd", ["\x1f", " ", '\\"', "\\\\", "\\/", "~", "\x7f", "\x80", "é", "\x01"])
def test_odd_bytes_are_seen_wherever_they_stand(odd: str) -> None:
    taken = 0
    for size in range(20):
        for at in range(size + 1):
            value = "x" * at + odd + "x" * (size - at)
            for group, unique_id in ((value, "ID1"), ("pg", value)):
                text = f"UNIQ_KEY\\u0001{unique_id}"
                fields = f'"a":"{group}","b":"Orders","e":"3","g":"5","i":"{text}"'
                data = framed(0, f'{{"code":310,"extFields":{{{fields}}}}}'.encode(), b"body")
                mine, theirs = Run(compiled), Run(reference)
                assert mine.scan(data) == theirs.scan(data)
                assert mine == theirs
                taken += len(mine.rows) // reference.SEND_ROW.size
    assert taken == {" ": 420, "~": 420, "\\/": 210}.get(odd, 0)


@pytest.mark.parametrize(
    "mark",
    ["MSG_REGION", "CLUSTER", "__CRC32#", "POP_CK", "TRAN_MSG", "TIMER_DEL", "DELAY\x01", "WAIT\x01false"],
)
def test_marks_of_messages_that_are_not_plain_are_seen_wherever_they_stand(mark: str) -> None:
    for before in ("", "x", mark[0], mark[:2], mark[:-1]):
        for piece, is_plain in ((mark, False), (mark[:-1], True)):
            text = f"UNIQ_KEY\x01ID1\x02{before}{piece}".replace("\x01", "\\u0001").replace("\x02", "\\u0002")
            header = f'{{"code":310,"extFields":{{"a":"pg","b":"Orders","e":"3","g":"5","i":"{text}"}}}}'.encode()
            for kernel in (compiled, reference):
                run = Run(kernel)
                run.scan(framed(0, header, b"body"))
                assert bool(run.rows) == is_plain


def test_an_unknown_topic_is_named() -> None:
    text = "UNIQ_KEY\\u0001ID1\\u0002"
    header = f'{{"code":310,"extFields":{{"a":"pg","b":"New","e":"3","g":"5","i":"{text}"}}}}'.encode()
    data = framed(0, header, b"body")
    for kernel in (reference, compiled):
        run = Run(kernel)
        assert run.scan(data) == (0, 0, 0, b"New")
        assert run == Run(kernel)


def test_a_scan_has_a_limit_of_targets() -> None:
    header = '{{"code":310,"extFields":{{"a":"pg","b":"Wide","e":"{}","g":"5","i":"UNIQ_KEY\\u0001I"}}}}'
    data = b"".join([framed(0, header.format(number).encode(), b"body") for number in range(300)])
    for kernel in (reference, compiled):
        run = Run(kernel)
        for number in range(reference.TARGETS_MAX - 200):
            run.targets.number_of(b"Other", number)
        assert run.scan(data, topics={b"Wide": 1000}, count_max=100)[1] == 100
        assert run.scan(data, topics={b"Wide": 1000}, count_max=1000)[1] == 200
        assert len(run.targets) == reference.TARGETS_MAX
        assert [row[0] for row in reference.SEND_ROW.iter_unpack(run.rows[-72:])] == [reference.TARGETS_MAX - 1]
        with pytest.raises(ValueError):
            run.targets.number_of(b"Other", reference.TARGETS_MAX)


def test_a_batch_stays_together_and_gets_one_reply() -> None:
    header = b'{"code":320,"extFields":{"a":"pg","b":"Orders","e":"3","g":"5","m":"true"}}'
    items = [BatchItem(b"one", b"TAGS\x01a\x02"), BatchItem(b"two", b"UNIQ_KEY\x01x\x02", 9), BatchItem(b"three", b"")]
    data = framed(0, header, encode_batch(items))
    for kernel in (reference, compiled):
        run = Run(kernel)
        assert run.scan(data) == (len(data), 1, 1, None)
        rows = list(reference.SEND_ROW.iter_unpack(run.rows))
        more = reference.BATCH_MARK | reference.MORE_MARK
        assert [row[3] for row in rows] == [more, more, reference.BATCH_MARK]
        assert [data[row[4] : row[4] + row[5]] for row in rows] == [b"one", b"two", b"three"]
        place: dict[str, Any] = {"first": 0, "log_offset": 0, "stored_at_ms": 0, "store_host": HOST, "append_crc": True}
        targets = with_queues(kernel, [(b"Orders", 3)])
        assert kernel.place_sends(run.rows, run.texts, run.sources, targets, room=400, **place)[0] == b""
        placed = kernel.place_sends(run.rows, run.texts, run.sources, targets, room=500, **place)
        assert reference.QUEUE_ROW.unpack(placed[2]) == (0, 3, 1, 30, len(placed[0]))
        assert (len(placed[1]), len(placed[3])) == (60, 60)
        (reply,) = kernel.encode_send_replies(run.rows, placed[1], run.texts, targets, sources=1, host=HOST, **PIECES)
        assert reply[8:].count(b",") == 2
        assert reply.endswith(b"/3/30/0}")


@relaxed
@given(
    reads() | st.lists(pulls(), max_size=4).map(b"".join), st.sampled_from((100, 1)), st.sampled_from((1 << 20, 250))
)
def test_scan_takes_the_same_pulls(data: bytes, count_max: int, frame_bytes_max: int) -> None:
    limits = {"count_max": count_max, "frame_bytes_max": frame_bytes_max}
    assert compiled.scan_pulls(data, 0, **limits) == reference.scan_pulls(data, 0, **limits)


def test_a_plain_pull_is_taken_whole() -> None:
    names = '"consumerGroup":"g","topic":"T","queueId":"3","queueOffset":"7","maxMsgNums":"32","commitOffset":"5"'
    data = framed(0, f'{{"code":11,"extFields":{{{names}}},"opaque":9}}'.encode(), b"")
    for kernel in (reference, compiled):
        end, found = kernel.scan_pulls(b"...." + data, 4, count_max=9, frame_bytes_max=1 << 20)
        assert (end, found) == (4 + len(data), [(4, 9, 0, b"\x01g\x01T\x013\0\0\0\0", 7, 32, -1)])
        committing = framed(0, f'{{"code":361,"extFields":{{{names},"sysFlag":"7"}}}}'.encode(), b"")
        assert kernel.scan_pulls(committing, 0, count_max=9, frame_bytes_max=1 << 20)[1][0][4:] == (7, 32, 5)
        with pytest.raises(ValueError):
            kernel.scan_pulls(data, -1, count_max=9, frame_bytes_max=1 << 20)


_UNIT = Struct(">qiq")
_UNITS = st.lists(
    st.tuples(st.integers(-2, 60) | st.sampled_from((2**63 - 1, -(2**63))), st.integers(0, 30), st.just(0)), max_size=6
).map(lambda units: b"".join([_UNIT.pack(*unit) for unit in units]))
_OFFSETS = st.sampled_from((0, 1, 12345, 2**62))
_LOG = bytes(range(64))


@given(
    st.lists(
        st.tuples(
            st.sampled_from((0, 1, -5, 2**31 - 1)),
            st.sampled_from((0, 1)),
            _UNITS | st.just(_UNIT.pack(10, 20, 0) + _UNIT.pack(30, 9, 0)),
            st.sampled_from((_LOG, b"")),
            st.sampled_from((0, 3, -1, 2**63 - 1)),
            st.sampled_from((0, 5)),
            _OFFSETS,
            _OFFSETS,
            _OFFSETS,
        ),
        max_size=4,
    ),
    st.sampled_from((1000, 25, 0)),
    st.sampled_from((1000, 180)),
    st.sampled_from((1000, 60)),
)
def test_pulls_are_gathered_alike(jobs: list[Any], bytes_max: int, frame_bytes_max: int, total_bytes_max: int) -> None:
    limits: dict[str, Any] = {
        "bytes_max": bytes_max,
        "frame_bytes_max": frame_bytes_max,
        "total_bytes_max": total_bytes_max,
        "json": (b"<", b"|", b"|", b"|", b">"),
        "binary": (b"<", b"|", b"|", b"|", b"|", b">"),
    }
    assert compiled.gather_pulls(jobs, **limits) == reference.gather_pulls(jobs, **limits)


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
def test_pulls_of_entries_that_are_cut_short_are_refused(kernel: Any) -> None:
    pieces = {"json": (b"",) * 5, "binary": (b"",) * 6}
    with pytest.raises(ValueError):
        kernel.gather_pulls(
            [(1, 0, b"short", _LOG, 0, 0, 0, 0, 0)], bytes_max=1, frame_bytes_max=1, total_bytes_max=1, **pieces
        )


class Shelf(NamedTuple):
    """As much of a queue as answering pulls needs."""

    min_offset: int
    end: int


_RECORDS = b"".join([_UNIT.pack(4 * number, 4, 0) for number in range(16)])
_MAYBE = st.sampled_from((False, False, False, True))


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, bytes, bytes, dict[str, Any]]:
    """Mostly of sixteen records of four bytes, of some of the first offsets."""
    first = draw(st.integers(0, 12))
    units = draw(_UNITS) if draw(_MAYBE) else _RECORDS[: 20 * draw(st.integers(1, 16))]
    named = {
        "log_start": draw(st.sampled_from((0, 0, 0, 3, -1))),
        "lowest": draw(st.sampled_from((0, 0, 0, 5))),
        "is_final": draw(st.booleans()),
        "is_cold": draw(st.booleans()),
    }
    return first, units, draw(st.sampled_from((_LOG, _LOG, _LOG, b""))), named


_PLANS = st.none() | st.tuples(
    st.none() | st.builds(Shelf, st.integers(0, 3), st.integers(0, 20)) | st.just(Shelf(0, 20)),
    st.dictionaries(st.just(0), windows(), max_size=1),
)


@st.composite
def few_pulls(draw: st.DrawFn) -> bytes:
    """Up to four pulls of three kinds, and perhaps something else behind them."""
    frames = []
    for _ in range(draw(st.integers(0, 4))):
        fields = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": str(draw(st.integers(0, 2))),
            "queueOffset": str(draw(st.integers(-1, 20) | st.sampled_from((511, 512, 2**63 - 1, -(2**63))))),
            "maxMsgNums": str(draw(st.integers(-1, 8))),
            "sysFlag": str(draw(st.sampled_from((0, 1)))),
            "commitOffset": str(draw(st.integers(-1, 9))),
        }
        binary = draw(st.booleans())
        command = Command(11, draw(st.integers(-5, 5)), fields=fields)
        frames.append(encode_frame(replace(command, header_type=HeaderType.BINARY if binary else HeaderType.JSON)))
    return b"".join(frames) + (draw(reads()) if draw(_MAYBE) else b"")


def answered(
    kernel: Any, data: list[bytes], plans: list[Any], limits: dict[str, int], provided: list[int | None]
) -> Any:
    """What a kernel makes of pulls of three queues of one group, as plain values."""
    made = []
    missed: list[Any] = []

    def provide(number: int, pull: Any, cold: int) -> int | None:
        missed.append((number, pull, cold))
        after = provided[len(missed) % len(provided)] if provided else None
        plan = kept.get(pull[3])
        if after == 0 and plan is not None and 0 <= pull[4] < 1 << 60:
            plan.queue = plan.queue or Shelf(0, pull[4] + 5)
            plan.windows[pull[4] // 512] = kernel.PullWindow(
                pull[4], _RECORDS, _LOG, log_start=0, lowest=0, is_cold=bool(len(missed) % 2)
            )
        return None if after is None else pull[0] + after

    for number, values in enumerate(plans):
        plan = None
        if values is not None:
            plan = kernel.PullPlan(number)
            plan.queue = values[0]
            plan.windows = {
                block: kernel.PullWindow(first, units, log, **named)
                for block, (first, units, log, named) in values[1].items()
            }
        made.append(plan)
    keys = [
        b"\x01g\x01T\x01" + str(number).encode() + b"\x01" + flags + b"\0\0\0"
        for number in range(len(plans))
        for flags in (b"0", b"1")
    ]
    asked = [(f"peer {number}", read, 0, 100 if number else 3) for number, read in enumerate(data)]
    kept = {key: made[number // 2] for number, key in enumerate(keys)}
    ends, replies, used, cold = kernel.answer_pulls(
        asked,
        kept,
        provide,
        json=(b"<", b"|", b"|", b"|", b">"),
        binary=(b"<", b"|", b"|", b"|", b"|", b">"),
        **limits,
    )
    notes = [
        (plan.about, plan.times, plan.messages, plan.record_bytes, plan.start, plan.committed)
        for plan in [*used, *filter(None, made)]
    ]
    return ends, replies, missed, notes, len(used), cold


@relaxed
@given(
    st.lists(few_pulls(), max_size=3),
    st.lists(_PLANS, max_size=3),
    st.fixed_dictionaries(
        {
            "count_max": st.sampled_from((4, 32)),
            "cold_max": st.sampled_from((0, 2, 100)),
            "bytes_max": st.sampled_from((1000, 15, 0)),
            "request_bytes_max": st.sampled_from((1 << 20, 300)),
            "frame_bytes_max": st.sampled_from((1000, 160)),
            "total_bytes_max": st.sampled_from((1000, 60, -1)),
        }
    ),
    st.lists(st.sampled_from((0, 0, None, 8)), max_size=3),
)
def test_pulls_of_a_turn_are_answered_alike(
    data: list[bytes], plans: list[Any], limits: dict[str, int], provided: list[int | None]
) -> None:
    assert answered(compiled, data, plans, limits, provided) == answered(reference, data, plans, limits, provided)


_LIMITS: dict[str, Any] = {
    "count_max": 4,
    "cold_max": 1,
    "bytes_max": 1000,
    "request_bytes_max": 1 << 20,
    "frame_bytes_max": 1 << 20,
    "total_bytes_max": 1 << 20,
    "json": (b"<", b"|", b"|", b"|", b">"),
    "binary": (b"<", b"|", b"|", b"|", b"|", b">"),
}


def _pull(start: int, *, request_id: int = 0, committed: int = 0, count: int = 4) -> bytes:
    names = f'"consumerGroup":"g","topic":"T","queueId":"0","queueOffset":"{start}","maxMsgNums":"{count}"'
    names += f',"sysFlag":"1","commitOffset":"{committed}"'
    return framed(0, f'{{"code":11,"extFields":{{{names}}},"opaque":{request_id}}}'.encode(), b"")


_KEY = b"\x01g\x01T\x010\x011\0\0\0"


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
def test_pulls_are_answered_from_windows(kernel: Any) -> None:
    plan = kernel.PullPlan("mine")
    first = _pull(2, request_id=7, committed=2)
    second = _pull(5, request_id=8, committed=5, count=2)
    data = first + second + _pull(10)

    missed: list[Any] = []

    def note(number: int, pull: Any, cold: int) -> None:
        missed.append((number, pull, cold))

    def answer(provide: Any = note, room: int = 100) -> Any:
        missed.clear()
        return kernel.answer_pulls([("peer", data, 0, room)], {_KEY: plan}, provide, **_LIMITS)

    missing = (0, (0, 7, 0, _KEY, 2, 4, 2), 0)
    assert kernel.answer_pulls([("peer", data, 0, 100)], {}, note, **_LIMITS) == ([0], [], [], 0)
    assert missed == [missing]
    assert answer() == ([0], [], [], 0)  # Its queue is not known.
    assert missed == [missing]
    plan.queue = Shelf(0, 11)
    assert answer() == ([0], [], [], 0)  # There is no window.
    assert missed == [missing]

    def promise(number: int, pull: Any, cold: int) -> int:
        note(number, pull, cold)
        position: int = pull[0]
        return position

    assert answer(promise) == ([0], [], [], 0)
    assert missed == [missing]  # Asked once, although there is none again.
    plan.windows = {0: kernel.PullWindow(1, _RECORDS[:160], _LOG, log_start=0, lowest=0)}
    ends, replies, used, cold = answer()
    assert ends == [len(first + second)]
    frames = [b"<6|0|11|7>" + _LOG[4:20], b"<7|0|11|8>" + _LOG[16:24]]
    heads = [(len(frame) + 4).to_bytes(4, "big") + (10).to_bytes(4, "big") for frame in frames]
    assert replies == [("peer", heads[0] + frames[0] + heads[1] + frames[1], 0)]
    assert [pull[4] for _number, pull, _cold in missed] == [10]  # The window ends before.
    assert (used, cold) == ([plan], 0)
    assert (plan.about, plan.times, plan.messages, plan.record_bytes) == ("mine", 2, 6, 24)
    assert (plan.start, plan.committed) == (5, 5)
    plan.clear()
    assert (plan.times, plan.messages, plan.record_bytes, plan.start, plan.committed) == (0, 0, 0, 0, -1)
    assert answer(lambda _number, _pull, _cold: len(data))[0] == [len(data)]  # It is taken by somebody else.
    plan.windows = {0: kernel.PullWindow(2, _RECORDS[:160], _LOG, log_start=0, lowest=0, is_cold=True)}
    ends, replies, used, cold = answer()
    assert (ends, len(replies), cold) == ([len(first)], 1, 1)  # One from a cold window may be answered.
    assert [(pull[4], cold) for _number, pull, cold in missed] == [(5, 1)]
    assert answer(promise)[::3] == ([len(first + second)], 1)
    plan.windows = {0: kernel.PullWindow(2, _RECORDS[:40], _LOG, log_start=0, lowest=0, is_final=True)}
    assert answer()[0] == [len(first)]
    assert answer(room=0)[:2] == ([0], [])
    for position in (-1, len(data) + 1):
        with pytest.raises(ValueError):
            answer(lambda _number, _pull, _cold, position=position: position)


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
def test_windows_and_reads_that_are_none_are_refused(kernel: Any) -> None:
    for first, units in ((0, b"short"), (-1, b""), (2**62 + 1, b"")):
        with pytest.raises(ValueError):
            kernel.PullWindow(first, units, _LOG, log_start=0, lowest=0)
    with pytest.raises(ValueError):
        kernel.answer_pulls([("peer", b"", -1, 1)], {}, lambda *_missing: None, **_LIMITS)
    window = kernel.PullWindow(5, _RECORDS, _LOG, log_start=2, lowest=3, is_final=True, is_cold=True)
    assert (window.first, window.stop, window.units, window.log) == (5, 21, _RECORDS, _LOG)
    assert (window.log_start, window.lowest, window.is_final, window.is_cold) == (2, 3, True, True)


KEYS = st.lists(st.tuples(st.integers(0, 2**31 - 1) | st.integers(0, 12), st.integers(0, 2**62)), max_size=40).map(
    lambda keys: b"".join([reference.KEY_ROW.pack(*key) for key in keys])
)


@given(KEYS, st.lists(st.integers(-3, 30), min_size=1, max_size=7), st.integers(1, 20), st.integers(0, 2**31 - 1))
def test_keys_are_chained_alike(keys: bytes, slots: list[int], number: int, seconds: int) -> None:
    table = bytearray(b"head" + Struct(f">{len(slots)}i").pack(*slots) + b"tail")
    arguments = {"at": 4, "slots": len(slots), "number": number, "seconds": seconds}
    chained = compiled.chain_keys(table, keys, **arguments)
    assert chained == reference.chain_keys(table, keys, **arguments)
    mine, theirs = bytearray(table), bytearray(table)
    compiled.link_heads(mine, chained[1], at=4)
    reference.link_heads(theirs, chained[1], at=4)
    assert mine == theirs


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        (b"", {"at": 0, "slots": 0}),
        (b"", {"at": 0, "slots": 9}),
        (b"", {"at": -4, "slots": 1}),
        (b"", {"at": 33, "slots": 1}),
        (b"short", {"at": 0, "slots": 8}),
        (reference.KEY_ROW.pack(-1, 5), {"at": 0, "slots": 8}),
        (b"", {"at": 0, "slots": 8, "number": 0}),
    ],
)
def test_chaining_refuses_what_lies_outside(kernel: Any, keys: bytes, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        kernel.chain_keys(bytearray(32), keys, **{"number": 1, "seconds": 0} | arguments)


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
def test_heads_stay_within_the_table(kernel: Any) -> None:
    for slot in (8, 2**32 - 1):
        with pytest.raises(ValueError):
            kernel.link_heads(bytearray(32), reference.HEAD_ROW.pack(slot, 1), at=0)
    with pytest.raises(ValueError):
        kernel.link_heads(bytearray(32), reference.HEAD_ROW.pack(0, 1), at=-1)


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
@pytest.mark.parametrize("position", [0, 1, 4, 5, 6, 7, 8, 9, 10, 11])
def test_rows_cannot_point_outside(kernel: Any, position: int) -> None:
    values = [0] * 17
    values[position] = 2**32 - 1
    row = reference.SEND_ROW.pack(*values)
    arguments: dict[str, Any] = {
        "first": 0,
        "log_offset": 0,
        "room": 10_000,
        "stored_at_ms": 0,
        "store_host": HOST,
        "append_crc": True,
    }
    with pytest.raises(ValueError):
        kernel.place_sends(row, b"texts", [(b"buffer", HOST)], with_queues(kernel, [(b"T", 0)]), **arguments)
    if position in (0, 1, 8, 9):
        targets = with_queues(kernel, [(b"T", 0)])
        with pytest.raises(ValueError):
            kernel.encode_send_replies(row, bytes(20), b"texts", targets, sources=1, host=HOST, **PIECES)


@pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
def test_replies_go_in_the_order_of_their_sources(kernel: Any) -> None:
    rows = [reference.SEND_ROW.pack(0, source, *[0] * 15) for source in (1, 0)]
    pieces: dict[str, Any] = {"sources": 3, "host": HOST, **PIECES}
    targets = with_queues(kernel, [(b"T", 0)])
    frames = kernel.encode_send_replies(rows[1] + rows[0], bytes(40), b"", targets, **pieces)
    assert [bool(mine) for mine in frames] == [True, True, False]
    with pytest.raises(ValueError):
        kernel.encode_send_replies(b"".join(rows), bytes(40), b"", targets, **pieces)

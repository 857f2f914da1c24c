"""Inputs for the kernels and the comparison of what both make of them."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kappamq.kernel import reference
from kappamq.wire.batch import BatchItem, encode_batch
from kappamq.wire.command import Command, HeaderType
from kappamq.wire.frame import encode_frame
from kappamq.wire.headers import PullRequest, SendRequest, SendRequestV1, encode_fields

TOPICS: Final = {b"Orders": 4, b"T": 1}
HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
FRAMES_MAX: Final = 6
MUTATIONS_MAX: Final = 6
INTERESTING: Final = (
    b"\xff",
    b"\x00",
    b'"',
    b"\\",
    b"\\u00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"}",
    b"{",
    b"\x01\x02",
)

FAULTS: Final[Counter[str]] = Counter()
"""Kinds of errors that both kernels raised."""


class Corpus:
    """Sends as clients make them, spoiled at random."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def next(self) -> bytes:
        source = self._random
        makers = source.choice(((self._send,), (self._send, self._pull), (self._pull,)))
        data = bytearray(b"".join([source.choice(makers)() for _ in range(source.randrange(1, FRAMES_MAX))]))
        if source.random() < 0.3:
            return bytes(data)
        for _ in range(source.randrange(1, MUTATIONS_MAX)):
            self._spoil(data)
        return bytes(data)

    def _send(self) -> bytes:
        source = self._random
        text = "".join(
            [
                f"{name}\x01{source.choice(('a', 'k1 k2', 'é', '日本', 'x' * 40, '🎈'))}\x02"
                for name in source.sample(("TAGS", "KEYS", "WAIT", "colour", "INSTANCE_ID"), source.randrange(4))
            ]
        )
        kind = source.choice((SendRequest, SendRequestV1))
        is_batch = source.random() < 0.3
        items = [BatchItem(source.randbytes(3), source.choice((b"", text.encode()))) for _ in range(2)]
        request = kind(
            producer_group="pg",
            topic=source.choice(("Orders", "Orders", "T", "New")),
            queue_id=source.randrange(4),
            born_at_ms=source.getrandbits(62),
            flags=source.choice((0, 1, -1)),
            batch=is_batch,
            properties=text + f"UNIQ_KEY\x01{source.getrandbits(64):X}" + source.choice(("\x02", "")),
        )
        command = Command(
            code=request.code,
            request_id=source.getrandbits(31),
            fields=encode_fields(request),
            body=encode_batch(items) if is_batch else source.randbytes(source.randrange(1, 80)),
            flag=source.choice((0, 2)),
            header_type=source.choice((HeaderType.JSON, HeaderType.BINARY)),
        )
        return encode_frame(command)

    def _pull(self) -> bytes:
        source = self._random
        request = PullRequest(
            group="reader",
            topic=source.choice(("Orders", "T", "New")),
            queue_id=source.randrange(4),
            start=source.getrandbits(source.choice((3, 63))),
            count_max=source.choice((1, 32, -1)),
            flags=source.randrange(8),
            committed_offset=source.getrandbits(5),
            subscription=source.choice((None, "*", "a || b")),
            expression_type=source.choice((None, "TAG")),
        )
        command = Command(
            code=source.choice((11, 361)),
            request_id=source.getrandbits(31),
            fields=encode_fields(request),
            header_type=source.choice((HeaderType.JSON, HeaderType.BINARY)),
        )
        return encode_frame(command)

    def _spoil(self, data: bytearray) -> None:
        source = self._random
        at = source.randrange(len(data) + 1)
        choice = source.randrange(5)
        if choice == 0:
            data[at : at + 1] = source.randbytes(1)
        elif choice == 1:
            data[at:at] = source.choice(INTERESTING)
        elif choice == 2:
            del data[at : at + source.randrange(1, 9)]
        elif choice == 3:
            piece = source.choice(INTERESTING)
            data[at : at + len(piece)] = piece
        else:
            start = source.randrange(len(data) + 1)
            data[at:at] = data[start : start + source.randrange(1, 30)]


def difference(data: bytes) -> tuple[str | None, int]:
    """What the compiled kernel does otherwise with an input, if anything; and how many sends it took."""
    from kappamq.kernel import _compiled as compiled

    scan: dict[str, Any] = {
        "topics": TOPICS,
        "stamp": b"CLUSTER\x01c\x02",
        "count_max": 100,
        "frame_bytes_max": 1 << 20,
        "body_bytes_max": 120,
        "text_bytes_max": 200,
        "batch_bytes_max": 600,
    }
    pairs: list[tuple[str, Callable[[Any], Any]]] = [
        ("split_frames", lambda kernel: kernel.split_frames(data, 1 << 16)),
        ("crc31", lambda kernel: kernel.crc31(data)),
        ("java_hash", lambda kernel: kernel.java_hash(data.decode("utf-8", "surrogateescape"))),
        (
            "gather_records",
            lambda kernel: kernel.gather_records(data[: len(data) // 20 * 20], data, start=0, lowest=0, bytes_max=500),
        ),
        (
            "gather_records at small offsets",
            lambda kernel: kernel.gather_records(_units(data), data, start=3, lowest=5, bytes_max=500),
        ),
        ("scan_pulls", lambda kernel: kernel.scan_pulls(data, 0, count_max=100, frame_bytes_max=1 << 20)),
        ("gather_pulls", lambda kernel: kernel.gather_pulls(_jobs(data), **_PULL_PIECES)),
        ("answer_pulls", lambda kernel: _answered(kernel, data)),
        ("scan_sends", lambda kernel: _scanned(kernel, data, scan)),
        ("scan_turn", lambda kernel: _scanned_together(kernel, data, scan)),
    ]
    for name, call in pairs:
        if _outcome(call, compiled) != _outcome(call, reference):
            return name, 0
    (_end, count, _answers, _unknown), rows, texts, targets = _scanned(compiled, data, scan)
    return _later_difference(compiled, data, rows, texts, targets), count


def _scanned(kernel: Any, data: bytes, scan: dict[str, Any]) -> tuple[Any, bytes, bytes, list[tuple[bytes, int]]]:
    """Two scans into one run, as two reads with the same bytes would do."""
    rows, texts, targets = bytearray(), bytearray(), kernel.Targets()
    ids = bytearray(b"fuzzfuzz" + b"\xff" * 7 + b"\xfe")
    kernel.scan_sends(data, 0, rows, texts, targets, source=0, ids=ids, **scan)
    taken = kernel.scan_sends(data, 0, rows, texts, targets, source=1, ids=ids, **scan)
    return taken, bytes(rows), bytes(texts), list(targets)


def _scanned_together(kernel: Any, data: bytes, scan: dict[str, Any]) -> tuple[Any, bytes, bytes, Any]:
    """A turn that read the same bytes from two connections, and half of them from a third."""
    rows, texts, targets = bytearray(), bytearray(), kernel.Targets()
    taken = kernel.scan_turn(
        [data, data, data[: len(data) // 2]],
        [100, 1, 100],
        rows,
        texts,
        targets,
        source=0,
        ids=bytearray(16),
        **scan,
    )
    return taken, bytes(rows), bytes(texts), list(targets)


_PULL_PIECES: Final[dict[str, Any]] = {
    "bytes_max": 500,
    "frame_bytes_max": 600,
    "total_bytes_max": 1000,
    "json": (b"a",) * 5,
    "binary": (b"b",) * 6,
}


def _jobs(data: bytes) -> list[Any]:
    """Pulls of entries that mostly lie within the input, and of entries that are some part of it."""
    return [
        (7, 0, _units(data[:40]), data, 0, 0, 3, 0, 9),
        (-7, 1, _units(data[40:]), data, 3, 5, 1 << 40, 0, 1 << 50),
        (8, 0, data[: len(data) // 20 * 20], data, 0, 0, 3, 0, 9),
    ]


class _Queue(NamedTuple):
    min_offset: int
    end: int


def _answered(kernel: Any, data: bytes) -> Any:
    """A turn that read the same bytes twice, with windows of entries that mostly lie within them, and of any bytes."""
    _end, pulls = reference.scan_pulls(data, 0, count_max=100, frame_bytes_max=1 << 20)
    plans: dict[bytes, Any] = {}
    for number, (_at, _request_id, _kind, key, start, _count, _committed) in enumerate(pulls):
        plan = plans[key] = plans.get(key) or kernel.PullPlan(number)
        first = max(0, min(start, 1 << 62) - number)
        plan.queue = _Queue(0, first + 30)
        units = _units(data[9 + number : 150]) if number % 4 < 3 else data[: len(data) // 20 * 20]
        plan.windows[start // reference.PULL_BLOCK] = kernel.PullWindow(
            first, units, data, log_start=number % 2, lowest=0, is_final=number % 5 == 0, is_cold=number % 2 == 0
        )
    pieces = _PULL_PIECES | {"request_bytes_max": 1 << 20, "count_max": 9, "cold_max": 2, "total_bytes_max": 5000}
    missed: list[Any] = []

    def provide(number: int, pull: Any, cold: int) -> int | None:
        missed.append((number, pull, cold))
        return (None, pull[0], min(pull[0] + 8, len(data)))[len(missed) % 3]

    ends, replies, used, cold = kernel.answer_pulls([(1, data, 0, 100), (2, data, 0, 1)], plans, provide, **pieces)
    notes = [
        (plan.about, plan.times, plan.messages, plan.record_bytes, plan.start, plan.committed)
        for plan in [*used, *plans.values()]
    ]
    return ends, replies, missed, notes, cold


def _units(data: bytes) -> bytes:
    """Queue entries that mostly lie within the input."""
    return b"".join(
        [
            bytes(7) + data[at : at + 1] + bytes(3) + data[at + 1 : at + 2] + bytes(8)
            for at in range(0, len(data) - 2, 9)
        ]
    )


def _later_difference(
    compiled: Any, data: bytes, rows: bytes, texts: bytes, names: list[tuple[bytes, int]]
) -> str | None:
    # Rows that are not of our making: they must be refused or make the same of both, and never reach outside. Texts
    # of theirs may not be UTF-8, where only the compiled kernel goes on, so results are compared for our own alone.
    strange = (data * 2)[: len(data) // reference.SEND_ROW.size * reference.SEND_ROW.size]
    for packed in (rows, strange):
        place = {
            "first": 0,
            "log_offset": 1 << 40,
            "room": 700,
            "stored_at_ms": 5,
            "store_host": HOST,
            "append_crc": True,
        }

        def placed(kernel: Any, packed: bytes = packed, place: dict[str, Any] = place) -> Any:
            targets = _targets(kernel, names)
            placed = kernel.place_sends(packed, texts, [(data, HOST), (data, HOST)], targets, **place)
            held = targets.hold(placed[2], placed[3], 1 << 50)[1]
            targets.take_back(placed[2])
            return *placed, held, targets.count(placed[2]), targets.take_stored()

        found = _outcome(placed, compiled)
        if packed is rows and found != _outcome(placed, reference):
            return "place_sends"
        places = found[1][1] if found[0] == "returned" else data[:20]
        keys = found[1][4] if found[0] == "returned" else data[:24]

        def answered(kernel: Any, packed: bytes = packed, places: bytes = places) -> Any:
            pieces: dict[str, Any] = {"sources": 2, "host": HOST, "json": (b"a",) * 6, "binary": (b"b",) * 7}
            pieces |= {"batch_json": (b"c",) * 5, "batch_binary": (b"d",) * 6}
            return kernel.encode_send_replies(packed, places, texts, _targets(kernel, names), **pieces)

        def chained(kernel: Any, keys: bytes = keys) -> Any:
            table = bytearray(data[:64].ljust(64, b"\0"))
            entries, heads, fresh = kernel.chain_keys(table, keys, at=4, slots=15, number=9, seconds=1)
            kernel.link_heads(table, heads, at=4)
            return entries, heads, fresh, table

        if _outcome(chained, compiled) != _outcome(chained, reference):
            return "chain_keys"
        if packed is rows and _outcome(answered, compiled) != _outcome(answered, reference):
            return "encode_send_replies"
        _outcome(answered, compiled)
    return None


def _targets(kernel: Any, names: list[tuple[bytes, int]]) -> Any:
    targets = kernel.Targets()
    for topic, queue_id in names:
        targets.set_tail(targets.number_of(topic, queue_id), kernel.QueueTail())
    return targets


def _outcome(call: Callable[[Any], Any], kernel: Any) -> tuple[str, Any]:
    try:
        return "returned", call(kernel)
    except (ValueError, OverflowError) as fault:
        kind = OverflowError if isinstance(fault, OverflowError) else ValueError
        FAULTS[kind.__name__] += 1
        return "raised", kind

"""Frames for the kernels: sends as clients make them, sends with one thing unusual about them, and broken bytes."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from kappamq.wire.batch import BatchItem, encode_batch
from kappamq.wire.command import Command, HeaderType
from kappamq.wire.frame import encode_frame
from kappamq.wire.headers import PullRequest, SendRequest, SendRequestV1, encode_fields

TOPICS = {b"Orders": 4, b"T": 1, "日本".encode(): 2, b"Closed": 0}
STAMP = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"

_WORD = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
_VALUE = _WORD | st.sampled_from(("true", "a b  c", " ", "TagA", "0123456789ABCDEF0123456789ABCDEF", "\U0001f388 é"))
_UNUSUAL = st.sampled_from(
    (
        "DELAY\x013\x02",
        "TIMER_DELAY_MS\x0110\x02",
        "TIMER_DELIVER_MS\x01x\x02",
        "TRAN_MSG\x01true\x02",
        "MSG_REGION\x01r\x02",
        "CLUSTER\x01c\x02",
        "POP_CK\x01c\x02",
        "__CRC32#\x010\x02",
        "colour\x01CLUSTER\x02",
        "WAIT\x01false\x02",
        "UNIQ_KEY\x01again\x02",
        "colour\x01UNIQ_KEY\x02",
        "UNIQ_KEY\x01\x02",
        "TAGS\x01again\x02TAGS\x01\x02",
        "KEYS\x01again\x02KEYS\x01more\x02",
    )
)
_ODD_BUT_PLAIN = st.sampled_from(
    ("\x02\x02", "loose\x02", "\x01x\x02", "a\x01\x02", "TAG\x01a\x01b\x02", "TRACE_ON\x01x\x02")
)
_TWISTS = (
    "text",
    "no id",
    "strange id",
    "field",
    "more fields",
    "fewer fields",
    "code",
    "flag",
    "remark",
    "batch",
    "batch",
    "bad batch",
    "topic",
    "queue",
    "empty body",
    "long body",
    "group",
)
"""Each makes a send that may not be plain."""


@st.composite
def property_texts(draw: st.DrawFn, twist: str = "") -> str:
    """Properties as clients send them, in any order; a `twist` spoils them."""
    has_id = twist != "no id" and draw(st.sampled_from((True, True, False)))
    pieces = ["UNIQ_KEY\x017F00000100002A9F\x02"] if has_id else []
    if twist == "strange id":
        pieces = [f"UNIQ_KEY\x01{draw(st.sampled_from(('é', chr(34), '', ' ', 'a/b', chr(127))))}\x02"]
    for name in ("TAGS", "KEYS", "WAIT", "colour"):
        if draw(st.booleans()):
            pieces.append(f"{name}\x01{draw(_VALUE)}\x02")
    if draw(st.booleans()):
        pieces.append(f"{draw(_WORD)}\x01{draw(_VALUE)}\x02")
    if draw(st.sampled_from((False, False, True))):
        pieces.append(draw(_ODD_BUT_PLAIN))
    if twist == "text":
        pieces.append(draw(_UNUSUAL))
    text = "".join(draw(st.permutations(pieces)))
    return text[:-1] if draw(st.booleans()) else text


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """One frame with a send; two of three are plain."""
    twist = draw(st.sampled_from(("",) * (2 * len(_TWISTS)) + _TWISTS))
    kind = draw(st.sampled_from((SendRequest, SendRequestV1)))
    topic = draw(
        st.sampled_from(("日本", "Closed", "New", "")) if twist == "topic" else st.sampled_from(("Orders", "T"))
    )
    request = kind(
        producer_group="生产者" if twist == "group" else "pg",
        topic=topic,
        queue_id=draw(st.sampled_from((4, -1))) if twist == "queue" else draw(st.integers(0, 3)) if topic != "T" else 0,
        flags=draw(st.sampled_from((0, 0, 1, 4, 8, 0x33, -1))),
        born_at_ms=draw(st.sampled_from((1_700_000_000_000, 0, -1, 2**63 - 1, -(2**63)))),
        flag=draw(st.sampled_from((0, 7, -(2**31)))),
        properties=draw(property_texts(twist)),
        retry_count=draw(st.sampled_from((0, 3))),
        unit_mode=draw(st.booleans()),
        retry_count_max=draw(st.sampled_from((None, 16))),
        batch=twist in ("batch", "bad batch"),
        broker=draw(st.sampled_from((None, "broker-a"))),
    )
    fields = encode_fields(request)
    if twist == "field":
        name = draw(st.sampled_from(sorted(fields)))
        fields[name] = draw(
            st.sampled_from(("", "-0", "007", "+1", "9" * 19, "9" * 20, "true", "2147483648", " 1", "é"))
        )
    if twist == "more fields":
        fields[draw(st.sampled_from(("AccessKey", "z", "topic", "b", "i", "properties")))] = "x"
    if twist == "fewer fields":
        fields.pop(draw(st.sampled_from(sorted(fields))))
    body = st.binary(min_size=151, max_size=160) if twist == "long body" else st.binary(min_size=1, max_size=50)
    command = Command(
        code=draw(st.sampled_from((320, 11, 10, 310)))
        if twist == "code"
        else draw(st.sampled_from((320, request.code)))
        if twist in ("batch", "bad batch") and kind is SendRequest
        else request.code,
        request_id=draw(st.sampled_from((0, 1, -5, 2**31 - 1, -(2**31)))),
        fields=fields,
        body=b"" if twist == "empty body" else draw(batches()) if twist == "batch" else draw(body),
        flag=draw(st.sampled_from((1, 3, 4))) if twist == "flag" else draw(st.sampled_from((0, 0, 2))),
        remark="wörd" if twist == "remark" else draw(st.sampled_from((None, "", "word"))),
        language=draw(st.sampled_from(("JAVA", "PYTHON", "GO"))),
        header_type=draw(st.sampled_from((HeaderType.JSON, HeaderType.BINARY))),
    )
    return _written(draw, command)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """The body of a batch: most are plain."""
    items = [
        BatchItem(
            draw(st.binary(min_size=1, max_size=6)) if draw(st.integers(0, 20)) else b"",
            draw(st.sampled_from((b"", b"TAGS\x01a\x02", b"UNIQ_KEY\x017F\x02KEYS\x01a b\x02", b"UNIQ_KEY\x01x")))
            if draw(st.integers(0, 12))
            else draw(st.sampled_from((b"\xff", b"DELAY\x013", b"__CRC32#\x01x", b"TAGS\x01\x02", b"WAIT\x01false"))),
            draw(st.sampled_from((0, 7, -(2**31)))),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    return encode_batch(items)


_PULL_TWISTS = ("field", "more fields", "fewer fields", "code", "flag", "body", "group")


@st.composite
def pulls(draw: st.DrawFn) -> bytes:
    """One frame with a pull; two of three are plain."""
    twist = draw(st.sampled_from(("",) * (2 * len(_PULL_TWISTS)) + _PULL_TWISTS))
    topic = draw(st.sampled_from(("Orders", "Orders", "T", "T", "Closed", "New")))
    request = PullRequest(
        group="读者" if twist == "group" else draw(st.sampled_from(("reader", "reader", "new", "off"))),
        topic=topic,
        queue_id=draw(st.sampled_from((0, 0, 0, 1, 3, 4, -1))),
        start=draw(st.sampled_from((0, 0, 0, 1, 2, 5, -1, 2**63 - 1))),
        count_max=draw(st.sampled_from((32, 32, 1, 2, 0, -5))),
        flags=draw(st.sampled_from((0, 1, 2, 4, 4, 5, 6, 7, 0x17))),
        committed_offset=draw(st.sampled_from((0, 3, -1))),
        suspend_ms=draw(st.sampled_from((0, 1000))),
        subscription=draw(st.sampled_from((None, "*", "*", "*", "", "a", "a || b", "a > 1"))),
        subscription_version=draw(st.sampled_from((0, 7))),
        expression_type=draw(st.sampled_from((None, "TAG", "TAG", "", "SQL92", "other"))),
        bytes_max=draw(st.sampled_from((None, 100))),
        broker=draw(st.sampled_from((None, "broker-a"))),
    )
    fields = encode_fields(request)
    if twist == "field":
        name = draw(st.sampled_from(sorted(fields)))
        fields[name] = draw(st.sampled_from(("", "-0", "007", "9" * 19, "9" * 20, "2147483648", " 1", "é", '"')))
    if twist == "more fields":
        fields[draw(st.sampled_from(("AccessKey", "z", "b", "properties")))] = "x"
    if twist == "fewer fields":
        fields.pop(draw(st.sampled_from(sorted(fields))))
    command = Command(
        code=draw(st.sampled_from((310, 10, 12))) if twist == "code" else draw(st.sampled_from((11, 11, 361))),
        request_id=draw(st.sampled_from((0, 1, -5, 2**31 - 1))),
        fields=fields,
        body=b"body" if twist == "body" else b"",
        flag=draw(st.sampled_from((1, 2, 4))) if twist == "flag" else 0,
        header_type=draw(st.sampled_from((HeaderType.JSON, HeaderType.BINARY))),
    )
    return _written(draw, command)


def _written(draw: st.DrawFn, command: Command) -> bytes:
    if command.header_type is HeaderType.JSON and draw(st.booleans()):
        return _written_otherwise(draw, command)
    return encode_frame(command)


def _written_otherwise(draw: st.DrawFn, command: Command) -> bytes:
    """The same command as another JSON library would write it."""
    value: dict[str, Any] = {
        "code": command.code,
        "language": command.language,
        "version": 317,
        "opaque": command.request_id,
        "flag": command.flag,
        "remark": command.remark or "",
        "extFields": command.fields,
    }
    spaces = draw(st.sampled_from(((",", ":"),) * 3 + ((", ", ": "), ("\t,\r\n", " : "))))
    indent = draw(st.sampled_from((None, None, 2)))
    header = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=spaces, indent=indent)
    header += draw(st.sampled_from(("", "", "\n")))
    if draw(st.booleans()):
        header = header.replace("/", "\\/").replace("UNIQ", "\\u0055NIQ")
    return framed(0, header.encode(), command.body)


def framed(kind: int, header: bytes, body: bytes) -> bytes:
    length = 4 + len(header) + len(body)
    return length.to_bytes(4, "big") + bytes((kind,)) + len(header).to_bytes(3, "big") + header + body


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """What one read may bring: frames, perhaps with a byte changed, perhaps cut short."""
    kind = draw(st.sampled_from((sends(), sends(), pulls(), sends() | pulls())))
    data = bytearray(b"".join(draw(st.lists(kind, max_size=5))))
    if data and not draw(st.integers(0, 3)):
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if data and not draw(st.integers(0, 4)):
        del data[draw(st.integers(0, len(data) - 1)) :]
    return bytes(data)


def with_queues(kernel: Any, names: Sequence[tuple[bytes, int]]) -> Any:
    """A table of these queues; each has messages already."""
    targets = kernel.Targets()
    for topic, queue_id in names:
        tail = kernel.QueueTail()
        tail.next = tail.tail = tail.end = 10 * queue_id
        targets.set_tail(targets.number_of(topic, queue_id), tail)
    return targets

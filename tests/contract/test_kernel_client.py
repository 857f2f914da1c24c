"""Both implementations of what a client sends in bulk do the same."""

from __future__ import annotations

import itertools
import sys
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.kernel import client_reference as reference
from kappamq.wire.batch import BatchItem, encode_batch
from kappamq.wire.command import Command, HeaderType
from kappamq.wire.frame import encode_frame

compiled = pytest.importorskip("kappamq.kernel._client", reason="the compiled kernel is not built")


def outcome(function: Any, *arguments: Any, **named: Any) -> tuple[str, Any]:
    try:
        return "returned", function(*arguments, **named)
    except (ValueError, OverflowError) as fault:
        return type(fault).__name__, str(fault)


def column(values: list[bytes]) -> tuple[bytes, bytes]:
    ends = itertools.accumulate(map(len, values), initial=0)
    return b"".join([end.to_bytes(4, sys.byteorder) for end in ends]), b"".join(values)


@st.composite
def columns_of(draw: st.DrawFn, rows: int) -> tuple[bytes, bytes]:
    """Offsets and data of a column; sometimes its offsets are no offsets."""
    values = draw(st.lists(st.binary(max_size=12) | st.text(max_size=6).map(str.encode), min_size=rows, max_size=rows))
    offsets, data = column(values)
    if not draw(st.integers(0, 5)):
        at = 4 * draw(st.integers(0, rows))
        wrong = draw(st.sampled_from((-1, 2**31 - 1, 3))).to_bytes(4, sys.byteorder, signed=True)
        offsets = offsets[:at] + wrong + offsets[at + 4 :]
    return offsets, data


@settings(deadline=None)
@given(st.data(), st.integers(0, 5), st.integers(-1, 6), st.integers(-1, 6))
def test_sends(data: st.DataObject, rows: int, start: int, count: int) -> None:
    texts, bodies = data.draw(columns_of(rows)), data.draw(columns_of(rows))
    named: dict[str, Any] = {
        "start": start,
        "count": count,
        "templates": data.draw(st.lists(st.just((b"{", b",", b"}")) | st.just((b"", b"12", b"3")), max_size=3)),
        "request_id": data.draw(st.sampled_from((0, 9, 10, 2**31 - 7, 2**31 - 1, -1))),
    }
    wanted = outcome(reference.encode_sends, texts, bodies, **named)
    assert outcome(compiled.encode_sends, texts, bodies, **named) == wanted


@settings(deadline=None)
@given(st.data(), st.integers(0, 5), st.integers(-1, 6), st.integers(-1, 6))
def test_batches(data: st.DataObject, rows: int, start: int, count: int) -> None:
    texts, bodies = data.draw(columns_of(rows)), data.draw(columns_of(rows))
    wanted = outcome(reference.encode_batch_rows, texts, bodies, start=start, count=count)
    assert outcome(compiled.encode_batch_rows, texts, bodies, start=start, count=count) == wanted


@pytest.mark.parametrize("kernel", [reference, compiled])
def test_a_batch_is_the_one_that_messages_make(kernel: Any) -> None:
    items = [BatchItem(b"body", b"TAGS\x01t\x02"), BatchItem(b"", b""), BatchItem(b"x" * 300, b"y" * 0x7FFF)]
    texts, bodies = column([item.properties for item in items]), column([item.body for item in items])
    assert kernel.encode_batch_rows(texts, bodies, start=0, count=3) == encode_batch(items)
    assert kernel.encode_batch_rows(texts, bodies, start=1, count=1) == encode_batch(items[1:2])
    with pytest.raises(ValueError, match="too long"):
        kernel.encode_batch_rows(column([bytes(0x8000)]), column([b"x"]), start=0, count=1)


@given(
    st.binary(max_size=20) | st.integers(100, 400).map(bytes),
    st.sampled_from((0, 1, 9, 99, 10**9, 2**63 - 3, 2**63 - 1, -1)),
    st.integers(-1, 3),
)
def test_ids_of_rows(stem: bytes, first: int, count: int) -> None:
    wanted = outcome(reference.row_ids, stem, first=first, count=count)
    assert outcome(compiled.row_ids, stem, first=first, count=count) == wanted


@pytest.mark.parametrize("kernel", [reference, compiled])
def test_ids_stay_what_they_are(kernel: Any) -> None:
    for stem in (b"", *(b"s" * size for size in (1, 126, 127, 128, 129, 255, 256, 257))):
        digest = blake2b(stem + b"7", digest_size=12).hexdigest().upper()
        assert kernel.row_ids(stem, first=7, count=1) == f"{digest[:20]}00000000{digest[20:]}".encode()


FIELDS = {"msgId": "AB", "queueId": "3", "queueOffset": "17", "MSG_REGION": "r", "TRACE_ON": "false"}


def reply(request_id: int, **changes: Any) -> bytes:
    return encode_frame(Command(**{"code": 0, "request_id": request_id, "fields": FIELDS, "flag": 1, **changes}))


@pytest.mark.parametrize("kernel", [reference, compiled])
def test_plain_replies_are_taken_until_another_one_comes(kernel: Any) -> None:
    first = reply(5)
    second = reply(6, fields={"msgId": "", "queueId": "0", "queueOffset": "9" * 18, "transactionId": "T"})
    data = b"x" + first + second + reply(7, code=14) + reply(8)
    wanted = [
        (5, "AB", 3, 17, None, "r", False, 1 + len(first)),
        (6, "", 0, 10**18 - 1, "T", None, True, 1 + len(first + second)),
    ]
    assert kernel.scan_send_replies(data, 1, frame_bytes_max=1000) == (1 + len(first + second), wanted)
    for size in range(len(first)):
        assert kernel.scan_send_replies(first[:size], 0, frame_bytes_max=1000) == (0, [])
    assert kernel.scan_send_replies(first, 0, frame_bytes_max=len(first) - 1) == (0, [])
    with pytest.raises(ValueError, match="before the buffer"):
        kernel.scan_send_replies(first, -1, frame_bytes_max=1000)


@pytest.mark.parametrize("kernel", [reference, compiled])
@pytest.mark.parametrize(
    "changes",
    [
        {"code": 10},
        {"flag": 0},
        {"flag": 3},
        {"remark": "slow"},
        {"body": b"x"},
        {"header_type": HeaderType.BINARY},
        {"fields": {}},
        {"fields": FIELDS | {"recallHandle": "h"}},
        {"fields": FIELDS | {"msgId": "é"}},
        {"fields": FIELDS | {"msgId": 'a"b'}},
        {"fields": FIELDS | {"queueId": "-1"}},
        {"fields": FIELDS | {"queueOffset": "07"}},
        {"fields": FIELDS | {"queueOffset": "1" * 19}},
    ],
)
def test_other_replies_are_left_to_the_caller(kernel: Any, changes: dict[str, Any]) -> None:
    assert kernel.scan_send_replies(reply(5, **changes), 0, frame_bytes_max=1000) == (0, [])


@given(st.data())
def test_spoiled_replies(data: st.DataObject) -> None:
    frames = bytearray(reply(1) + reply(2**31 - 1, fields={**FIELDS, "transactionId": "T"}))
    at = data.draw(st.integers(0, len(frames)))
    frames[at : at + data.draw(st.integers(0, 9))] = data.draw(
        st.binary(max_size=9) | st.sampled_from((b"null", b'"', b"}", b',"code":0', b"0", b"\x00\x00\x00\x08"))
    )
    wanted = outcome(reference.scan_send_replies, bytes(frames), 0, frame_bytes_max=1000)
    assert outcome(compiled.scan_send_replies, bytes(frames), 0, frame_bytes_max=1000) == wanted

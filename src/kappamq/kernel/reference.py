"""Plain Python: the specification of what a compiled kernel must do byte for byte.

The functions around `scan_sends` are the fast lane of a broker: they take plain sends, of one read or of many, from
their bytes to records, queue entries, keys and replies without an object for each. What passes between them is packed
in rows, in native byte order and without gaps (`SEND_ROW`, `PLACE_ROW`, `QUEUE_ROW`, `KEY_ROW`). Whatever is not plain
they leave to others.

Record layout (all integers big-endian; hosts are 8 bytes for IPv4, 20 for IPv6):

    0 totalSize i32 │ 4 magic i32 │ 8 bodyCRC i32 │ 12 queueId i32 │ 16 flag i32 │ 20 queueOffset i64 │
    28 physicalOffset i64 │ 36 sysFlag i32 │ 40 bornTimestamp i64 │ 48 bornHost │ storeTimestamp i64 │ storeHost │
    reconsumeTimes i32 │ preparedTransactionOffset i64 │ bodyLen i32, body │ topicLen i8 (v2: i16), topic │
    propertiesLen i16, properties

The optional CRC over the whole record is the last property: `__CRC32#` 0x01, ten digits least significant first, 0x02.
"""

import re
from collections.abc import Callable, Mapping
from mmap import mmap
from operator import mul
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from kappamq.kernel.targets_reference import QUEUE_ROW as QUEUE_ROW
from kappamq.kernel.targets_reference import SEND_ROW as SEND_ROW
from kappamq.kernel.targets_reference import TARGETS_MAX as TARGETS_MAX
from kappamq.kernel.targets_reference import QueueTail as QueueTail
from kappamq.kernel.targets_reference import Targets as Targets

INTERFACE = 16
"""Number of this set of functions: a compiled kernel with another number was built from other sources."""

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
CRC_PROPERTY_NAME = b"__CRC32#\x01"
CRC_PROPERTY_BYTES = 20
TOPIC_V1_BYTES_MAX = 127

PLACE_ROW = Struct("=qqi")
"""log offset, queue offset, record size."""
KEY_ROW = Struct("=iq")
"""hash, log offset."""
HEAD_ROW = Struct("=II")
"""slot, number of the newest entry of its chain."""
BINARY_MARK = 1
ONE_WAY_MARK = 2
MORE_MARK = 4
"""The next row belongs to the same batch: both stay in one segment and share a reply."""
BATCH_MARK = 8
BATCH_ID_SHIFT = 16
"""Marks above it: length of the unique id of the batch itself, which lies in the texts before that of its first row."""
PULL_BLOCK = 512
"""Pulls that start in the same so many messages of a queue find them in the same window."""

_HEAD = Struct(">iiiiiqqiq")
_AFTER_BORN_HOST = Struct(">q")
_AFTER_STORE_HOST = Struct(">iqi")
_SHORT = Struct(">h")
_FRAME = Struct(">iI")
_NATIVE_I64 = Struct("=q")

_POWERS_MAX = 256
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_POWERS_MAX, -1, -1)]


def crc31(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 of `data` without its top bit, as RocketMQ stores it."""
    return crc32(data) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: 31-polynomial over UTF-16 units, signed 32 bits."""
    return java_hash_extend(0, text)


def java_hash_extend(prefix_hash: int, text: str) -> int:
    """Hash of `prefix + text`, given the hash of `prefix`."""
    try:
        units: bytes | tuple[int, ...] = text.encode("latin-1")
    except UnicodeEncodeError:
        wide = text.encode("utf-16-be", "surrogatepass")
        units = Struct(f">{len(wide) // 2}H").unpack(wide)
    value = prefix_hash
    for start in range(0, len(units), _POWERS_MAX):
        chunk = units[start : start + _POWERS_MAX]
        size = len(chunk)
        value = (
            value * _POWERS[_POWERS_MAX - size] + sum(map(mul, chunk, _POWERS[_POWERS_MAX - size + 1 :]))
        ) & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def encode_record(
    *,
    body: bytes,
    topic: bytes,
    properties: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    log_offset: int,
    flags: int,
    born_at_ms: int,
    born_host: bytes,
    stored_at_ms: int,
    store_host: bytes,
    retry_count: int,
    prepared_offset: int,
    append_crc: bool,
) -> bytes:
    """Bytes of one record. With `append_crc` the properties end with a CRC over everything before it.

    Raises `OverflowError` for a value that does not fit its field.
    """
    if append_crc and properties and properties[-1] != 2:
        properties += b"\x02"
    body_bytes = len(body)
    topic_bytes = len(topic)
    properties_bytes = len(properties) + (CRC_PROPERTY_BYTES if append_crc else 0)
    is_v1 = topic_bytes <= TOPIC_V1_BYTES_MAX
    total = 75 + len(born_host) + len(store_host) + body_bytes + topic_bytes + properties_bytes + (0 if is_v1 else 1)
    try:
        head = _HEAD.pack(
            total,
            MAGIC_V1 if is_v1 else MAGIC_V2,
            crc31(body),
            queue_id,
            flag,
            queue_offset,
            log_offset,
            flags,
            born_at_ms,
        )
        record = b"".join(
            (
                head,
                born_host,
                _AFTER_BORN_HOST.pack(stored_at_ms),
                store_host,
                _AFTER_STORE_HOST.pack(retry_count, prepared_offset, body_bytes),
                body,
                bytes((topic_bytes,)) if is_v1 else _SHORT.pack(topic_bytes),
                topic,
                _SHORT.pack(properties_bytes),
                properties,
            )
        )
    except struct_error as fault:
        raise OverflowError(f"a value does not fit its field of the record: {fault}") from None
    if not append_crc:
        return record
    return record + CRC_PROPERTY_NAME + f"{crc31(record):010d}"[::-1].encode() + b"\x02"


def split_frames(
    buffer: bytes, frame_bytes_max: int, start: int = 0
) -> tuple[list[tuple[int, int, int, int]], int, str | None]:
    """Find the whole frames from `start` on.

    Returns `(header type, header start, body start, frame end)` for each, the position behind the last one, and what is
    wrong with the bytes that follow, if they can never become a frame.
    """
    if start < 0:
        raise ValueError("the position lies outside of the buffer")
    frames: list[tuple[int, int, int, int]] = []
    at = start
    size = len(buffer)
    while size - at >= 4:
        if size - at < 8:
            length = int.from_bytes(buffer[at : at + 4], "big", signed=True)
            fault = _length_fault(length, frame_bytes_max)
            return frames, at, fault
        length, mark = _FRAME.unpack_from(buffer, at)
        fault = _length_fault(length, frame_bytes_max)
        header_bytes = mark & 0xFFFFFF
        header_type = mark >> 24
        if fault is None and header_bytes > length - 4:
            fault = f"header of {header_bytes} bytes does not fit a frame of {length} bytes"
        if fault is None and header_type > 1:
            fault = f"unknown header type {header_type}"
        if fault is not None:
            return frames, at, fault
        end = at + 4 + length
        if end > size:
            break
        frames.append((header_type, at + 8, at + 8 + header_bytes, end))
        at = end
    return frames, at, None


def _length_fault(length: int, frame_bytes_max: int) -> str | None:
    if length < 4:
        return f"frame length {length} is too small"
    if length + 4 > frame_bytes_max:
        return f"frame length {length} is over the limit of {frame_bytes_max - 4}"
    return None


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def gather_records(
    units: bytes, log: bytes | mmap, *, start: int, lowest: int, bytes_max: int
) -> tuple[bytes, int, int, int] | None:
    """Records that queue entries name, one after the other, as many as fit `bytes_max` but at least one.

    `log` holds the bytes from log offset `start` on. Returns the bytes, the number of records, the log offset of the
    first and of the last. `None` when one of them lies outside of the log or below `lowest`.
    """
    if len(units) % _UNIT.size:
        raise ValueError("queue entries are cut short")
    lowest = max(lowest, start)
    end = start + len(log)
    taken: list[tuple[int, int]] = []
    total = 0
    for log_offset, size, _code in _UNIT.iter_unpack(units):
        total += size
        if total > bytes_max and taken:
            break
        if size <= 0 or log_offset < lowest or log_offset + size > end:
            return None
        taken.append((log_offset, size))
    if not taken or start < 0:
        return None
    data = b"".join([log[log_offset - start : log_offset - start + size] for log_offset, size in taken])
    return data, len(taken), taken[0][0], taken[-1][0]


# ── The fast lane ───────────────────────────────────────────────────────────────────────────────────────────────────

_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
_BLANKS = re.compile(rb"[ \t\r\n]*")
_NAME = re.compile(rb'[ \t\r\n]*"([A-Za-z]+)"[ \t\r\n]*:[ \t\r\n]*')
_STRING = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"')
_ESCAPE = re.compile(rb"\\(?:u(....)|(.))", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_HEADER_NUMBERS = (b"code", b"flag", b"opaque", b"version")
_HEADER_TEXTS = (b"language", b"remark", b"serializeTypeCurrentRPC")
_BINARY_FIXED = Struct(">hBhiii")
_I32 = Struct(">i")
_UNIT = Struct(">qiq")
_ENTRY = Struct(">iqii")

_SEND_SHORT = 310
_SEND_LONG = 10
_SEND_BATCH = 320
_BATCH_ITEMS_MAX = 4096
_BATCH_TOPIC_BYTES_MAX = 127
_ITEM = Struct(">iiiii")
_TOGETHER_BYTES = 137
"""What a record may take beside body, properties and three times its topic: the guess by which batches are placed."""
_REPLY_FLAGS_PLAIN = (0, 2)
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_TRANSACTION_MASK = 0xC

_SHORT_NAMES = tuple(bytes((letter,)) for letter in b"abcdefghijklmn")
_LONG_NAMES = (
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
    b"bname",
)
_PULL_NAMES = (
    b"consumerGroup",
    b"topic",
    b"queueId",
    b"sysFlag",
    b"subscription",
    b"expressionType",
    b"subVersion",
    b"queueOffset",
    b"maxMsgNums",
    b"commitOffset",
    b"suspendTimeoutMillis",
    b"maxMsgBytes",
    b"bname",
)
_PULL_CODES = (11, 361)
_PULL_KEY_FIELDS = 7
"""So many of the names say what is asked for; the others may differ from pull to pull."""
_PULL_I32_FIELDS = (2, 3, 8, 11)
_PULL_I64_FIELDS = (6, 7, 9, 10)
_PULL_REQUIRED_FIELDS = (0, 1, 2, 7, 8)
_PULL_COMMITS = 1
"""Flag of a pull that brings an offset to commit."""
_I32_FIELDS = (3, 4, 5, 7, 9, 11)
_REQUIRED_FIELDS = (0, 1, 4, 6)
_ID_NAME = b"UNIQ_KEY"
IDS_BYTES = 16
_UNUSUAL = (
    b"MSG_REGION",
    b"CLUSTER",
    b"__CRC32#",
    b"POP_CK",
    b"TRAN_MSG",
    b"DELAY\x01",
    b"TIMER_DEL",
    b"WAIT\x01false",
)
"""A text that holds one of these, anywhere, is not plain: the message may have another address or other rules."""


class _Header(NamedTuple):
    code: int
    request_id: int
    flag: int
    fields: dict[bytes, bytes]


class _Send(NamedTuple):
    request_id: int
    marks: int
    topic: bytes
    queue_id: int
    flags: int
    born_at_ms: int
    flag: int
    retry_count: int
    text: bytes


class _Message(NamedTuple):
    body_at: int
    body_bytes: int
    flag: int
    text: bytes
    facts: tuple[int, int, int, int, int]


def scan_sends(
    buffer: bytes,
    at: int,
    rows: bytearray,
    texts: bytearray,
    targets: Targets,
    *,
    source: int,
    topics: Mapping[bytes, int],
    stamp: bytes,
    ids: bytearray,
    count_max: int,
    frame_bytes_max: int,
    body_bytes_max: int,
    text_bytes_max: int,
    batch_bytes_max: int,
) -> tuple[int, int, int, bytes | None]:
    """Take whole frames that hold plain sends from `at` on, until one is not, and add them to a run.

    Plain is: a message with an exact header, to an existing queue of one of `topics` (name → queues), whose properties
    name a unique id once at most and call for nothing but storing; the stored text is theirs and the `stamp`, and the
    next of `ids` where they name none. A batch of such messages is plain, too: each is a row, its text is stored as it
    is, and all take `batch_bytes_max` at most. Of the properties of the batch itself only the unique id counts, for the
    reply. `ids` are 8 bytes that nobody else has and a counter, which moves on: `take_unique_id`.
    `rows`, `texts` and `targets` grow; rows name their `source` and target. A queue that is among the targets is not
    looked up in `topics` again. Returns the position behind the last frame taken, their number, how many of them want
    an answer, and the topic of the next frame if that alone kept it from being taken: `topics` does not say.
    """
    if at < 0 or len(buffer) > 0x7FFFFFFF or len(texts) > 0x7FFFFFFF:
        raise ValueError("the position lies outside of the buffer, or the buffer is too long")
    unknown: bytes | None = None
    count = answers = 0
    while count < count_max and len(buffer) - at >= 8:
        length, mark = _FRAME.unpack_from(buffer, at)
        body_at = at + 8 + (mark & 0xFFFFFF)
        end = at + 4 + length
        if length < 4 or length + 4 > frame_bytes_max or end > len(buffer) or body_at > end or mark >> 24 > 1:
            break
        if not 0 < end - body_at <= body_bytes_max:
            break
        header = buffer[at + 8 : body_at]
        read = _read_json(header) if mark >> 24 == 0 else _read_binary(header)
        send = _send_of(read, marks=BINARY_MARK if mark >> 24 else 0) if read is not None else None
        if send is None:
            break
        batch_id = b""
        if send.marks & BATCH_MARK:
            facts = _facts_of(send.text)
            if facts is None or facts[1] > min(text_bytes_max, 0xFFFF):
                break
            batch_id = send.text[facts[0] : facts[0] + facts[1]]
            messages = _messages_of(buffer, body_at, end, send, batch_bytes_max=batch_bytes_max)
        else:
            messages = _message_of(body_at, end, send, stamp, ids)
        text_bytes = len(batch_id) + sum([len(message.text) for message in messages])
        if (
            not messages
            or max([len(message.text) for message in messages]) > text_bytes_max
            or len(texts) + text_bytes > 0x7FFFFFFF
        ):
            break
        if not targets.has(send.topic, send.queue_id):
            queues = topics.get(send.topic)
            if queues is None:
                unknown = send.topic
                break
            if not 0 <= send.queue_id < queues or len(targets) >= TARGETS_MAX:
                break
        target = targets.number_of(send.topic, send.queue_id)
        texts += batch_id
        for left, message in zip(range(len(messages) - 1, -1, -1), messages):
            id_at, id_bytes, keys_at, keys_bytes, code = message.facts
            start = len(texts)
            texts += message.text
            rows += SEND_ROW.pack(
                target,
                source,
                send.request_id,
                send.marks | len(batch_id) << BATCH_ID_SHIFT | (MORE_MARK if left else 0),
                message.body_at,
                message.body_bytes,
                start,
                len(message.text),
                start + id_at if id_bytes else 0,
                id_bytes,
                start + keys_at if keys_bytes else 0,
                keys_bytes,
                code,
                send.flags & ~_TRANSACTION_MASK,
                message.flag,
                send.retry_count,
                send.born_at_ms,
            )
        if not send.marks & BATCH_MARK and not _has_id(send.text):
            take_unique_id(ids)
        count += 1
        answers += 0 if send.marks & ONE_WAY_MARK else 1
        at = end
    return at, count, answers, unknown


def scan_turn(
    buffers: list[bytes],
    rooms: list[int],
    rows: bytearray,
    texts: bytearray,
    targets: Targets,
    *,
    source: int,
    topics: Mapping[bytes, int],
    stamp: bytes,
    ids: bytearray,
    count_max: int,
    frame_bytes_max: int,
    body_bytes_max: int,
    text_bytes_max: int,
    batch_bytes_max: int,
) -> list[tuple[int, int, int]]:
    """`scan_sends` from the beginning of several buffers, no more than its room from each and `count_max` in all.

    Only a buffer from which something is taken counts as a source. Returns for each where the last frame taken ends,
    their number, and how many of them want an answer.
    """
    if len(buffers) != len(rooms):
        raise ValueError("each buffer needs its room")
    found = []
    for buffer, room in zip(buffers, rooms):
        at, count, answers, _unknown = scan_sends(
            buffer,
            0,
            rows,
            texts,
            targets,
            source=source,
            topics=topics,
            stamp=stamp,
            ids=ids,
            count_max=min(room, count_max),
            frame_bytes_max=frame_bytes_max,
            body_bytes_max=body_bytes_max,
            text_bytes_max=text_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        source += 1 if count else 0
        count_max -= count
        found.append((at, count, answers))
    return found


def take_unique_id(ids: bytearray) -> str:
    """The next unique id for a message that was sent without one."""
    taken = ids.hex().upper()
    ids[8:] = ((int.from_bytes(ids[8:]) + 1) & 0xFFFFFFFFFFFFFFFF).to_bytes(8)
    return taken


def _has_id(text: bytes) -> bool:
    return _ID_NAME in text


def _message_of(body_at: int, end: int, send: _Send, stamp: bytes, ids: bytearray) -> list[_Message]:
    """The message of a send; none when it is not plain."""
    facts = _facts_of(send.text)
    if facts is None:
        return []
    text = send.text + (b"" if send.text[-1:] in (b"", b"\x02") else b"\x02") + stamp
    if not facts[1]:
        if _has_id(send.text):
            return []
        facts = (len(text) + len(_ID_NAME) + 1, 2 * IDS_BYTES, *facts[2:])
        text += _ID_NAME + b"\x01" + ids.hex().upper().encode() + b"\x02"
    return [_Message(body_at, end - body_at, send.flag, text, facts)]


def _messages_of(buffer: bytes, at: int, end: int, send: _Send, *, batch_bytes_max: int) -> list[_Message]:
    """The messages of a batch; none when one of them is not plain."""
    messages: list[_Message] = []
    total = 0
    while at < end and len(messages) < _BATCH_ITEMS_MAX:
        if end - at < _ITEM.size + 2:
            return []
        size, _magic, _crc, flag, body_bytes = _ITEM.unpack_from(buffer, at)
        text_at = at + _ITEM.size + body_bytes + 2
        if not 0 < body_bytes <= end - at - _ITEM.size - 2:
            return []
        text_bytes = _SHORT.unpack_from(buffer, text_at - 2)[0]
        if not 0 <= text_bytes <= end - text_at or text_at + text_bytes - at != size:
            return []
        text = buffer[text_at : text_at + text_bytes]
        facts = _facts_of(text)
        if facts is None:
            return []
        total += _TOGETHER_BYTES + body_bytes + 3 * len(send.topic) + text_bytes
        messages.append(_Message(at + _ITEM.size, body_bytes, flag, text, facts))
        at += size
    return messages if at == end and total <= batch_bytes_max else []


def _read_json(header: bytes) -> _Header | None:
    if header[:1] != b"{":
        return None
    at = 1
    numbers: dict[bytes, int] = {}
    texts: set[bytes] = set()
    fields: dict[bytes, bytes] | None = None
    while True:
        name = _NAME.match(header, at)
        if name is None:
            return None
        at = name.end()
        key = name[1]
        if key in _HEADER_NUMBERS:
            number = _NUMBER.match(header, at)
            if number is None or key in numbers or not -(2**31) <= int(number[0]) < 2**31:
                return None
            numbers[key] = int(number[0])
            at = number.end()
        elif key in _HEADER_TEXTS:
            text = _STRING.match(header, at)
            if text is None or key in texts or not _PLAIN.fullmatch(text[1]):
                return None
            texts.add(key)
            at = text.end()
        elif key == b"extFields" and fields is None and header[at : at + 1] == b"{":
            found = _json_fields(header, at + 1)
            if found is None:
                return None
            fields, at = found
        else:
            return None
        at = _behind_blanks(header, at)
        if header[at : at + 1] == b"}":
            break
        if header[at : at + 1] != b",":
            return None
        at += 1
    if _behind_blanks(header, at + 1) != len(header) or fields is None:
        return None
    return _Header(numbers.get(b"code", 0), numbers.get(b"opaque", 0), numbers.get(b"flag", 0), fields)


def _behind_blanks(header: bytes, at: int) -> int:
    found = _BLANKS.match(header, at)
    return found.end() if found is not None else at


def _json_fields(header: bytes, at: int) -> tuple[dict[bytes, bytes], int] | None:
    """Fields and the position behind them; only the properties may hold escapes or more than plain characters."""
    fields: dict[bytes, bytes] = {}
    while True:
        name = _NAME.match(header, at)
        if name is None or name[1] in fields:
            return None
        value = _STRING.match(header, name.end())
        if value is None:
            return None
        text = value[1]
        if name[1] in (b"i", b"properties"):
            unescaped = _unescape(text)
            if unescaped is None:
                return None
            text = unescaped
        elif not _PLAIN.fullmatch(text):
            return None
        fields[name[1]] = text
        at = _behind_blanks(header, value.end())
        if header[at : at + 1] == b"}":
            return fields, at + 1
        if header[at : at + 1] != b",":
            return None
        at += 1


def _unescape(text: bytes) -> bytes | None:
    """Bytes of a JSON string; `None` where it needs surrogates."""

    def plain(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return _ESCAPED.get(match[2], match[2])
        return chr(int(match[1], 16)).encode("utf-8", "surrogatepass")

    try:
        found = _ESCAPE.sub(plain, text)
        found.decode()
    except UnicodeDecodeError:
        return None
    return found


def _read_binary(header: bytes) -> _Header | None:
    if len(header) < _BINARY_FIXED.size + 4:
        return None
    code, _language, _version, request_id, flag, remark_bytes = _BINARY_FIXED.unpack_from(header, 0)
    at = _BINARY_FIXED.size
    if not 0 <= remark_bytes <= len(header) - at - 4 or not _PLAIN.fullmatch(header[at : at + remark_bytes]):
        return None
    at += remark_bytes
    if _I32.unpack_from(header, at)[0] != len(header) - at - 4:
        return None
    at += 4
    fields: dict[bytes, bytes] = {}
    while at < len(header):
        if len(header) - at < 2:
            return None
        name_bytes = _SHORT.unpack_from(header, at)[0]
        at += 2
        if not 0 < name_bytes <= len(header) - at - 4:
            return None
        name = header[at : at + name_bytes]
        at += name_bytes
        value_bytes = _I32.unpack_from(header, at)[0]
        at += 4
        if not 0 < value_bytes <= len(header) - at or name in fields:
            return None
        value = header[at : at + value_bytes]
        at += value_bytes
        if name in (b"i", b"properties"):
            try:
                value.decode()
            except UnicodeDecodeError:
                return None
        elif not _PLAIN.fullmatch(value):
            return None
        fields[name] = value
    return _Header(code, request_id, flag, fields)


def _send_of(header: _Header, *, marks: int) -> _Send | None:
    code, request_id, flag, fields = header
    if code not in (_SEND_SHORT, _SEND_LONG, _SEND_BATCH) or flag not in _REPLY_FLAGS_PLAIN:
        return None
    names = _LONG_NAMES if code == _SEND_LONG else _SHORT_NAMES
    if not fields.keys() <= set(names):
        return None
    values = [fields.get(name) for name in names]
    if any(values[field] is None for field in _REQUIRED_FIELDS):
        return None
    numbers: dict[int, int] = {}
    for field in (*_I32_FIELDS, 6):
        value = values[field]
        if value is not None:
            limit = 2**63 if field == 6 else 2**31
            if not _NUMBER.fullmatch(value) or not -limit <= int(value) < limit:
                return None
            numbers[field] = int(value)
    text = values[8] or b""
    if values[10] not in (None, b"true", b"false") or values[12] not in (None, b"true", b"false"):
        return None
    if values[12] == b"true":
        marks |= BATCH_MARK
        topic_bytes = len(values[1] or b"")
        if topic_bytes > _BATCH_TOPIC_BYTES_MAX or numbers.get(5, 0) & _TRANSACTION_MASK or _is_unusual(text):
            return None
    elif code == _SEND_BATCH:
        return None
    return _Send(
        request_id,
        marks | (ONE_WAY_MARK if flag else 0),
        values[1] or b"",
        numbers[4],
        numbers.get(5, 0),
        numbers[6],
        numbers.get(7, 0),
        numbers.get(9, 0),
        text,
    )


def _is_unusual(text: bytes) -> bool:
    return any(mark in text for mark in _UNUSUAL)


def _facts_of(text: bytes) -> tuple[int, int, int, int, int] | None:
    """Position and length of the unique id and of the keys, and the tags code; `None` for a text that is not plain."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    if _is_unusual(text):
        return None
    found: dict[bytes, tuple[int, int]] = {}
    at = 0
    for piece in text.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if separator and name in (b"UNIQ_KEY", b"KEYS", b"TAGS"):
            if not value or name in found:
                return None
            found[name] = (at + len(name) + 1, len(value))
        at += len(piece) + 1
    id_at, id_bytes = found.get(b"UNIQ_KEY", (0, 0))
    if not _PLAIN.fullmatch(text[id_at : id_at + id_bytes]):
        return None
    tags_at, tags_bytes = found.get(b"TAGS", (0, 0))
    return id_at, id_bytes, *found.get(b"KEYS", (0, 0)), java_hash(text[tags_at : tags_at + tags_bytes].decode())


def place_sends(
    rows: bytes | bytearray,
    texts: bytes | bytearray,
    sources: list[tuple[bytes, bytes]],
    targets: Targets,
    *,
    first: int,
    log_offset: int,
    room: int,
    stored_at_ms: int,
    store_host: bytes,
    append_crc: bool,
    prepared: bytes = b"",
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Records of the rows from number `first` on, as many as fit `room` bytes at `log_offset`.

    `sources` are the buffer that was scanned and the host it came from. Their queues count on: `next` of each tail.
    Returns the bytes for the log, the place of each record, a row for each queue (`QUEUE_ROW`), the entries of all
    queues, and all keys for the index. `prepared` has the log offset of the record that each stands for, as native i64;
    empty: there is none.
    """
    if prepared and len(prepared) != len(rows) // SEND_ROW.size * 8:
        raise ValueError("there must be a prepared offset for each row")
    data = bytearray()
    places: list[bytes] = []
    queues: dict[int, _Placed] = {}
    keys: list[bytes] = []
    unpacked = list(SEND_ROW.iter_unpack(rows[first * SEND_ROW.size :]))
    is_within_batch = False
    for number, row in enumerate(unpacked):
        target, source, _request_id, marks, body_at, body_bytes, text_at, text_bytes, id_at, id_bytes = row[:10]
        keys_at, keys_bytes, code, flags, flag, retry_count, born_at_ms = row[10:]
        if target >= len(targets) or source >= len(sources):
            raise ValueError("a row points outside of what was scanned")
        buffer, born_host = sources[source]
        if body_at + body_bytes > len(buffer) or max(
            text_at + text_bytes, id_at + id_bytes, keys_at + keys_bytes
        ) > len(texts):
            raise ValueError("a row points outside of what was scanned")
        topic, queue_id = targets.name_of(target)
        placed = queues.get(target) or _Placed(targets.tail_of(target).next)
        queue_offset = placed.start + len(placed.units)
        v6_flags = (_BORN_V6 if len(born_host) == 20 else 0) | (_STORE_V6 if len(store_host) == 20 else 0)
        record = encode_record(
            body=buffer[body_at : body_at + body_bytes],
            topic=topic,
            properties=bytes(texts[text_at : text_at + text_bytes]),
            queue_id=queue_id,
            flag=flag,
            queue_offset=queue_offset,
            log_offset=log_offset + len(data),
            flags=flags & ~(_BORN_V6 | _STORE_V6) | v6_flags,
            born_at_ms=born_at_ms,
            born_host=born_host,
            stored_at_ms=stored_at_ms,
            store_host=store_host,
            retry_count=retry_count,
            prepared_offset=_NATIVE_I64.unpack_from(prepared, (first + number) * 8)[0] if prepared else 0,
            append_crc=append_crc,
        )
        needed = len(record)
        if marks & MORE_MARK and not is_within_batch:
            needed = _together_bytes(unpacked[number:], len(topic))
        if len(data) + needed > room:
            break
        is_within_batch = bool(marks & MORE_MARK)
        at = log_offset + len(data)
        data += record
        places.append(PLACE_ROW.pack(at, queue_offset, len(record)))
        queues[target] = placed
        placed.units.append(_UNIT.pack(at, len(record), code))
        placed.record_bytes += len(record)
        placed.sends += 0 if marks & MORE_MARK else 1
        topic_hash = java_hash(topic.decode() + "#")
        for key in (texts[id_at : id_at + id_bytes], *texts[keys_at : keys_at + keys_bytes].split(b" ")):
            if key:
                hashed = abs(java_hash_extend(topic_hash, key.decode()))
                keys.append(KEY_ROW.pack(hashed if hashed < 1 << 31 else 0, at))
    for target, placed in queues.items():
        targets.tail_of(target).next = placed.start + len(placed.units)
    packed = [
        QUEUE_ROW.pack(target, len(placed.units), placed.sends, placed.start, placed.record_bytes)
        for target, placed in queues.items()
    ]
    units = b"".join([unit for placed in queues.values() for unit in placed.units])
    return bytes(data), b"".join(places), b"".join(packed), units, b"".join(keys)


class _Placed:
    """What one queue gets."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.units: list[bytes] = []
        self.record_bytes = 0
        self.sends = 0


def _together_bytes(rows: list[tuple[int, ...]], topic_bytes: int) -> int:
    """What a batch at the start of some rows may take."""
    total = 0
    for row in rows:
        total += _TOGETHER_BYTES + row[5] + 3 * topic_bytes + row[7]
        if not row[3] & MORE_MARK:
            break
    return total


def chain_keys(
    table: bytes | bytearray | mmap, keys: bytes, *, at: int, slots: int, number: int, seconds: int
) -> tuple[bytes, bytes, int]:
    """Index entries of packed keys, the first with this number; their slots lie from `at` on in `table`.

    Returns the bytes of the entries, the new heads of the chains (`HEAD_ROW`), and how many slots were not in use.
    """
    if slots < 1 or at < 0 or at + slots * 4 > len(table) or len(keys) % KEY_ROW.size:
        raise ValueError("the slots do not fit the table, or the keys are cut short")
    if number < 1 or number + len(keys) // KEY_ROW.size >= 2**31:
        raise ValueError("the numbers of the entries do not fit")
    heads: dict[int, int] = {}
    entries: list[bytes] = []
    fresh = 0
    for hashed, log_offset in KEY_ROW.iter_unpack(keys):
        if hashed < 0:
            raise ValueError("a hash is negative")
        slot = hashed % slots
        older = heads.get(slot)
        if older is None:
            (older,) = _I32.unpack_from(table, at + slot * 4)
            if older <= 0 or older >= number:
                older = 0
                fresh += 1
        entries.append(_ENTRY.pack(hashed, log_offset, seconds, older))
        heads[slot] = number
        number += 1
    return b"".join(entries), b"".join([HEAD_ROW.pack(slot, head) for slot, head in heads.items()]), fresh


def link_heads(table: bytearray | mmap, heads: bytes, *, at: int) -> None:
    """Write the heads that `chain_keys` gave into their slots."""
    for slot, head in HEAD_ROW.iter_unpack(heads):
        if at + slot * 4 + 4 > len(table) or at < 0:
            raise ValueError("a slot lies outside of the table")
        table[at + slot * 4 : at + slot * 4 + 4] = head.to_bytes(4, "big")


def scan_pulls(
    buffer: bytes, at: int, *, count_max: int, frame_bytes_max: int
) -> tuple[int, list[tuple[int, int, int, bytes, int, int, int]]]:
    """Take whole frames that hold plain pulls from `at` on, until one is not.

    Plain is: an exact header that wants an answer. Returns the position behind the last frame taken, and of each the
    position, request id, header type, a key, the queue offset to start at, the number of messages and the offset to
    commit (below 0: none). Pulls with the same key are the same in everything else but in how long they would wait.
    """
    if at < 0:
        raise ValueError("the position lies outside of the buffer")
    pulls: list[tuple[int, int, int, bytes, int, int, int]] = []
    while len(pulls) < count_max:
        found = _pull_at(buffer, at, frame_bytes_max=frame_bytes_max)
        if found is None:
            break
        pull, at = found
        pulls.append(pull)
    return at, pulls


def _pull_at(
    buffer: bytes, at: int, *, frame_bytes_max: int
) -> tuple[tuple[int, int, int, bytes, int, int, int], int] | None:
    """The plain pull that begins there, and where it ends."""
    if len(buffer) - at < 8:
        return None
    length, mark = _FRAME.unpack_from(buffer, at)
    end = at + 4 + length
    if length + 4 > frame_bytes_max or end > len(buffer) or (mark & 0xFFFFFF) != length - 4 or mark >> 24 > 1:
        return None
    header = _read_json(buffer[at + 8 : end]) if mark >> 24 == 0 else _read_binary(buffer[at + 8 : end])
    if header is None or header.code not in _PULL_CODES or header.flag or not header.fields.keys() <= {*_PULL_NAMES}:
        return None
    values = [header.fields.get(name) for name in _PULL_NAMES]
    numbers = [0] * len(values)
    for limit, fields in ((2**31, _PULL_I32_FIELDS), (2**63, _PULL_I64_FIELDS)):
        for field in fields:
            text = values[field]
            if text is not None and (not _NUMBER.fullmatch(text) or not -limit <= int(text) < limit):
                return None
            numbers[field] = int(text or b"0")
    if any(values[field] is None for field in _PULL_REQUIRED_FIELDS):
        return None
    key = b"".join([b"\0" if value is None else b"\1" + value for value in values[:_PULL_KEY_FIELDS]])
    committed = numbers[9] if numbers[3] & _PULL_COMMITS else -1
    return (at, header.request_id, mark >> 24, key, numbers[7], numbers[8], committed), end


class PulledQueue(Protocol):
    """What answering pulls has to know of a queue, each time anew."""

    min_offset: int
    end: int


class PullWindow:
    """Entries of a queue, from one on, whose records can be handed out at once: they lie in one part of the log."""

    __slots__ = ("first", "is_cold", "is_final", "log", "log_start", "lowest", "stop", "units")

    def __init__(
        self,
        first: int,
        units: bytes,
        log: bytes | mmap,
        *,
        log_start: int,
        lowest: int,
        is_final: bool = False,
        is_cold: bool = False,
    ) -> None:
        """`log` holds the bytes from log offset `log_start` on; records below `lowest` are not for everybody.

        A pull that starts with the first entry of a window that is final is content with what there is. Pulls of a
        window that is cold are counted.
        """
        if len(units) % _UNIT.size or not 0 <= first <= 1 << 62:
            raise ValueError("queue entries are cut short, or do not begin at an offset")
        self.first = first
        self.stop = first + len(units) // _UNIT.size
        self.units = units
        self.log = log
        self.log_start = log_start
        self.lowest = lowest
        self.is_final = is_final
        self.is_cold = is_cold


class PullPlan:
    """Where some kinds of pulls find their messages, and what was handed out lately, until `clear`."""

    __slots__ = ("about", "committed", "messages", "queue", "record_bytes", "start", "times", "windows")

    def __init__(self, about: object) -> None:
        """`about` is whatever the caller wants to know of it."""
        self.about = about
        self.queue: PulledQueue | None = None
        self.windows: dict[int, PullWindow] = {}
        """By the first offset of a pull, divided by PULL_BLOCK."""
        self.clear()

    def clear(self) -> None:
        self.times = self.messages = self.record_bytes = self.start = 0
        self.committed = -1
        """What the last pull that brought an offset to commit brought; `start` is where the last one started."""


_Owner = TypeVar("_Owner")


def answer_pulls(
    reads: list[tuple[_Owner, bytes, int, int]],
    plans: dict[bytes, PullPlan | None],
    provide: Callable[[int, tuple[int, int, int, bytes, int, int, int], int], int | None],
    *,
    count_max: int,
    cold_max: int,
    bytes_max: int,
    request_bytes_max: int,
    frame_bytes_max: int,
    total_bytes_max: int,
    json: tuple[bytes, ...],
    binary: tuple[bytes, ...],
) -> tuple[
    list[int],
    list[tuple[_Owner, bytes, int]],
    list[PullPlan],
    int,
]:
    """Answer plain pulls (see `scan_pulls`) of many reads with what their plans say, until one cannot be.

    A read is what it belongs to, a buffer, a position, and how many to take from there at most. Returns where each
    ends; (owner, frames, 0) for each that has answers, as `reply_all` wants them; the plans in use; and how many of the
    answers were cold. Limits are as with `gather_pulls`.

    When something is missing, `provide` is called, once for a pull, with the number of the read, that pull, and how
    many cold ones were answered so far. It returns the position of the pull, which is tried again then, or of what
    comes behind it, or `None` for the end of this read. Missing is a plan (or its queue), a window of it that has all
    that is wanted, or the permission to answer one more from a cold window: what was provided is permitted, and not
    counted here. A plan that is `None` is for others.
    """
    ends: list[int] = []
    replies: list[tuple[_Owner, bytes, int]] = []
    used: list[PullPlan] = []
    cold = total = 0
    for number, (owner, buffer, at, limit) in enumerate(reads):
        if at < 0:
            raise ValueError("the position lies outside of the buffer")
        frames: list[bytes] = []
        provided_at = -1
        while limit > 0 and total <= total_bytes_max:
            found = _pull_at(buffer, at, frame_bytes_max=request_bytes_max)
            if found is None:
                break
            pull, end = found
            _at, request_id, kind, key, start, count, committed = pull
            plan = plans.get(key)
            if plan is None and key in plans:
                break
            window = None
            if plan is not None and plan.queue is not None:
                min_offset, max_offset = plan.queue.min_offset, plan.queue.end
                if not max(min_offset, 0) <= start < max_offset:
                    break
                wanted = min(max(count, 1), count_max, max_offset - start)
                window = plan.windows.get(start // PULL_BLOCK)
                if window is not None and (
                    not window.first <= start < window.stop
                    or (start + wanted > window.stop and not (window.is_final and start == window.first))
                    or (window.is_cold and cold >= cold_max and provided_at != at)
                ):
                    window = None
            if plan is None or window is None:
                after = provide(number, pull, cold) if provided_at != at else None
                if after is None:
                    break
                if after == at:
                    provided_at = at
                elif not at < after <= len(buffer):
                    raise ValueError("the position lies outside of the buffer")
                else:
                    at = after
                    limit -= 1
                continue
            first = (start - window.first) * _UNIT.size
            units = window.units[first : first + wanted * _UNIT.size]
            job = (request_id, kind, units, window.log, window.log_start, window.lowest, start, min_offset, max_offset)
            answered, taken = gather_pulls(
                [job],
                bytes_max=bytes_max,
                frame_bytes_max=frame_bytes_max,
                total_bytes_max=total_bytes_max,
                json=json,
                binary=binary,
            )
            if not answered:
                break
            frames += answered
            total += len(answered[0])
            limit -= 1
            if window.is_cold and provided_at == at:
                cold_max -= 1
            elif window.is_cold:
                cold += 1
            if not plan.times:
                used.append(plan)
            plan.times += 1
            plan.messages += taken[0][0]
            plan.record_bytes += taken[0][1]
            plan.start = start
            if committed >= 0:
                plan.committed = committed
            at = end
        ends.append(at)
        if frames:
            replies.append((owner, b"".join(frames), 0))
    return ends, replies, used, cold


def gather_pulls(
    jobs: list[tuple[int, int, bytes, bytes | mmap, int, int, int, int, int]],
    *,
    bytes_max: int,
    frame_bytes_max: int,
    total_bytes_max: int,
    json: tuple[bytes, ...],
    binary: tuple[bytes, ...],
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Frames that answer pulls with the records that queue entries name, copied once.

    A job is a request id, a header type, entries, the log with its start and the lowest offset (see `gather_records`),
    the queue offset of the first entry, and lowest and highest offset of the queue. Returns the frames, and for each
    the number of records and of their bytes: of fewer jobs than given when one cannot be answered like this, when its
    frame would be too long, or when the frames have more than `total_bytes_max` before it. The pieces are what stands
    around next, lowest and highest offset (and request id), as with `encode_send_replies`.
    """
    frames: list[bytes] = []
    taken: list[tuple[int, int]] = []
    total = 0
    pieces_bytes = sum(map(len, json)) + sum(map(len, binary))
    for request_id, kind, units, log, log_start, lowest, start, min_offset, max_offset in jobs:
        if total > total_bytes_max:
            break
        found = gather_records(units, log, start=log_start, lowest=lowest, bytes_max=bytes_max)
        if found is None or len(found[0]) + pieces_bytes + 128 > frame_bytes_max:
            break
        body, count = found[:2]
        values = [str(number).encode() for number in (start + count, min_offset, max_offset)]
        if kind:
            pairs = zip(values, binary[3:])
            fields = binary[2] + b"".join([_I32.pack(len(value)) + value + after for value, after in pairs])
            header = binary[0] + _I32.pack(request_id) + binary[1] + _I32.pack(len(fields)) + fields
        else:
            values.append(str(request_id).encode())
            header = json[0] + b"".join([value + after for value, after in zip(values, json[1:])])
        head = _FRAME.pack(4 + len(header) + len(body), (1 if kind else 0) << 24 | len(header))
        frames.append(head + header + body)
        total += len(frames[-1])
        taken.append((count, len(body)))
    return frames, taken


def encode_send_replies(
    rows: bytes | bytearray,
    places: bytes,
    texts: bytes | bytearray,
    targets: Targets,
    *,
    sources: int,
    host: bytes,
    json: tuple[bytes, ...],
    binary: tuple[bytes, ...],
    batch_json: tuple[bytes, ...],
    batch_binary: tuple[bytes, ...],
) -> list[bytes]:
    """Frames that answer the rows that have a place, for each of that many sources; one-way sends get none.

    `json` is what stands around offset id, queue number, queue offset, unique id and request id; `binary` what stands
    around request id, length of the fields, offset id, queue number, queue offset and unique id (these four with a
    length in front). Those of a batch have the offset ids of all its messages, and the unique id of the batch;
    `batch_json` and `batch_binary` are for one without. `host` begins each offset id. The rows must be in the order of
    their sources.
    """
    frames: list[list[bytes]] = [[] for _ in range(sources)]
    batch: list[bytes] = []
    batch_offset = 0
    batch_id = b""
    last = 0
    for (log_offset, queue_offset, _size), row in zip(PLACE_ROW.iter_unpack(places), SEND_ROW.iter_unpack(rows)):
        target, source, request_id, marks, text_at, id_at, id_bytes = *row[:4], row[6], row[8], row[9]
        if target >= len(targets) or id_at + id_bytes > len(texts) or not last <= source < sources:
            raise ValueError("a row points outside of what was scanned, or the rows are in disorder")
        last = source
        queue_text = str(targets.name_of(target)[1]).encode()
        offset_id = (host + log_offset.to_bytes(8, "big", signed=True)).hex().upper().encode()
        if marks & BATCH_MARK:
            if not batch:
                batch_offset = queue_offset
                batch_id_bytes = marks >> BATCH_ID_SHIFT
                if not batch_id_bytes <= text_at <= len(texts):
                    raise ValueError("a row points outside of what was scanned, or the rows are in disorder")
                batch_id = bytes(texts[text_at - batch_id_bytes : text_at])
            batch.append(offset_id)
            if marks & MORE_MARK:
                continue
            values = [b",".join(batch), queue_text, str(batch_offset).encode()]
            values += [batch_id] if batch_id else []
        else:
            unique_id = bytes(texts[id_at : id_at + id_bytes])
            values = [offset_id, queue_text, str(queue_offset).encode(), unique_id]
        batch = []
        if marks & ONE_WAY_MARK:
            continue
        if marks & BINARY_MARK:
            pieces = binary if len(values) == 4 else batch_binary
            pairs = zip(values, pieces[3:])
            fields = pieces[2] + b"".join([_I32.pack(len(value)) + value + after for value, after in pairs])
            header = pieces[0] + _I32.pack(request_id) + pieces[1] + _I32.pack(len(fields)) + fields
        else:
            pieces = json if len(values) == 4 else batch_json
            values.append(str(request_id).encode())
            header = pieces[0] + b"".join([value + after for value, after in zip(values, pieces[1:])])
        kind = 1 if marks & BINARY_MARK else 0
        frames[source].append(_FRAME.pack(len(header) + 4, kind << 24 | len(header)) + header)
    return [b"".join(mine) for mine in frames]

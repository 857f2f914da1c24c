"""Message traces: what happened to a message, as records in messages of the trace topic. Values only, no I/O.

body of a trace message:   record 0x02 record 0x02 …          field 0x01 field 0x01 … in each record

Pub             time, region, group, topic, id, tags, keys, store host, body bytes, cost, kind, offset id, success
SubBefore       time, region, group, request id, id, retries, keys
SubAfter        request id, id, cost, success, keys, outcome, time, group
EndTransaction  time, region, group, topic, id, tags, keys, store host, kind, transaction id, state, from check

The format is RocketMQ's, so its tools show our traces and we show its. Missing tags and keys are the text `null`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from kappamq.client.core.preparing import Prepared
from kappamq.client.core.receipts import SendReceipt, split_receipt
from kappamq.model.message import KEY_SEPARATOR, StoredMessage
from kappamq.model.properties import Name, decode_properties
from kappamq.wire.batch import decode_batch

RECORDS_MAX: Final = 2048
"""Records that wait to be sent; more are dropped and counted."""
MESSAGE_CHARACTERS_MAX: Final = 128_000
KEYS_CHARACTERS_MAX: Final = 16_000
"""Of one trace message: the properties of a message have room for twice as much."""

REGION: Final = "DefaultRegion"
"""Of a broker that does not say its own."""

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_NOTHING: Final = "null"


class MessageKind(IntEnum):
    """What kind of message was sent."""

    NORMAL = 0
    HALF = 1
    DECIDED = 2
    DELAYED = 3
    ORDERED = 4


class Outcome(IntEnum):
    """How a handler ended."""

    SUCCESS = 0
    TIMED_OUT = 1
    RAISED = 2
    RETURNED_NOTHING = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A message was stored."""

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: MessageKind
    offset_id: str | None
    is_success: bool
    client_host: str | None = None
    """Only in traces of old clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A handler was given a message."""

    at_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_count: int
    keys: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """A handler has ended. Some clients tell neither time nor group: `request_id` joins it with `Delivered`."""

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str | None
    outcome: Outcome
    at_ms: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A transaction was decided; `state` in RocketMQ's words."""

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    kind: MessageKind
    transaction_id: str
    state: str
    is_from_check: bool


Record: TypeAlias = Published | Delivered | Handled | Decided


# ── Text form ───────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_record(record: Record) -> str:
    """Text of one record, with the separator after it."""
    return _FIELD.join(_text(value) for value in _fields(record)) + _RECORD


def _fields(record: Record) -> Sequence[object]:
    head: tuple[object, ...]
    match record:
        case Published() as it:
            head = ("Pub", it.at_ms, it.region, it.group, it.topic, it.message_id, it.tags, it.keys, it.store_host)
            return (*head, it.body_bytes, it.cost_ms, it.kind, it.offset_id, it.is_success)
        case Delivered() as it:
            head = ("SubBefore", it.at_ms, it.region, it.group, it.request_id, it.message_id)
            return (*head, it.retry_count, it.keys)
        case Handled() as it:
            head = ("SubAfter", it.request_id, it.message_id, it.cost_ms, it.is_success, it.keys, it.outcome)
            return head if it.at_ms is None or it.group is None else (*head, it.at_ms, it.group)
        case Decided() as it:
            head = ("EndTransaction", it.at_ms, it.region, it.group, it.topic, it.message_id, it.tags, it.keys)
            return (*head, it.store_host, it.kind, it.transaction_id, it.state, it.is_from_check)


def _text(value: object) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    return str(value).replace(_FIELD, " ").replace(_RECORD, " ")


def decode_records(text: str) -> list[Record]:
    """Records of a trace message. Kinds that we do not know, and what does not parse, are left out."""
    records: list[Record] = []
    for piece in text.split(_RECORD):
        try:
            record = _decode(piece.split(_FIELD))
        except (ValueError, IndexError):  # Anybody may write to the trace topic.
            continue
        if record is not None:
            records.append(record)
    return records


def _decode(line: list[str]) -> Record | None:
    match line[0]:
        case "Pub":
            # RocketMQ: 13 fields without the offset id (old), 14 with it, more with the client's host (old).
            has_offset_id = len(line) > 13
            return Published(
                at_ms=int(line[1]),
                region=line[2],
                group=line[3],
                topic=line[4],
                message_id=line[5],
                tags=_given(line[6]),
                keys=_given(line[7]),
                store_host=line[8],
                body_bytes=int(line[9]),
                cost_ms=int(line[10]),
                kind=MessageKind(int(line[11])),
                offset_id=_given(line[12]) if has_offset_id else None,
                is_success=line[13 if has_offset_id else 12] == "true",
                client_host=line[14] if len(line) > 14 else None,
            )
        case "SubBefore":
            return Delivered(
                at_ms=int(line[1]),
                region=line[2],
                group=line[3],
                request_id=line[4],
                message_id=line[5],
                retry_count=int(line[6]),
                keys=_given(line[7]) if len(line) > 7 else None,
            )
        case "SubAfter":
            is_success = line[4] == "true"
            has_outcome = len(line) > 6
            return Handled(
                request_id=line[1],
                message_id=line[2],
                cost_ms=int(line[3]),
                is_success=is_success,
                keys=_given(line[5]) if len(line) > 5 else None,
                outcome=Outcome(int(line[6])) if has_outcome else Outcome.SUCCESS if is_success else Outcome.FAILED,
                at_ms=int(line[7]) if len(line) > 8 else None,
                group=line[8] if len(line) > 8 else None,
            )
        case "EndTransaction":
            return Decided(
                at_ms=int(line[1]),
                region=line[2],
                group=line[3],
                topic=line[4],
                message_id=line[5],
                tags=_given(line[6]),
                keys=_given(line[7]),
                store_host=line[8],
                kind=MessageKind(int(line[9])),
                transaction_id=line[10],
                state=line[11],
                is_from_check=line[12] == "true",
            )
    return None


def _given(text: str) -> str | None:
    return text if text and text != _NOTHING else None


# ── What is traced ──────────────────────────────────────────────────────────────────────────────────────────────────


def published(
    prepared: Prepared, receipt: SendReceipt, *, group: str, store_host: str, started_at_ms: int, cost_ms: int
) -> list[Published]:
    """Records of a send, one for each message of a batch; none where the broker does not want traces."""
    if not receipt.is_traced:
        return []
    contents = [(decode_properties(prepared.properties), len(prepared.body))]
    receipts = [receipt]
    if prepared.is_batch:
        contents = [
            (decode_properties(item.properties.decode()), len(item.body)) for item in decode_batch(prepared.body)
        ]
        receipts = split_receipt(receipt)
    return [
        Published(
            at_ms=started_at_ms,
            region=receipt.region or REGION,
            group=group,
            topic=prepared.topic,
            message_id=one.message_id,
            tags=properties.get(Name.TAGS),
            keys=properties.get(Name.KEYS),
            store_host=store_host,
            body_bytes=body_bytes,
            cost_ms=cost_ms,
            kind=_kind(properties),
            offset_id=one.offset_id,
            is_success=one.is_ok,
        )
        for one, (properties, body_bytes) in zip(receipts, contents, strict=True)
    ]


_DELAYING: Final = frozenset({Name.DELAY, Name.TIMER_DELAY_SECONDS, Name.TIMER_DELAY_MS, Name.TIMER_DELIVER_MS})


def _kind(properties: dict[str, str]) -> MessageKind:
    if properties.get(Name.TRANSACTION) == "true":
        return MessageKind.HALF
    return MessageKind.NORMAL if _DELAYING.isdisjoint(properties) else MessageKind.DELAYED


def delivered(
    messages: Iterable[StoredMessage], *, group: str, request_id: str, at_ms: int
) -> list[tuple[str, Delivered]]:
    """Topic and record for each message that a handler gets and whose broker wants traces.

    RocketMQ: brokers do not stamp the region on messages of a batch, and its own clients do not trace those. We do.
    """
    return [
        (
            message.topic,
            Delivered(
                at_ms=at_ms,
                region=message.properties.get(Name.REGION, REGION),
                group=group,
                request_id=request_id,
                message_id=message.message_id,
                retry_count=message.retry_count,
                keys=message.properties.get(Name.KEYS),
            ),
        )
        for message in messages
        if is_traced(message)
    ]


def is_traced(message: StoredMessage) -> bool:
    """Whether the broker that stored it wants traces."""
    return message.properties.get(Name.TRACE_ON) != "false"


# ── Waiting to be sent ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """Body of one trace message, and the ids and keys by which it is found."""

    body: bytes
    keys: tuple[str, ...]


class TraceBuffer:
    """Records that wait, at most `records_max`: whoever traces is never held up, so what comes too fast is dropped."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self._records_max = records_max
        self._waiting: deque[tuple[str, Record]] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, topic: str, record: Record) -> None:
        if len(self._waiting) >= self._records_max:
            self.dropped += 1
        else:
            self._waiting.append((topic, record))

    def take(self) -> list[TraceMessage]:
        """Everything that waits, as messages: each of one topic, and not too large."""
        by_topic: dict[str, list[Record]] = {}
        while self._waiting:
            topic, record = self._waiting.popleft()
            by_topic.setdefault(topic, []).append(record)
        return [message for records in by_topic.values() for message in pack(records)]


def pack(
    records: Iterable[Record],
    *,
    characters_max: int = MESSAGE_CHARACTERS_MAX,
    keys_characters_max: int = KEYS_CHARACTERS_MAX,
) -> list[TraceMessage]:
    """Records in as few messages as the limits allow; one that is too large by itself goes alone."""
    messages: list[TraceMessage] = []
    texts: list[str] = []
    keys: dict[str, None] = {}
    characters = key_characters = 0
    for record in records:
        text = encode_record(record)
        own_keys = [record.message_id, *(record.keys or "").split(KEY_SEPARATOR)]
        fresh = {key: None for key in own_keys if key and key not in keys}
        own_key_characters = sum(len(key) + 1 for key in fresh)
        is_full = characters + len(text) > characters_max or key_characters + own_key_characters > keys_characters_max
        if texts and is_full:
            messages.append(TraceMessage("".join(texts).encode(), tuple(keys)))
            texts, keys, characters, key_characters = [], {}, 0, 0
            fresh = {key: None for key in own_keys if key}
            own_key_characters = sum(len(key) + 1 for key in fresh)
        texts.append(text)
        keys |= fresh
        characters += len(text)
        key_characters += own_key_characters
    if texts:
        messages.append(TraceMessage("".join(texts).encode(), tuple(keys)))
    return messages

"""The life of a message, put together from the records that clients left in the trace topic."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kappamq.admin.reach import Reach
from kappamq.client.core.tracing import Decided, Delivered, Handled, Outcome, Published, Record, decode_records
from kappamq.errors import NotFound, TopicNotFound
from kappamq.model.names import TRACE_TOPIC

FOUND_MAX: Final = 64
"""Trace messages that one question may bring."""

_WORDS: Final = {
    Outcome.SUCCESS: "success",
    Outcome.TIMED_OUT: "took too long",
    Outcome.RAISED: "raised",
    Outcome.RETURNED_NOTHING: "returned nothing",
    Outcome.FAILED: "wanted again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened to a message. What the client did not tell is `None`."""

    at_ms: int | None
    what: str
    """`sent`, `decided` or `handled`."""
    group: str | None
    client: str
    status: str
    cost_ms: int | None = None
    topic: str | None = None
    retry_count: int | None = None
    store_host: str | None = None
    keys: str | None = None
    tags: str | None = None


class Traces:
    """Looking at traces."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def of(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> list[Step]:
        """What happened to a message, oldest first. Raises `NotFound` when nobody has traced it."""
        try:
            found = await self._reach.cluster.query_messages(trace_topic, message_id, count_max=FOUND_MAX)
        except TopicNotFound:
            raise NotFound(
                f"there is no trace topic {trace_topic!r}: trace with ProducerSettings(trace=True) or "
                "ConsumerSettings(trace=True) first"
            ) from None
        records = [
            (message.born_host, record)
            for message in found
            for record in decode_records(message.body.decode(errors="replace"))
            if record.message_id == message_id
        ]
        if not records:
            raise NotFound(
                f"nobody has traced message {message_id}: check the id, and that its producer or consumers trace"
            )
        return steps_of(records)


def steps_of(records: Iterable[tuple[str, Record]]) -> list[Step]:
    """Records with the address of the client that wrote each, as steps in the order of time."""
    steps: list[Step] = []
    begun: dict[str, tuple[str, Delivered]] = {}
    ended: dict[str, tuple[str, Handled]] = {}
    for client, record in records:
        match record:
            case Published():
                steps.append(_sent(client, record))
            case Decided():
                steps.append(_decided(client, record))
            case Delivered():
                begun[record.request_id] = client, record
            case Handled():
                ended[record.request_id] = client, record
    steps += [_handled(begun.get(each), ended.get(each)) for each in begun | ended]
    return sorted(steps, key=lambda step: step.at_ms or 0)


def _sent(client: str, record: Published) -> Step:
    kind = record.kind.name.lower()
    return Step(
        at_ms=record.at_ms,
        what="sent" if kind == "normal" else f"sent ({kind})",
        group=record.group,
        client=record.client_host or client,
        status="success" if record.is_success else "stored less safely",
        cost_ms=record.cost_ms,
        topic=record.topic,
        store_host=record.store_host,
        keys=record.keys,
        tags=record.tags,
    )


def _decided(client: str, record: Decided) -> Step:
    return Step(
        at_ms=record.at_ms,
        what="decided (asked)" if record.is_from_check else "decided",
        group=record.group,
        client=client,
        status=record.state,
        topic=record.topic,
        store_host=record.store_host,
        keys=record.keys,
        tags=record.tags,
    )


def _handled(begun: tuple[str, Delivered] | None, ended: tuple[str, Handled] | None) -> Step:
    """A delivery of which the begin, the end, or both are known."""
    before = begun[1] if begun is not None else None
    after = ended[1] if ended is not None else None
    [client, *_] = [each[0] for each in (begun, ended) if each is not None]
    end_ms = after.at_ms if after is not None else None
    return Step(
        at_ms=before.at_ms if before is not None else end_ms,
        what="handled",
        group=before.group if before is not None else after.group if after is not None else None,
        client=client,
        status=_WORDS[after.outcome] if after is not None else "not ended, or its end was not traced",
        cost_ms=after.cost_ms if after is not None else None,
        retry_count=before.retry_count if before is not None else None,
        keys=before.keys if before is not None else after.keys if after is not None else None,
    )

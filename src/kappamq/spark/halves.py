"""Half messages of a transactional write: sent by tasks, delivered or discarded together by the driver.

Consumers see nothing of a batch before Spark has all of it. A decision is asked for and acknowledged; one that a broker
has already is repeated without harm.

Before the first message of a batch is delivered, a note of the batch is stored in a topic of its own. A driver that
dies while it delivers leaves the note, so the repetition of the batch looks which messages are there and delivers the
others.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from kappamq.admin.reach import Reach
from kappamq.admin.topics import Topics
from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.transactions import Decision, end_request
from kappamq.client.core.receipts import SendReceipt
from kappamq.client.loop_thread import LoopThread
from kappamq.errors import KappaError, TopicNotFound
from kappamq.model.message import Message
from kappamq.model.properties import Name
from kappamq.spark.brokers import patiently
from kappamq.spark.options import WriteOptions

log = logging.getLogger(__name__)

Value = TypeVar("Value")

BATCH_TOPIC: Final = "kappamq-spark-batches"
HALVES_AT_ONCE_MAX: Final = 64
RETRIES: Final = 5
RETRY_MS: Final = 200
UNDECIDED_SECONDS_MAX: Final = 6 * 3600
"""How long a broker waits for the driver before it asks: a batch must be done by then."""


async def send_halves(producer: Producer, messages: Sequence[Message]) -> list[SendReceipt]:
    """Store messages out of sight; receipts in the same order."""
    slots = asyncio.Semaphore(HALVES_AT_ONCE_MAX)

    async def send(message: Message) -> SendReceipt:
        properties = dict(message.properties) | {Name.CHECK_IMMUNITY_SECONDS: str(UNDECIDED_SECONDS_MAX)}
        half = Message(message.topic, message.body, message.tags, message.keys, properties, message.flag)
        async with slots:
            begun = await patiently(lambda: producer.begin_transaction(half), retries=RETRIES, interval_ms=RETRY_MS)
        return begun.receipt

    return await asyncio.gather(*(send(message) for message in messages))


def deliver(halves: Sequence[SendReceipt], options: WriteOptions, *, write: str | None, batch: int) -> None:
    """Let consumers see the messages. Raises when a broker does not confirm: Spark then repeats the batch.

    `write` names work that may be repeated; what an earlier delivery of the same batch has shown is not shown again.
    """
    if not halves:
        return
    there = _delivered_before(halves, options, f"{write}/{batch}") if write is not None else frozenset()
    fresh = [half for half in halves if half.message_id not in there]
    _decide(fresh, Decision.COMMIT, options)
    discard([half for half in halves if half.message_id in there], options)


def _delivered_before(halves: Sequence[SendReceipt], options: WriteOptions, note: str) -> frozenset[str]:
    """Ids of messages that consumers see already, because the delivery of this batch was begun before."""

    async def look(producer: Producer) -> frozenset[str]:
        async def patient(ask: Callable[[], Awaitable[Value]]) -> Value:
            return await patiently(ask, retries=RETRIES, interval_ms=RETRY_MS)

        if not await patient(lambda: _find(producer.cluster, BATCH_TOPIC, note, by_unique_id=False)):
            await _ensure_topic(producer.cluster)
            await patient(lambda: producer.send(Message(BATCH_TOPIC, note.encode(), None, note)))
            return frozenset()
        slots = asyncio.Semaphore(HALVES_AT_ONCE_MAX)

        async def is_there(half: SendReceipt) -> bool:
            async with slots:
                return await patient(
                    lambda: _find(producer.cluster, half.queue.topic, half.message_id, by_unique_id=True)
                )

        found = await asyncio.gather(*(is_there(half) for half in halves))
        return frozenset(half.message_id for half, known in zip(halves, found, strict=True) if known)

    thread = LoopThread(lambda: Producer(options.name_servers, group=options.group), name="kappamq spark notes")
    thread.open()
    try:
        return thread.call(look)
    finally:
        thread.close()


async def _find(cluster: Cluster, topic: str, key: str, *, by_unique_id: bool) -> bool:
    try:
        return bool(await cluster.query_messages(topic, key, count_max=1, by_unique_id=by_unique_id))
    except TopicNotFound:
        return False


async def _ensure_topic(cluster: Cluster) -> None:
    """Make the topic for notes, also where brokers do not make topics by themselves."""
    try:
        await cluster.routes.find(BATCH_TOPIC)
    except TopicNotFound:
        await Topics(Reach(cluster)).create(BATCH_TOPIC, queues=1)


def discard(halves: Sequence[SendReceipt], options: WriteOptions) -> None:
    """Drop messages that no repetition needs; those that cannot be reached now are given up by their broker later."""
    try:
        _decide(halves, Decision.ROLLBACK, options)
    except KappaError as fault:
        log.warning("half messages not discarded: their broker will give them up fault=%s", fault)


def _decide(halves: Sequence[SendReceipt], decision: Decision, options: WriteOptions) -> None:
    if not halves:
        return

    async def decide_all(cluster: Cluster) -> None:
        slots = asyncio.Semaphore(HALVES_AT_ONCE_MAX)
        for topic in {half.queue.topic for half in halves}:
            await cluster.routes.find(topic)

        begun = time.monotonic()

        async def decide(half: SendReceipt, number: int) -> None:
            async with slots:
                if options.rows_per_second is not None and decision is Decision.COMMIT:
                    await asyncio.sleep(begun + number / options.rows_per_second - time.monotonic())
                await patiently(lambda: tell(half), retries=RETRIES, interval_ms=RETRY_MS)

        async def tell(half: SendReceipt) -> None:
            address = await cluster.master_of(half.queue)
            await cluster.call(address, end_request(options.group, half, decision), timeout_ms=options.send_timeout_ms)

        await asyncio.gather(*(decide(half, number) for number, half in enumerate(halves)))

    thread = LoopThread(lambda: Cluster(options.name_servers), name="kappamq spark transactions")
    thread.open()
    try:
        thread.call(decide_all)
    finally:
        thread.close()

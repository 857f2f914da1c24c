"""Half messages of a transactional write: sent by tasks, delivered or discarded together by the driver.

Consumers see nothing of a batch before Spark has all of it. A decision is asked for and acknowledged; one that a broker
has already is repeated without harm.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.transactions import Decision, end_request
from kappamq.client.core.receipts import SendReceipt
from kappamq.client.loop_thread import LoopThread
from kappamq.errors import KappaError
from kappamq.model.message import Message
from kappamq.model.properties import Name
from kappamq.spark.brokers import patiently
from kappamq.spark.options import WriteOptions

log = logging.getLogger(__name__)

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


def deliver(halves: Sequence[SendReceipt], options: WriteOptions) -> None:
    """Let consumers see the messages. Raises when a broker does not confirm: Spark then repeats the batch."""
    _decide(halves, Decision.COMMIT, options)


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

        async def decide(half: SendReceipt) -> None:
            async with slots:
                await patiently(lambda: tell(half), retries=RETRIES, interval_ms=RETRY_MS)

        async def tell(half: SendReceipt) -> None:
            address = await cluster.master_of(half.queue)
            await cluster.call(address, end_request(options.group, half, decision), timeout_ms=options.send_timeout_ms)

        await asyncio.gather(*(decide(half) for half in halves))

    thread = LoopThread(lambda: Cluster(options.name_servers), name="kappamq spark transactions")
    thread.open()
    try:
        thread.call(decide_all)
    finally:
        thread.close()

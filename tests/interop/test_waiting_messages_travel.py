"""Messages that wait in a store when it changes hands: RocketMQ delivers what ours took, and the other way round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.model.record import decode_record
from kappamq.store.settings import StoreSettings
from kappamq.testing import start_cluster
from kappamq.wire.headers import CheckTransactionRequest, RecallRequest, SendReply, decode_fields
from tests.e2e.raw_client import RawClient, RawClients
from tests.interop.conftest import skip_loudly
from tests.interop.rocketmq import Broker as RealBroker
from tests.interop.rocketmq import Unreachable

pytestmark = pytest.mark.interop

COMMIT, ROLL_BACK = 8, 12
STORE = StoreSettings(disk_delete_ratio=0.97, disk_force_ratio=0.98, disk_full_ratio=0.99)
OUR_SETTINGS = BrokerSettings(
    name="template", store=STORE, transaction_timeout_ms=1000, transaction_check_interval_ms=1000
)
THEIR_SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    # It counts rounds in which a message is still immune: with its 15 it gives up, unasked, what is immune for longer.
    "transactionCheckMax": "100",
    "recallMessageEnable": "true",
}
Serve = Callable[[Path], AbstractContextManager[str]]


@contextmanager
def ours(data: Path) -> Iterator[str]:
    data.parent.mkdir(parents=True, exist_ok=True)
    with start_cluster(data=data.parent, settings=OUR_SETTINGS) as cluster:
        yield cluster.brokers["broker-a"]


@contextmanager
def theirs(data: Path) -> Iterator[str]:
    with start_cluster(brokers=0) as cluster:
        try:
            broker = RealBroker(cluster.nameserver, store=data, flush="SYNC_FLUSH", settings=THEIR_SETTINGS)
        except Unreachable as missing:
            skip_loudly(missing)
            raise
        try:
            yield broker.address
        finally:
            broker.stop()


async def open_waiting(client: RawClient) -> dict[str, SendReply]:
    """Delayed, timed, recalled, committed, rolled-back and undecided messages."""
    half = {"TRAN_MSG": "true", "PGROUP": "producers"}
    sent = {
        "past": await client.send("orders", b"past", DELAY="1", UNIQ_KEY="0" * 32),
        "delayed": await client.send("orders", b"delayed", DELAY="4", UNIQ_KEY="1" * 32),
        "timed": await client.send("orders", b"timed", TIMER_DELAY_SEC="32", UNIQ_KEY="2" * 32),
        "recalled": await client.send("orders", b"recalled", TIMER_DELAY_SEC="32", UNIQ_KEY="3" * 32),
        "quick": await client.send("orders", b"quick", TIMER_DELAY_SEC="1", UNIQ_KEY="7" * 32),
        "committed": await client.send("orders", b"committed", half, flags=4, UNIQ_KEY="4" * 32),
        "undone": await client.send("orders", b"undone", half, flags=4, UNIQ_KEY="5" * 32),
        "open": await client.send(
            "orders", b"open", {**half, "CHECK_IMMUNITY_TIME_IN_SECONDS": "20"}, flags=4, UNIQ_KEY="6" * 32
        ),
    }
    await client.end(sent["committed"], COMMIT)
    await client.end(sent["undone"], ROLL_BACK)
    handle = sent["recalled"].recall_handle
    assert handle is not None
    await client.ask(RecallRequest(producer_group="producers", topic="orders", recall_handle=handle))
    await client.await_messages("orders", 3)
    return sent


async def await_all(client: RawClient) -> None:
    await client.heartbeat("p1", producers=("producers",))
    async with asyncio.timeout(120):
        while True:
            _, question = await client.asked.get()
            if question.code == CheckTransactionRequest.code:
                break
    check = decode_fields(question.fields, CheckTransactionRequest)
    message = decode_record(question.body)
    assert (message.body, message.topic, check.transaction_id) == (b"open", "orders", "6" * 32)
    half = SendReply(
        offset_id=f"{check.half_log_offset:032X}",
        queue_id=0,
        queue_offset=check.half_queue_offset,
        transaction_id=check.transaction_id,
    )
    assert (await client.end(half, COMMIT, from_check=True)).code == 0
    found = await client.await_messages("orders", 6, seconds_max=120)
    assert sorted(each.body for each in found[:3]) == [b"committed", b"past", b"quick"]
    assert sorted(each.body for each in found[3:]) == [b"delayed", b"open", b"timed"]
    assert await client.pull("orders", 0, 6, wait_ms=3000) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(ours, theirs, id="ours-then-rocketmq"),
        pytest.param(theirs, ours, id="rocketmq-then-ours"),
    ],
)
def test_waiting_messages_travel(tmp_path: Path, first: Serve, second: Serve) -> None:
    data = tmp_path / "stores" / "broker-a"

    async def visit(address: str, work: Callable[[RawClient], object]) -> None:
        async with RawClients() as clients:
            outcome = work(clients.connect(address))
            assert asyncio.iscoroutine(outcome)
            await outcome

    with first(data) as address:
        asyncio.run(visit(address, open_waiting))
    with second(data) as address:
        asyncio.run(visit(address, await_all))

"""Transactions and requests, against scripted brokers."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.aio.producer import Producer
from kappamq.client.aio.transactions import Decision
from kappamq.errors import CallTimeout, ServiceUnavailable, UsageError
from kappamq.model.message import Message, StoredMessage
from kappamq.model.properties import decode_properties
from kappamq.model.record import decode_record
from kappamq.net.connection import Connection
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from tests.unit.client.aio.fake_cluster import FakeCluster, eventually


async def connection_of(cluster: FakeCluster) -> Connection:
    await eventually(lambda: bool(cluster.broker.server.connections))
    return next(iter(cluster.broker.server.connections))


def decisions(cluster: FakeCluster) -> list[str]:
    requests = cluster.broker.requests_of(RequestCode.END_TRANSACTION)
    assert all(request.is_one_way for request in requests)
    return [request.fields["commitOrRollback"] for request in requests]


async def test_the_action_decides() -> None:
    async with FakeCluster(queues=1) as cluster, Producer(cluster.nameserver, group="g") as producer:
        seen: list[Message] = []

        async def commit(message: Message) -> Decision:
            seen.append(message)
            return Decision.COMMIT

        message = Message("orders", b"x")
        result = await producer.send_in_transaction(message, commit)
        assert (result.decision, seen) == (Decision.COMMIT, [message])
        await producer.send_in_transaction(message, lambda _: Decision.ROLLBACK)
        await producer.send_in_transaction(message, lambda _: None)  # type: ignore[arg-type,return-value]
        await eventually(lambda: decisions(cluster) == ["8", "12", "0"])
        half = cluster.broker.requests_of(RequestCode.SEND_MESSAGE_V2)[0]
        properties = decode_properties(half.fields["i"])
        assert (properties["TRAN_MSG"], properties["PGROUP"], half.fields["f"]) == ("true", "g", "4")
        end = cluster.broker.requests_of(RequestCode.END_TRANSACTION)[0]
        assert end.fields["msgId"] == result.receipt.message_id
        assert end.fields["tranStateTableOffset"] == "0"
        assert end.fields["fromTransactionCheck"] == "false"


async def test_an_action_that_raises_leaves_the_transaction_open() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:

        def action(message: Message) -> Decision:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await producer.send_in_transaction(Message("orders", b"x"), action)
        await eventually(lambda: decisions(cluster) == ["0"])


async def test_less_safely_stored_is_rolled_back_without_running_the_action() -> None:
    def degraded(connection: Connection, request: Command) -> None:
        fields = {"msgId": "7F00000100005E2B0000000000000000", "queueId": "0", "queueOffset": "9"}
        connection.reply(request.reply(12, fields=fields))

    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, degraded)
        runs: list[Message] = []

        def action(message: Message) -> Decision:
            runs.append(message)
            return Decision.COMMIT

        result = await producer.send_in_transaction(Message("orders", b"x"), action)
        assert (result.decision, runs) == (Decision.ROLLBACK, [])
        await eventually(lambda: decisions(cluster) == ["12"])


async def test_a_block_commits_or_rolls_back() -> None:
    async with FakeCluster(queues=1) as cluster, Producer(cluster.nameserver, group="g") as producer:
        message = Message("orders", b"x")
        async with producer.transaction(message) as transaction:
            assert decisions(cluster) == []
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(message):
                raise ZeroDivisionError
        await eventually(lambda: decisions(cluster) == ["8", "12"])
        end = cluster.broker.requests_of(RequestCode.END_TRANSACTION)[0]
        assert end.fields["msgId"] == transaction.message_id


async def test_a_block_may_leave_the_decision_to_the_checker() -> None:
    async with FakeCluster(queues=1) as cluster, Producer(cluster.nameserver, group="g") as producer:
        message = Message("orders", b"x")
        async with producer.transaction(message) as transaction:
            transaction.leave_undecided()

        async def fail() -> None:
            async with producer.transaction(message) as transaction:
                transaction.leave_undecided()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), producer.transaction(message):
                await asyncio.Event().wait()
        await eventually(lambda: decisions(cluster) == ["0", "0", "0"])


async def test_a_block_does_not_run_when_its_message_is_less_safe_than_asked() -> None:
    def degraded(connection: Connection, request: Command) -> None:
        fields = {"msgId": "7F00000100005E2B0000000000000000", "queueId": "0", "queueOffset": "9"}
        connection.reply(request.reply(12, fields=fields))

    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, degraded)
        with pytest.raises(ServiceUnavailable, match="rolled back"):
            async with producer.transaction(Message("orders", b"x")):
                pytest.fail("the block ran")
        await eventually(lambda: decisions(cluster) == ["12"])


async def test_delayed_transactions_are_refused() -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        with pytest.raises(UsageError, match="cannot be delayed"):
            await producer.send_in_transaction(
                Message("orders", b"x", properties={"DELAY": "1"}), lambda _: Decision.COMMIT
            )


@pytest.mark.parametrize("is_broken", [False, True])
async def test_brokers_may_ask_the_checker(is_broken: bool) -> None:
    async with FakeCluster() as cluster, Producer(cluster.nameserver, group="g") as producer:
        asked: list[bytes] = []

        @producer.on_check
        def check(message: StoredMessage) -> Decision:
            asked.append(message.body)
            if is_broken:
                raise ValueError("scripted")
            return Decision.COMMIT

        await producer.send(Message("orders", b"first"))
        cluster.broker.store("half", 0, b"open", "PGROUP\x01g\x02UNIQ_KEY\x01ABC\x02")
        record = cluster.broker.records["half", 0][0]
        fields = {"tranStateTableOffset": "3", "commitLogOffset": "4", "transactionId": "ABC"}
        connection = await connection_of(cluster)
        connection.send(Command(code=RequestCode.CHECK_TRANSACTION_STATE, fields=fields, body=record))
        await eventually(lambda: decisions(cluster) == ["0" if is_broken else "8"])
        assert asked == [b"open"]
        (end,) = cluster.broker.requests_of(RequestCode.END_TRANSACTION)
        assert (end.fields["tranStateTableOffset"], end.fields["commitLogOffset"]) == ("3", "4")
        assert (end.fields["fromTransactionCheck"], end.fields["msgId"]) == ("true", "ABC")


async def test_a_request_waits_for_its_reply() -> None:
    async with FakeCluster(queues=1) as cluster, Producer(cluster.nameserver, group="g") as producer:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(producer.request(Message("orders", b"question"), timeout=5))
            await eventually(lambda: bool(cluster.broker.records["orders", 0]))
            request = decode_record(cluster.broker.records["orders", 0][0])
            request.properties["CLUSTER"] = "c"
            assert request.properties["REPLY_TO_CLIENT"] == producer.cluster.client_id
            await producer.reply(request, b"answer")
            (reply,) = cluster.broker.requests_of(RequestCode.SEND_REPLY_MESSAGE_V2)
            connection = await connection_of(cluster)
            pushed = Command(
                code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                fields={
                    "producerGroup": "g",
                    "topic": "c_REPLY_TOPIC",
                    "queueId": "0",
                    "bornTimestamp": "1",
                    "properties": reply.fields["i"],
                    "bornHost": "/127.0.0.1:5",
                    "storeHost": "127.0.0.1:6",
                },
                body=reply.body,
            )
            assert (await connection.call(pushed, timeout_ms=3000)).code == 0
        answer = asking.result()
        assert (answer.body, answer.born_host) == (b"answer", "127.0.0.1:5")
        assert answer.properties["MSG_TYPE"] == "reply"


async def test_a_request_without_a_reply_times_out() -> None:
    async with FakeCluster(queues=1) as cluster, Producer(cluster.nameserver, group="g") as producer:
        with pytest.raises(CallTimeout, match="no reply"):
            await producer.request(Message("orders", b"x"), timeout=0.1)
        await producer.send(Message("orders", b"no request"))
        message = decode_record(cluster.broker.records["orders", 0][1])
        with pytest.raises(UsageError, match="is no request"):
            await producer.reply(message, b"x")

"""Undecided half messages: found again, decided once, asked about in time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kappamq.broker import transactions as module
from kappamq.errors import Busy, KappaError
from kappamq.model.names import HALF_TOPIC, OPERATION_TOPIC
from kappamq.model.record import NewRecord, decode_record
from kappamq.store.store import Appended
from tests.property.crashing_broker import CrashingBroker

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


def run(scenario: Callable[[CrashingBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = CrashingBroker()
        await broker.start()
        await scenario(broker)

    asyncio.run(main())


async def commit(broker: CrashingBroker, place: Appended) -> None:
    half = broker.transactions.find(place.queue_offset)
    assert half is not None
    assert broker.store is not None
    await broker.transactions.commit(half, decode_record(broker.store.read(place.log_offset)))


def test_a_commit_without_its_operation_record_is_recorded_after_the_crash() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send_half(b"still open")
        committed = await broker.send_half(b"committed")
        append = broker.append

        async def lose_last(records: list[NewRecord]) -> None:
            await append(records[:-1])
            raise Busy("the machine went away")

        broker.transactions._store_records = lose_last  # type: ignore[assignment]
        with pytest.raises(Busy):
            await commit(broker, committed)
        for _ in range(2):
            broker.files.kill()
            await broker.start()
            assert broker.transactions.undecided == 1
            assert broker.transactions.find(committed.queue_offset) is None
            await broker.save()
        assert [message.body for message in broker.messages(OPERATION_TOPIC)] == [b"1"]
        assert broker.counts() == {b"committed": 1}

    run(scenario)


def test_a_failed_decision_leaves_the_transaction_open() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        place = await broker.send_half(b"a")
        append = broker.append

        async def refuse(_: object) -> None:
            raise Busy("not now")

        broker.transactions._store_records = refuse
        with pytest.raises(KappaError):
            await commit(broker, place)
        broker.transactions._store_records = append
        await commit(broker, place)
        assert broker.counts() == {b"a": 1}
        assert broker.transactions.decision_of(place.queue_offset) == 8

    run(scenario)


def test_operations_of_both_forms_are_understood() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        for number in range(5):
            await broker.send_half(b"%d" % number)
        for body, tag in ((b"0", b"d"), (b"1,3,", b"d"), (b"4", b"other"), (b"x,,7", b"d")):
            await broker.append([NewRecord(OPERATION_TOPIC, 0, body, b"TAGS\x01" + tag + b"\x02", 1, HOST, HOST)])
        broker.files.kill()
        await broker.start()
        assert broker.transactions.undecided == 2
        assert broker.transactions.find(2) is not None
        assert broker.transactions.find(4) is not None

    run(scenario)


def test_progress_stops_at_the_oldest_that_is_open() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        places = [await broker.send_half(b"%d" % number) for number in range(4)]
        await commit(broker, places[0])
        await commit(broker, places[2])
        broker.transactions.note_progress()
        group = module.SYSTEM_GROUP
        assert broker.offsets.find(HALF_TOPIC, group, 0) == 1
        assert broker.offsets.find(OPERATION_TOPIC, group, 0) == 0
        await commit(broker, places[1])
        await commit(broker, places[3])
        broker.transactions.note_progress()
        assert broker.offsets.find(HALF_TOPIC, group, 0) == 4
        assert broker.offsets.find(OPERATION_TOPIC, group, 0) == 4

    run(scenario)


def test_the_number_of_open_transactions_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: CrashingBroker) -> None:
        monkeypatch.setattr(module, "UNDECIDED_MAX", 2)
        await broker.send_half(b"a")
        broker.transactions.check_room()
        await broker.send_half(b"b")
        with pytest.raises(Busy, match="undecided"):
            broker.transactions.check_room()

    run(scenario)


def test_nobody_is_asked_while_a_decision_is_on_its_way() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        place = await broker.send_half(b"a")
        half = broker.transactions.find(place.queue_offset)
        assert half is not None
        half.is_deciding = True
        broker.clock.advance(ms=6000)
        assert await broker.transactions.ask_due() == 0
        half.is_deciding = False
        broker.clock.advance(ms=10_000)
        assert await broker.transactions.ask_due() == 1
        assert broker.asked[0][1].body == b"a"

    run(scenario)


def test_a_check_and_what_follows_tell_how_often_was_asked() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        place = await broker.send_half(b"a")
        for _ in range(2):
            broker.clock.advance(ms=60_000)
            assert await broker.transactions.ask_due() == 1
        half, message = broker.asked[-1]
        shown = decode_record(module.check_body(half, message))
        assert shown.properties["TRANSACTION_CHECK_TIMES"] == "2"
        await broker.transactions.commit(half, message)
        assert broker.store is not None
        [entry] = broker.store.entries("orders", 0, 0, 1)
        stored = decode_record(broker.store.read(entry.log_offset))
        assert (stored.body, stored.properties["TRANSACTION_CHECK_TIMES"]) == (b"a", "2")
        assert stored.prepared_offset == place.log_offset

    run(scenario)


def test_a_check_shows_the_message_under_its_own_address() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        place = await broker.send_half(b"a")
        half = broker.transactions.find(place.queue_offset)
        assert half is not None
        assert broker.store is not None
        message = decode_record(broker.store.read(place.log_offset))
        shown = decode_record(module.check_body(half, message))
        assert (shown.topic, shown.queue_id, shown.queue_offset) == ("orders", 0, place.queue_offset)
        assert (shown.log_offset, shown.body, shown.properties["PGROUP"]) == (place.log_offset, b"a", "producers")

    run(scenario)

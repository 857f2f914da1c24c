"""Timed messages: ticks, recalls, rolling, catching up, many in one second."""

import asyncio
from collections.abc import Awaitable, Callable

from kappamq.broker import timers as module
from kappamq.broker.recalls import delete_key
from kappamq.errors import Busy, StorageError
from kappamq.model.names import TIMER_TOPIC
from kappamq.model.properties import encode_properties
from kappamq.model.record import NewRecord
from tests.faults.records import HOST
from tests.property.crashing_broker import ROOT, TOPIC, CrashingBroker

START_MS = 1_700_000_000_000


def run(scenario: Callable[[CrashingBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = CrashingBroker()
        await broker.start()
        await scenario(broker)

    asyncio.run(main())


async def pass_time(broker: CrashingBroker, ms: int) -> None:
    broker.clock.advance(ms=ms)
    await broker.timers.run_once()


def test_a_message_comes_at_its_instant_rounded_up_to_a_second() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"a", TIMER_DELAY_MS="1500", TAGS="T")
        await broker.timers.run_once()
        await pass_time(broker, 1999)
        assert broker.counts() == {}
        await pass_time(broker, 1)
        [message] = broker.messages()
        assert (message.tags, message.properties["TIMER_OUT_MS"]) == ("T", str(START_MS + 1000))
        assert message.properties["TIMER_DEQUEUE_MS"] == str(START_MS + 2000)
        assert message.properties["TIMER_ENQUEUE_MS"] == str(START_MS)

    run(scenario)


def test_a_message_whose_second_is_over_comes_at_once() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await pass_time(broker, 60_000)
        text = encode_properties({"REAL_TOPIC": TOPIC, "REAL_QID": "0", "TIMER_OUT_MS": str(START_MS)})
        await broker.append([NewRecord(TIMER_TOPIC, 0, b"late", text.encode(), 1, HOST, HOST)])
        await broker.timers.run_once()
        [message] = broker.messages()
        assert (message.body, message.properties["TIMER_ENQUEUE_MS"]) == (b"late", str(2**63 - 1))

    run(scenario)


def test_a_recall_takes_back_one_message_of_its_second() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        for body in (b"a", b"b", b"c"):
            await broker.send(body, TIMER_DELAY_MS="5000")
        await broker.timers.run_once()
        deliver_at = str(START_MS + 4001)
        await broker.send(
            b"0",
            UNIQ_KEY=b"b".hex(),
            TIMER_DELIVER_MS=deliver_at,
            TIMER_DEL_UNIQKEY=delete_key(TOPIC, b"b".hex().upper()),
        )
        # RocketMQ: the unique id alone, but for 5.3.2 and 5.3.3.
        await broker.send(b"0", UNIQ_KEY="x", TIMER_DELIVER_MS=deliver_at, TIMER_DEL_UNIQKEY=b"c".hex().upper())
        await pass_time(broker, 5000)
        assert broker.counts() == {b"a": 1}

    run(scenario)


def test_what_is_far_away_is_stored_again_in_between() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        # Records are kept for one hour here, so the window is half an hour.
        await broker.send(b"far", TIMER_DELAY_MS="7200000")
        for _ in range(7):
            await pass_time(broker, 1_000_000)
        assert broker.counts() == {}
        assert broker.store is not None
        assert broker.store.max_offset(TIMER_TOPIC, 0) > 3
        await pass_time(broker, 199_999)
        assert broker.counts() == {}
        await pass_time(broker, 1)
        [message] = broker.messages()
        assert int(message.properties["TIMER_ROLL_TIMES"]) >= 3

    run(scenario)


def test_a_recall_of_a_far_message_travels_with_it() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"far", TIMER_DELAY_MS="7200000")
        await pass_time(broker, 600_000)
        await broker.send(
            b"0",
            UNIQ_KEY="x",
            TIMER_DELIVER_MS=str(START_MS + 7_199_001),
            TIMER_DEL_UNIQKEY=delete_key(TOPIC, b"far".hex().upper()),
        )
        for _ in range(8):
            await pass_time(broker, 1_000_000)
        assert broker.counts() == {}

    run(scenario)


def test_everything_comes_after_a_long_time_down() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        for seconds in (1, 50, 900, 1700):
            await broker.send(b"%d" % seconds, TIMER_DELAY_MS=str(seconds * 1000))
        await broker.timers.run_once()
        await broker.stop()
        broker.clock.advance(ms=90 * 86_400_000)
        await broker.start()
        await broker.send(b"new", TIMER_DELAY_MS="1000")
        await broker.timers.run_once()
        assert broker.counts() == {b"1": 1, b"50": 1, b"900": 1, b"1700": 1}
        await pass_time(broker, 1000)
        assert broker.counts()[b"new"] == 1

    run(scenario)


def test_many_messages_of_one_second_and_a_disk_that_is_busy_in_between() -> None:
    count = module.BATCH_MAX + 100

    async def scenario(broker: CrashingBroker) -> None:
        for number in range(count):
            await broker.send(b"%d" % number, TIMER_DELAY_MS="5000")
        await broker.timers.run_once()
        broker.clock.advance(ms=5000)
        calls = 0
        append = broker.append

        async def refuse_second(records: list[NewRecord]) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise Busy("not now")
            await append(records)

        broker.timers._store_records = refuse_second  # type: ignore[assignment]
        try:
            await broker.timers.run_once()
        except Busy:
            pass
        assert calls == 2
        assert 0 < sum(broker.counts().values()) < count
        # Progress may be saved, and the broker killed, in the middle of a slot.
        await broker.save()
        broker.files.kill()
        await broker.start()
        await broker.timers.run_once()
        assert [message.body for message in broker.messages()] == [b"%d" % number for number in range(count)]

    run(scenario)


def test_a_full_disk_for_timer_files_is_waited_for() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        for number in range(20):
            await broker.send(b"%d" % number, TIMER_DELAY_MS=str(3000 + 1000 * (number % 3)))
        left, broker.files.space_left = broker.files.space_left, 0
        try:
            await broker.timers.run_once()
            raise AssertionError("the disk is full")
        except StorageError:
            pass
        broker.files.space_left = left
        await broker.timers.run_once()
        await pass_time(broker, 5000)
        assert broker.counts() == {b"%d" % number: 1 for number in range(20)}

    run(scenario)


def test_a_steady_stream_of_new_messages_does_not_hold_up_what_is_due() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"due", TIMER_DELAY_MS="1000")
        await broker.timers.run_once()
        broker.clock.advance(ms=2000)
        await broker.send(b"far", TIMER_DELAY_MS="1000000")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(broker.timers.run_once())
            number = 0
            async with asyncio.timeout(60):  # Threads work on it, too: how many messages come meanwhile is open.
                while not broker.counts():
                    await broker.send(b"far %d" % number, TIMER_DELAY_MS="1000000")
                    await asyncio.sleep(0)
                    number += 1
            running.cancel()
        assert broker.counts() == {b"due": 1}

    run(scenario)


def test_a_recall_that_was_stored_in_time_counts_although_much_waits_before_it() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"regretted", TIMER_DELAY_MS="5000")
        await broker.timers.run_once()
        for number in range(module.BATCH_MAX + 10):
            await broker.send(b"%d" % number, TIMER_DELAY_MS="100000")
        await broker.send(
            b"0",
            UNIQ_KEY="x",
            TIMER_DELIVER_MS=str(START_MS + 4001),
            TIMER_DEL_UNIQKEY=delete_key(TOPIC, b"regretted".hex().upper()),
        )
        await pass_time(broker, 6000)
        assert broker.counts() == {}

    run(scenario)


def test_files_are_those_of_rocketmq() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"a", TIMER_DELAY_MS="5000")
        await broker.timers.run_once()
        await broker.stop()
        assert broker.files.list_directory(ROOT / "timerlog") == ["0" * 20]
        assert "timercheck" in broker.files.list_directory(ROOT / "config")
        check = broker.timers.check()
        assert (check.read_ms, check.log_end, check.queue_offset) == (START_MS, 52, 1)

    run(scenario)

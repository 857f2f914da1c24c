"""Delivery of delay levels: order, timing, progress, what cannot be delivered."""

import asyncio
from collections.abc import Awaitable, Callable

from kappamq.broker import delays as module
from kappamq.errors import Busy
from kappamq.model.names import SCHEDULE_TOPIC
from kappamq.model.record import NewRecord
from kappamq.store.config_files import load_config
from tests.property.crashing_broker import CONFIG, LEVELS_MS, CrashingBroker


def run(scenario: Callable[[CrashingBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = CrashingBroker()
        await broker.start()
        await scenario(broker)

    asyncio.run(main())


def test_levels_do_not_wait_for_each_other() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"slow", DELAY="2")
        await broker.send(b"quick", DELAY="1")
        broker.clock.advance(ms=999)
        assert await broker.delays.deliver_due() == 0.001
        assert broker.messages() == []
        broker.clock.advance(ms=1)
        assert await broker.delays.deliver_due() == 4.0
        broker.clock.advance(ms=4000)
        assert await broker.delays.deliver_due() == module.SLEEP_SECONDS_MAX
        assert [message.body for message in broker.messages()] == [b"quick", b"slow"]

    run(scenario)


def test_more_than_one_batch_comes_in_order() -> None:
    count = module.BATCH_MAX + 10

    async def scenario(broker: CrashingBroker) -> None:
        for number in range(count):
            await broker.send(b"%d" % number, DELAY="1")
        broker.clock.advance(ms=1000)
        await broker.delays.deliver_due()
        assert [message.body for message in broker.messages()] == [b"%d" % number for number in range(count)]
        assert (broker.delays.delivered, broker.delays.next_offset(1)) == (count, count)

    run(scenario)


def test_a_full_disk_holds_messages_but_loses_none() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"a", DELAY="1")
        broker.clock.advance(ms=1000)
        append = broker.append

        async def refuse(_: object) -> None:
            raise Busy("not now")

        broker.delays._store_records = refuse
        assert await broker.delays.deliver_due() == module.RETRY_SECONDS
        broker.delays._store_records = append
        await broker.delays.deliver_due()
        assert broker.counts() == {b"a": 1}

    run(scenario)


def test_the_task_wakes_for_a_new_head_only() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        broker.delays._wake.clear()
        await broker.send(b"head", DELAY="2")
        assert broker.delays._wake.is_set()
        broker.delays._wake.clear()
        await broker.send(b"behind", DELAY="2")
        await broker.send(b"plain")
        assert not broker.delays._wake.is_set()

    run(scenario)


def test_a_message_without_an_address_is_passed_over() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        [plain] = await broker.send(b"a", DELAY="1")
        host = bytes([127, 0, 0, 1, 0, 0, 0, 1])
        await broker.append([NewRecord(SCHEDULE_TOPIC, 0, b"stray", b"DELAY\x011\x02", 1, host, host)])
        await broker.send(b"b", DELAY="1")
        broker.clock.advance(ms=1000)
        await broker.delays.deliver_due()
        assert broker.counts() == {b"a": 1, b"b": 1}
        assert broker.messages()[0].prepared_offset == plain.log_offset

    run(scenario)


def test_progress_is_kept_in_rocketmqs_file() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"a", DELAY="1")
        await broker.send(b"b", DELAY="3")
        broker.clock.advance(ms=1000)
        await broker.delays.deliver_due()
        await broker.stop()
        value = load_config(CONFIG / "delayOffset.json", files=broker.files)
        assert value is not None
        assert {int(level): offset for level, offset in value["offsetTable"].items()} == {1: 1, 2: 0, 3: 0}
        assert "dataVersion" in value
        await broker.start()
        assert [broker.delays.next_offset(level) for level in (1, 2, 3)] == [1, 0, 0]

    run(scenario)


def test_levels_that_the_settings_no_longer_have_deliver_what_waits_there_and_nothing_twice() -> None:
    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"delivered", DELAY="3")
        broker.clock.advance(ms=60_000)
        await broker.delays.deliver_due()
        await broker.send(b"waiting", DELAY="3")
        await broker.stop()
        broker.levels_ms = (1000,)
        await broker.start()
        broker.clock.advance(ms=59_999)
        await broker.delays.deliver_due()
        assert broker.counts() == {b"delivered": 1}
        broker.clock.advance(ms=1)
        await broker.delays.deliver_due()
        await broker.stop()
        broker.levels_ms = LEVELS_MS
        await broker.start()
        await broker.delays.deliver_due()
        assert broker.counts() == {b"delivered": 1, b"waiting": 1}

    run(scenario)


def test_what_is_due_later_than_a_whole_delay_is_due_after_a_restart() -> None:
    """RocketMQ: the clock went back while the broker was down, or the level is shorter now."""

    async def scenario(broker: CrashingBroker) -> None:
        await broker.send(b"a", DELAY="2")
        await broker.stop()
        broker.clock.step(ms=-3_600_000)
        await broker.start()
        await broker.delays.deliver_due()
        assert broker.counts() == {b"a": 1}

    run(scenario)

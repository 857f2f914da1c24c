"""What the log says about deliveries after the last save."""

import asyncio

from kappamq.broker.deliveries import waiting_since
from kappamq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.model.record import decode_record
from kappamq.store.config_files import load_config
from tests.property.crashing_broker import CONFIG, CrashingBroker


def test_only_what_came_after_the_last_save_is_found() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send(b"plain")
        [early] = await broker.send(b"early", DELAY="1")
        [timed] = await broker.send(b"timed", TIMER_DELAY_MS="2000")
        half = await broker.send_half(b"half")
        assert broker.store is not None
        broker.clock.advance(ms=1000)
        await broker.deliver()
        found = waiting_since(broker.store, CONFIG, files=broker.files)
        assert {topic: [each.log_offset for each in messages] for topic, messages in found.items()} == {
            SCHEDULE_TOPIC: [early.log_offset]
        }
        await broker.save()
        assert waiting_since(broker.store, CONFIG, files=broker.files) == {}
        broker.clock.advance(ms=1000)
        await broker.deliver()
        undecided = broker.transactions.find(half.queue_offset)
        assert undecided is not None
        await broker.transactions.commit(undecided, decode_record(broker.store.read(half.log_offset)))
        found = waiting_since(broker.store, CONFIG, files=broker.files)
        assert {topic: [each.log_offset for each in messages] for topic, messages in found.items()} == {
            TIMER_TOPIC: [timed.log_offset],
            HALF_TOPIC: [half.log_offset],
        }
        await broker.stop()

    asyncio.run(scenario())


def test_the_very_first_record_of_a_log_is_not_taken_for_delivered() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        [first] = await broker.send(b"first", DELAY="1")
        assert first.log_offset == 0
        await broker.send(b"first", DELAY="1")  # A client that got no answer sends the same again.
        assert broker.store is not None
        assert waiting_since(broker.store, CONFIG, files=broker.files) == {}
        broker.clock.advance(ms=1000)
        await broker.deliver()
        [found] = waiting_since(broker.store, CONFIG, files=broker.files).values()
        assert sorted(each.queue_offset for each in found) == [0, 1]
        await broker.stop()

    asyncio.run(scenario())


def test_the_position_is_never_ahead_of_what_is_on_disk() -> None:
    async def scenario() -> None:
        broker = CrashingBroker()
        await broker.start()
        await broker.send(b"a", DELAY="1")
        await broker.save()
        assert broker.store is not None
        value = load_config(CONFIG / "kappamqDeliveries.json", files=broker.files)
        assert value == {"logOffset": broker.store.flushed}
        await broker.stop()

    asyncio.run(scenario())

"""Group commit: what is answered when, over a real store whose disk can be held up or broken."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.broker.appender import Appender
from kappamq.clock import ManualClock
from kappamq.errors import Busy, InvalidMessage, KappaError, StorageError
from kappamq.model.ids import pack_host
from kappamq.model.record import NewRecord
from kappamq.store.checkpoint import FLUSHED_NAME
from kappamq.store.commit_log import CommitLog
from kappamq.store.dispatch import Arrival
from kappamq.store.store import Appended, Store
from kappamq.store.syncing import make_syncer
from kappamq.testing.cluster import SMALL_STORE

HOST = pack_host("127.0.0.1", 1)


def record(body: bytes = b"x", topic: str = "t") -> NewRecord:
    return NewRecord(topic, 0, body, b"UNIQ_KEY\x01A\x02", 1, HOST, HOST)


class Scene:
    """An appender over a store whose sync waits for `disk`."""

    def __init__(self, store: Store, appender: Appender, clock: ManualClock, arrivals: list[Arrival]) -> None:
        self.store = store
        self.appender = appender
        self.clock = clock
        self.arrivals = arrivals
        self.disk = threading.Event()
        self.disk.set()
        self.is_broken = False
        self.outcomes: list[list[Appended] | KappaError] = []
        self.late: list[bool] = []

    def done(self, outcome: list[Appended] | KappaError, is_late: bool) -> None:
        self.outcomes.append(outcome)
        self.late.append(is_late)

    def submit(self, body: bytes = b"x", *, wait: bool = True) -> None:
        self.appender.submit([record(body)], self.done, wait=wait)

    async def answered(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.outcomes) < count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, durable: bool = True, limit: int = 100
) -> AsyncIterator[Scene]:
    clock = ManualClock()
    settings = replace(SMALL_STORE, segment_bytes=1 << 20, visible="flushed" if durable else "written")
    store = Store.open(tmp_path, settings, clock=clock)
    arrivals: list[Arrival] = []
    appender = Appender(
        store,
        clock=clock,
        durable=durable,
        on_arrivals=arrivals.extend,
        unacknowledged_max=limit,
        flush_timeout_seconds=5,
    )
    made = Scene(store, appender, clock, arrivals)
    flush = CommitLog.flush

    def held_flush(log: CommitLog) -> int:
        made.disk.wait(30)
        if made.is_broken:
            raise OSError(5, "Input/output error")
        return flush(log)

    monkeypatch.setattr(CommitLog, "flush", held_flush)
    appender.start()
    try:
        yield made
    finally:
        made.disk.set()
        await appender.stop()
        store.close()


def test_nothing_is_answered_or_visible_before_the_disk_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            made.disk.clear()
            for _ in range(5):
                made.submit()
            made.appender.write()
            await asyncio.sleep(0.05)
            assert (made.outcomes, made.arrivals, made.store.max_offset("t", 0)) == ([], [], 0)
            made.disk.set()
            await made.answered(5)
            offsets = [outcome[0].queue_offset for outcome in made.outcomes if isinstance(outcome, list)]
            assert offsets == [0, 1, 2, 3, 4]
            assert [arrival.queue_offset for arrival in made.arrivals] == offsets
            assert made.late == [False] * 5

    asyncio.run(main())


def test_async_mode_answers_with_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch, durable=False) as made:
            made.disk.clear()
            made.submit()
            made.appender.write()
            assert len(made.outcomes) == len(made.arrivals) == 1
            made.disk.set()

    asyncio.run(main())


def test_a_send_that_does_not_wait_is_answered_early_but_visible_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            made.disk.clear()
            made.submit(wait=False)
            made.appender.write()
            assert len(made.outcomes) == 1
            assert not made.arrivals
            made.disk.set()
            async with asyncio.timeout(30):
                while not made.arrivals:
                    await asyncio.sleep(0.001)
            assert len(made.outcomes) == 1

    asyncio.run(main())


def test_too_many_waiting_sends_meet_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch, limit=10) as made:
            made.disk.clear()
            for _ in range(10):
                made.submit()
            made.appender.write()
            with pytest.raises(Busy):
                made.submit()
            made.disk.set()
            await made.answered(10)
            made.submit()
            await made.answered(11)

    asyncio.run(main())


def test_a_disk_that_is_too_slow_is_told_once_and_the_record_is_there_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            made.disk.clear()
            made.submit()
            made.appender.write()
            made.clock.advance(ms=5001)
            made.appender.expire()
            assert made.late == [True]
            made.disk.set()
            async with asyncio.timeout(30):
                while not made.arrivals:
                    await asyncio.sleep(0.001)
            assert made.late == [True]

    asyncio.run(main())


def test_one_bad_record_does_not_fail_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            made.submit(b"good")
            made.submit(bytes(5 * 1024 * 1024))
            made.submit(b"also good")
            made.appender.write()
            await made.answered(3)
            kinds = sorted(type(outcome).__name__ for outcome in made.outcomes)
            assert kinds == sorted([InvalidMessage.__name__, "list", "list"])
            assert made.store.max_offset("t", 0) == 2

    asyncio.run(main())


def test_a_failed_sync_fails_what_waits_and_says_so_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            made.disk.clear()
            made.submit()
            made.appender.write()
            made.is_broken = True
            made.disk.set()
            await made.answered(1)
            assert isinstance(made.outcomes[0], StorageError)
            assert not made.arrivals
            with pytest.raises(StorageError):
                await made.appender.wait_failed()
            made.submit()
            made.appender.write()
            assert isinstance(made.outcomes[1], StorageError), "a failed store takes no more"

    asyncio.run(main())


def test_a_thread_without_the_interpreter_makes_records_durable(tmp_path: Path) -> None:
    syncer = make_syncer()
    if syncer is None:
        pytest.skip("the compiled syncer is not built")

    async def main() -> None:
        clock = ManualClock()
        store = Store.open(tmp_path, replace(SMALL_STORE, visible="flushed"), clock=clock)
        arrivals: list[Arrival] = []
        appender = Appender(
            store,
            clock=clock,
            durable=True,
            on_arrivals=arrivals.extend,
            unacknowledged_max=100,
            flush_timeout_seconds=5,
            syncer=syncer,
        )
        appender.start()
        for number in range(30):
            (place,) = await appender.store([record(b"%d" % number)])
            assert store.flushed >= place.end
            mark = (tmp_path / FLUSHED_NAME).read_bytes()[8:16]
            assert int.from_bytes(mark, "big") == place.end, "recovery knows what was acknowledged"
        outcomes: list[object] = []
        appender.submit([record(b"last")], lambda outcome, _late: outcomes.append(outcome))
        await appender.stop()
        assert len(outcomes) == 1, "what was submitted before the stop is answered"
        assert [arrival.queue_offset for arrival in arrivals] == list(range(31))
        store.close()

    asyncio.run(main())


def test_a_failed_sync_of_that_thread_stops_the_broker(tmp_path: Path) -> None:
    syncer = make_syncer()
    if syncer is None:
        pytest.skip("the compiled syncer is not built")

    async def main() -> None:
        store = Store.open(tmp_path, replace(SMALL_STORE, visible="flushed"), clock=ManualClock())
        appender = Appender(
            store,
            clock=ManualClock(),
            durable=True,
            on_arrivals=lambda _: None,
            unacknowledged_max=100,
            flush_timeout_seconds=5,
            syncer=syncer,
        )
        appender.start()
        outcomes: list[object] = []
        appender.submit([record()], lambda outcome, _late: outcomes.append(outcome))
        appender.write()
        reader, writer = os.pipe()
        syncer.request([reader], 1 << 40)  # A pipe cannot be synced.
        with pytest.raises(StorageError, match="syncing the commit log failed"):
            await asyncio.wait_for(appender.wait_failed(), 10)
        assert store.failure
        assert store.flushed < 1 << 40
        await appender.stop()
        os.close(reader)
        os.close(writer)
        store.close()

    asyncio.run(main())

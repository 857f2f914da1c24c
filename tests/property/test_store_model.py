"""The store beside a list: whatever happens, nothing acknowledged or seen is lost, and nothing is invented."""

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kappamq.clock import ManualClock
from kappamq.model.record import decode_records
from kappamq.store.check import check_store
from kappamq.store.settings import StoreSettings
from kappamq.store.store import FetchLimit, FetchStatus, Store
from tests.faults.records import ROOT, commit, new_record, small_settings
from tests.faults.simulated_files import Killed, SimulatedFileSystem

Key = tuple[str, int]
QUEUES: tuple[Key, ...] = (("orders", 0), ("orders", 1), ("payments", 0))


class StoreBesideLists(RuleBasedStateMachine):
    """`appended` is all that was written, in order; `durable` and `seen` say how much of it must survive."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFileSystem()
        self.clock = ManualClock()
        self.settings = StoreSettings()
        self.store: Store | None = None
        self.appended: dict[Key, list[bytes]] = {key: [] for key in QUEUES}
        self.durable: dict[Key, int] = dict.fromkeys(QUEUES, 0)
        self.number = 0

    @initialize(
        segment_bytes=st.sampled_from((4096, 8192)),
        verify_bytes=st.sampled_from((0, 2048, 1 << 20)),
        visible=st.sampled_from(("flushed", "written")),
        hold_above=st.sampled_from((0, 1, 16)),
    )
    def begin(self, segment_bytes: int, verify_bytes: int, visible: str, hold_above: int) -> None:
        self.settings = small_settings(
            segment_bytes=segment_bytes, verify_bytes=verify_bytes, visible=visible, hold_entries_above=hold_above
        )
        self.open()

    def open(self) -> Store:
        self.store = Store.open(ROOT, self.settings, clock=self.clock, files=self.files)
        return self.store

    def running(self) -> Store:
        assert self.store is not None
        return self.store

    def append_some(self, queues: list[int], size: int) -> None:
        records, added = [], []
        for index in queues:
            self.number += 1
            topic, queue_id = QUEUES[index]
            body = b"%06d" % self.number + b"x" * size
            records.append(
                new_record(
                    body,
                    topic=topic,
                    queue_id=queue_id,
                    tags="A",
                    keys=f"k{self.number} all",
                    unique_id=f"u{self.number}",
                )
            )
            added.append(((topic, queue_id), body))
        # Before the write: a crash within it may leave any part of them.
        for key, body in added:
            self.appended[key].append(body)
        self.running().append(records)

    @rule(queues=st.lists(st.integers(0, 2), min_size=1, max_size=8), size=st.integers(0, 600))
    def append(self, queues: list[int], size: int) -> None:
        self.clock.advance(ms=7)
        self.append_some(queues, size)

    @rule()
    def flush(self) -> None:
        store = self.running()
        store.mark_flushed(store.flush())
        self.durable = {key: len(bodies) for key, bodies in self.appended.items()}

    @rule()
    def publish(self) -> None:
        self.running().publish()

    @rule(queues_max=st.integers(1, 3))
    def write_held(self, queues_max: int) -> None:
        self.running().write_held_entries(queues_max=queues_max)

    @rule()
    def checkpoint(self) -> None:
        self.running().checkpoint()
        self.durable = {key: len(bodies) for key, bodies in self.appended.items()}

    @rule()
    def prepare(self) -> None:
        self.running().prepare_next_segment()

    @rule()
    def restart(self) -> None:
        self.running().close()
        self.durable = {key: len(bodies) for key, bodies in self.appended.items()}
        assert check_store(ROOT, self.settings, files=self.files).violations == []
        self.check_recovered()

    @rule()
    def kill(self) -> None:
        self.files.kill()
        self.check_recovered()
        assert {key: len(bodies) for key, bodies in self.appended.items()} == {
            key: self.running().max_offset(*key) for key in QUEUES
        }, "a kill loses nothing that was written"

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        self.files.power_cut(Random(seed))
        self.check_recovered()

    @rule(
        step=st.integers(1, 60),
        cuts_power=st.booleans(),
        seed=st.integers(0, 2**32),
        action=st.sampled_from(("append", "commit", "write", "checkpoint", "close", "reopen")),
    )
    def crash_at_a_step(self, step: int, cuts_power: bool, seed: int, action: str) -> None:
        """Crash in the middle of something, at any step that touches the disk."""
        left = step

        def count_down(_action: str, _path: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        if action == "reopen":
            self.files.kill()
        self.files.on_step = count_down
        try:
            self.do(action)
        except Killed:
            pass
        self.files.on_step = None
        if cuts_power:
            self.files.power_cut(Random(seed))
        else:
            self.files.kill()
        self.check_recovered()

    def do(self, action: str) -> None:
        store = self.running()
        if action == "append":
            self.append_some([0, 1, 2, 0, 1, 2], 400)
            commit(store)
        elif action == "commit":
            commit(store)
        elif action == "write":
            store.write_held_entries(queues_max=2)
        elif action == "checkpoint":
            store.checkpoint()
        elif action == "close":
            store.close()
        else:
            self.open()

    def check_recovered(self) -> None:
        store = self.open()
        report = store.recovery
        for key, bodies in self.appended.items():
            found = self.bodies(store, key)
            assert found == bodies[: len(found)], f"{key}: not what was appended; {report}"
            assert len(found) >= self.durable[key], f"{key}: acknowledged records are gone; {report}"
            del bodies[len(found) :]
        self.durable = {key: len(bodies) for key, bodies in self.appended.items()}
        for (topic, _queue_id), bodies in self.appended.items():
            for body in bodies[-3:]:
                number = int(body[:6])
                for name in (f"u{number}", f"k{number}"):
                    result = store.query(topic, name, limit=8, begin_ms=0, end_ms=1 << 60)
                    assert [message.body for message in decode_records(b"".join(result.records))] == [body], name

    def bodies(self, store: Store, key: Key) -> list[bytes]:
        found: list[bytes] = []
        while True:
            fetched = store.fetch(*key, len(found), limit=FetchLimit(count=5))
            if fetched.status is not FetchStatus.FOUND:
                return found
            for message in decode_records(fetched.body):
                assert (message.topic, message.queue_id, message.queue_offset) == (*key, len(found))
                found.append(message.body)

    @precondition(lambda self: self.store is not None and self.settings.visible == "flushed")
    @invariant()
    def seen_is_durable(self) -> None:
        for key in QUEUES:
            assert self.running().max_offset(*key) <= self.durable[key]

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
            assert check_store(ROOT, self.settings, files=self.files).violations == []


TestStoreBesideLists = StoreBesideLists.TestCase
TestStoreBesideLists.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

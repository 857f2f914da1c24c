"""Long polling: pulls that found nothing wait here until a message arrives or their time is up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kappamq.clock import Clock
from kappamq.model.properties import decode_properties
from kappamq.model.selector import Selector
from kappamq.net.connection import Connection
from kappamq.store.dispatch import Arrival
from kappamq.store.plain_runs import QueueRun, RunBatch
from kappamq.wire.command import Command
from kappamq.wire.headers import PullRequest


@dataclass(slots=True, eq=False)
class ParkedPull:
    """A pull that waits."""

    connection: Connection
    request: Command
    pull: PullRequest
    selector: Selector
    deadline: float = field(default=0.0)


class ParkedPulls:
    """Waiting pulls by queue. Owned by the event loop. `rerun` answers a pull for good: it never parks again."""

    def __init__(self, *, clock: Clock, parked_max: int, rerun: Callable[[ParkedPull], None]) -> None:
        self._clock = clock
        self._parked_max = parked_max
        self._rerun = rerun
        self._by_queue: dict[tuple[str, int], list[ParkedPull]] = {}
        self._by_connection: dict[Connection, set[ParkedPull]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._parked_max

    def park(self, parked: ParkedPull, *, wait_ms: int) -> None:
        """Let a pull wait. The caller has just seen that there is nothing for it, with no `await` since."""
        parked.deadline = self._clock.monotonic() + wait_ms / 1000
        self._by_queue.setdefault((parked.pull.topic, parked.pull.queue_id), []).append(parked)
        self._by_connection.setdefault(parked.connection, set()).add(parked)
        self._count += 1

    def wake(self, arrivals: Iterable[Arrival]) -> None:
        """Run the pulls that the new messages are for."""
        if not self._count:
            return
        for arrival in arrivals:
            waiting = self._by_queue.get((arrival.topic, arrival.queue_id))
            if not waiting:
                continue
            for parked in list(waiting):
                if arrival.queue_offset >= parked.pull.start and _is_for(arrival, parked.selector):
                    self._release(parked)
                    self._rerun(parked)

    def wake_run(self, batch: RunBatch) -> None:
        """Run the pulls that a run of packed sends is for."""
        if not self._count:
            return
        for queue in batch.queues_among(self._by_queue):
            for parked in list(self._by_queue.get((queue.topic, queue.queue_id), ())):
                if queue.end > parked.pull.start and _brings_any(batch, queue, parked):
                    self._release(parked)
                    self._rerun(parked)

    def sweep(self, max_offset: Callable[[str, int], int], *, recheck: bool) -> None:
        """Run the pulls whose time is up and, with `recheck`, those whose queue has grown by whatever messages."""
        now = self._clock.monotonic()
        for (topic, queue_id), waiting in list(self._by_queue.items()):
            end = max_offset(topic, queue_id) if recheck else -1
            for parked in list(waiting):
                if parked.deadline <= now or end > parked.pull.start:
                    self._release(parked)
                    self._rerun(parked)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Run all pulls of a queue: its offsets were moved."""
        for parked in list(self._by_queue.get((topic, queue_id), ())):
            self._release(parked)
            self._rerun(parked)

    def drop(self, connection: Connection) -> None:
        """Forget the pulls of a client that is gone."""
        for parked in list(self._by_connection.get(connection, ())):
            self._release(parked)

    def release_all(self) -> None:
        """Answer everyone: the broker stops."""
        for waiting in list(self._by_queue.values()):
            for parked in list(waiting):
                self._release(parked)
                self._rerun(parked)

    def _release(self, parked: ParkedPull) -> None:
        key = (parked.pull.topic, parked.pull.queue_id)
        waiting = self._by_queue.get(key)
        if waiting is None or parked not in waiting:
            return
        waiting.remove(parked)
        if not waiting:
            del self._by_queue[key]
        mine = self._by_connection.get(parked.connection)
        if mine is not None:
            mine.discard(parked)
            if not mine:
                del self._by_connection[parked.connection]
        self._count -= 1


def _brings_any(batch: RunBatch, queue: QueueRun, parked: ParkedPull) -> bool:
    if parked.selector.is_everything:
        return True
    return any(
        arrival.queue_offset >= parked.pull.start and _is_for(arrival, parked.selector)
        for arrival in batch.arrivals_of(queue)
    )


def _is_for(arrival: Arrival, selector: Selector) -> bool:
    if not selector.matches_tag_code(arrival.tags_code):
        return False
    return selector.condition is None or selector.matches(decode_properties(arrival.properties_text))

"""kill -9 right after a lock was granted: nobody else gets the queue from the broker that comes back."""

import asyncio
from pathlib import Path

from kappamq.model.message import Queue
from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import decode_locked_queues, encode_queue_set
from kappamq.wire.headers import LockQueuesRequest, UnlockQueuesRequest
from tests.faults.test_kill_broker import Victim

CALL_MS = 30_000
QUEUES = [Queue("orders", "broker-a", number) for number in range(4)]


async def lock(dialer: Dialer, address: str, client_id: str, queues: list[Queue]) -> set[Queue]:
    command = LockQueuesRequest().command(body=encode_queue_set(group="g", client_id=client_id, queues=queues))
    reply = await dialer.call(address, command, timeout_ms=CALL_MS)
    return set(decode_locked_queues(reply.body))


def test_owners_survive(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Victim(tmp_path, "durable")
        async with Dialer() as dialer:
            for number in range(4):
                await broker.start()
                owned = QUEUES[: number + 1]
                # The owner gets back what it has, at once, and one more; nobody else gets any of it.
                assert await lock(dialer, broker.address, "other", QUEUES[:number]) == set()
                assert await lock(dialer, broker.address, "owner", owned) == set(owned)
                await broker.kill()
            await broker.start()
            assert await lock(dialer, broker.address, "other", QUEUES) == set()
            given_up = UnlockQueuesRequest().command(
                body=encode_queue_set(group="g", client_id="owner", queues=QUEUES[:2])
            )
            await dialer.call(broker.address, given_up, timeout_ms=CALL_MS)
            assert await lock(dialer, broker.address, "other", QUEUES) == set(QUEUES[:2])
            await broker.kill()
            await broker.start()
            assert await lock(dialer, broker.address, "owner", QUEUES) == set(QUEUES[2:])
            await broker.kill()

    asyncio.run(main())

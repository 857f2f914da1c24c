"""One member of an ordered group, in a process of its own: notes what its handler got, and when, in a file.

Arguments: name servers, topic, group, file. Ends in order when its standard input ends.
"""

import asyncio
import os
import sys
import time

from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.settings import PushSettings
from kappamq.model.message import StoredMessage

LOCK_LIFE_MS = 8_000
LEASE_SECONDS = 12.0
"""What the broker must give: longer than members trust their locks."""


async def main(nameservers: str, topic: str, group: str, path: str) -> None:
    # Written at once and not through a buffer: a kill must not take away what was handled.
    notes = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    handling = PushSettings(lock_interval_ms=1_000, lock_life_ms=LOCK_LIFE_MS)
    async with PushConsumer(nameservers, group=group, ordered=True, start_from="first", handling=handling) as consumer:

        @consumer.on(topic)
        async def handle(message: StoredMessage) -> None:
            started = time.monotonic_ns()
            if message.queue_offset % 256 == 0:
                await asyncio.sleep(0.02)  # Some are slow, so that queues change hands while they are handled.
            key, number = message.body.split(b" ")
            note = b"%d %d %s %s %d %d\n" % (
                message.queue_id,
                message.queue_offset,
                key,
                number,
                started,
                time.monotonic_ns(),
            )
            os.write(notes, note)

        await consumer.start()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os.close(notes)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

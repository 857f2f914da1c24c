"""A broker as a process of its own, to be killed: prints its address as JSON when it serves, stops on SIGTERM.

python serve_broker.py DATA FLUSH SEGMENT_BYTES [QUEUE_SEGMENT_BYTES | default]
"""

import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.store.settings import StoreSettings
from kappamq.testing.cluster import SMALL_STORE


def store_settings(segment_bytes: int, queue_segment_bytes: str) -> StoreSettings:
    if queue_segment_bytes != "default":
        return replace(SMALL_STORE, segment_bytes=segment_bytes, queue_segment_bytes=int(queue_segment_bytes))
    return StoreSettings(
        segment_bytes=segment_bytes, disk_delete_ratio=0.97, disk_force_ratio=0.98, disk_full_ratio=0.99
    )


async def main() -> None:
    data, flush, segment_bytes, *rest = sys.argv[1:]
    assert flush in ("durable", "async")
    settings = BrokerSettings(
        name="broker-a",
        listen_port=0,
        second_port=False,
        data=Path(data),
        flush="durable" if flush == "durable" else "async",
        store=store_settings(int(segment_bytes), rest[0] if rest else str(SMALL_STORE.queue_segment_bytes)),
    )
    async with Broker(settings) as broker:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, broker.stop)
        print(json.dumps({"address": broker.address}), flush=True)
        await broker.wait()


asyncio.run(main())

"""A broker as a process of its own, to be killed: prints its address as JSON when it serves.

python serve_broker.py DATA FLUSH SEGMENT_BYTES [NAMESERVERS]
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.testing.cluster import SMALL_STORE


async def main() -> None:
    data, flush, segment_bytes, *nameservers = sys.argv[1:]
    assert flush in ("durable", "async")
    settings = BrokerSettings(
        name="victim",
        listen_port=0,
        second_port=False,
        data=Path(data),
        flush="durable" if flush == "durable" else "async",
        nameservers=tuple(nameservers),
        store=replace(SMALL_STORE, segment_bytes=int(segment_bytes)),
    )
    async with Broker(settings) as broker:
        print(json.dumps({"address": broker.address}), flush=True)
        await broker.wait()


asyncio.run(main())

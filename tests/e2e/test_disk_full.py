"""A disk that is really full: a clear refusal, nothing lost, and service again by itself."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.broker.app import Broker
from kappamq.broker.settings import BrokerSettings
from kappamq.model.record import decode_records
from kappamq.net.dialer import Dialer
from kappamq.testing.cluster import SMALL_STORE
from kappamq.wire.codes import ResponseCode
from kappamq.wire.headers import MaxOffsetRequest, PullRequest, SendRequest

DISK_MIB = 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("A FULL DISK WAS NOT TRIED: mounting a small tmpfs needs root; the simulated disk covers the rest")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def send(number: int) -> SendRequest:
    return SendRequest(producer_group="p", topic="full", queue_id=0, born_at_ms=int(time.time() * 1000), flag=number)


@pytest.mark.parametrize("flush", ["durable", "async"])
def test_a_full_disk_refuses_and_recovers(small_disk: Path, flush: str) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(10 * 1024 * 1024))
    store = replace(
        SMALL_STORE,
        segment_bytes=4 * 1024 * 1024,
        index_slots=5000,
        index_entries=20_000,
        disk_delete_ratio=1.0,
        disk_force_ratio=1.0,
        disk_full_ratio=1.0,
    )
    settings = BrokerSettings(
        name="full",
        listen_port=0,
        second_port=False,
        data=small_disk / "store",
        store=store,
        flush="durable" if flush == "durable" else "async",
        retention_seconds=0.2,
        timer_enabled=False,
    )

    async def main() -> None:
        acknowledged: dict[int, int] = {}
        async with Broker(settings) as broker, Dialer() as dialer:
            number = 0
            while True:
                number += 1
                reply = await dialer.call_raw(
                    broker.address, send(number).command(body=bytes(50_000)), timeout_ms=30_000
                )
                if reply.code != ResponseCode.SUCCESS:
                    break
                acknowledged[int(reply.fields["queueOffset"])] = number
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE, reply.remark
            assert "space" in (reply.remark or ""), reply.remark
            assert len(acknowledged) > 50
            for _ in range(20):
                again = await dialer.call_raw(broker.address, send(0).command(body=bytes(50_000)), timeout_ms=30_000)
                assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE, again.remark
            await read_back(dialer, broker.address, acknowledged)
            ballast.unlink()
            deadline = time.monotonic() + 60
            while reply.code != ResponseCode.SUCCESS:
                assert time.monotonic() < deadline, f"no return to service: {reply.remark}"
                number += 1
                reply = await dialer.call_raw(broker.address, send(number).command(body=b"again"), timeout_ms=30_000)
            acknowledged[int(reply.fields["queueOffset"])] = number
            await read_back(dialer, broker.address, acknowledged)
        async with Broker(settings) as broker, Dialer() as dialer:
            await read_back(dialer, broker.address, acknowledged)
            query = MaxOffsetRequest(topic="full", queue_id=0).command()
            end = int((await dialer.call(broker.address, query, timeout_ms=30_000)).fields["offset"])
            assert end == max(acknowledged) + 1

    asyncio.run(main())


async def read_back(dialer: Dialer, address: str, expected: dict[int, int]) -> None:
    found: dict[int, int] = {}
    start = 0
    while True:
        pull = PullRequest(
            group="g", topic="full", queue_id=0, start=start, count_max=32, flags=4, subscription="*"
        ).command()
        reply = await dialer.call_raw(address, pull, timeout_ms=30_000)
        if reply.code != ResponseCode.SUCCESS:
            break
        found |= {message.queue_offset: message.flag for message in decode_records(reply.body)}
        start = int(reply.fields["nextBeginOffset"])
    assert found == expected

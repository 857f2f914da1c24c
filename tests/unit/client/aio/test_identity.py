"""Client ids and unique ids."""

from __future__ import annotations

import os
from datetime import datetime

from kappamq.client.aio.identity import UniqueIds, client_id, local_ip
from kappamq.clock import ManualClock


def test_client_ids() -> None:
    assert client_id("10.0.0.1", instance="i") == "10.0.0.1@i"
    assert client_id("::1", instance="i", unit="u", is_stream=True) == "[::1]@i@u@STREAM"
    made = client_id("10.0.0.1", instance=None)
    assert made.startswith(f"10.0.0.1@{os.getpid()}#")
    assert made != client_id("10.0.0.1", instance=None)


def test_unique_ids_hold_ip_pid_nonce_time_and_counter() -> None:
    moment = datetime(2025, 9, 19, 10, 30, 0, 123000).astimezone()
    clock = ManualClock(round(moment.timestamp() * 1000))
    made = UniqueIds("192.168.1.10", clock=clock, nonce=0x18B4AAC2).next()
    assert len(made) == 32
    assert made.startswith(f"C0A8010A{os.getpid() & 0xFFFF:04X}18B4AAC2")
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert int(made[20:28], 16) == round((moment - first).total_seconds() * 1000)


def test_unique_ids_differ_and_survive_the_end_of_a_month() -> None:
    clock = ManualClock(round(datetime(2025, 12, 31, 23, 59, 59).astimezone().timestamp() * 1000))
    ids = UniqueIds("::1", clock=clock)
    first = ids.next()
    assert len(first) == 56
    assert len({ids.next() for _ in range(1000)}) == 1000
    clock.advance(ms=2_000)
    assert int(ids.next()[44:52], 16) == 1_000


def test_our_address_is_an_address() -> None:
    assert local_ip("127.0.0.1:9876").count(".") == 3 or ":" in local_ip("127.0.0.1:9876")

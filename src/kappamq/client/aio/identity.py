"""Who we are to the cluster: the client id, and the unique ids of our messages."""

import os
import random
import socket
import time
from datetime import datetime
from ipaddress import ip_address
from typing import Final

from kappamq.clock import Clock
from kappamq.model.ids import split_address

_ELSEWHERE: Final = "192.0.2.1"
"""An address of documentation (RFC 5737): asking for the way there sends nothing."""


def local_ip(name_server: str) -> str:
    """Our address as seen from the cluster; another one than loopback if this machine has one."""
    host, port = split_address(name_server)
    for target, target_port in ((host, port), (_ELSEWHERE, 9)):
        address = _source_address(target, target_port)
        if address is not None and not ip_address(address).is_loopback:
            return address
    return "127.0.0.1"


def client_id(ip: str, *, instance: str | None, unit: str | None = None, is_stream: bool = False) -> str:
    """`ip@instance[@unit][@STREAM]`; without an instance one that no other client has."""
    name = instance if instance is not None else f"{os.getpid()}#{time.monotonic_ns()}"
    parts = [f"[{ip}]" if ":" in ip else ip, name]
    if unit:
        parts.append(unit)
    if is_stream:
        parts.append("STREAM")
    return "@".join(parts)


class UniqueIds:
    """Message ids that no other process makes: 32 digits, 56 where the address is IPv6."""

    def __init__(self, ip: str, *, clock: Clock, nonce: int | None = None) -> None:
        packed = ip_address(ip).packed
        nonce = random.getrandbits(32) if nonce is None else nonce
        self._prefix = (packed + (os.getpid() & 0xFFFF).to_bytes(2, "big") + nonce.to_bytes(4, "big")).hex().upper()
        self._clock = clock
        self._counter = random.getrandbits(16)
        self._stem = ""
        self._stem_ms = -1
        self._month_ms = 0
        self._next_month_ms = 0

    def next(self) -> str:
        """One new id."""
        stem = self._stem_now()
        self._counter = number = (self._counter + 1) & 0xFFFF
        return f"{stem}{number:04X}"

    def several(self, count: int) -> list[str]:
        """New ids, at most 65536 of them: so many of one millisecond differ."""
        stem = self._stem_now()
        first = self._counter + 1
        self._counter = (self._counter + count) & 0xFFFF
        return [f"{stem}{number & 0xFFFF:04X}" for number in range(first, first + count)]

    def _stem_now(self) -> str:
        """All of an id but its counter."""
        now_ms = self._clock.now_ms()
        if now_ms != self._stem_ms:
            if not self._month_ms <= now_ms < self._next_month_ms:
                self._enter_month(now_ms)
            self._stem = f"{self._prefix}{max(0, now_ms - self._month_ms) & 0xFFFFFFFF:08X}"
            self._stem_ms = now_ms
        return self._stem

    def _enter_month(self, now_ms: int) -> None:
        # RocketMQ: time counts from the first of the month in local time.
        now = datetime.fromtimestamp(now_ms / 1000).astimezone()
        first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_ms = round(first.timestamp() * 1000)
        self._next_month_ms = round(following.timestamp() * 1000)


def _source_address(host: str, port: int) -> str | None:
    """Address that packets to a host would come from. A datagram socket sends nothing when it connects."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None

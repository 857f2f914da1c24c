"""Message ids and host addresses in their packed and text forms.

offset id   hex of store host (IP, port i32) + log offset i64: 32 digits for IPv4, 56 for IPv6; made by the broker
unique id   hex of client IP, pid, a per-process value, ms since the 1st of the month, a counter; made by the client
"""

from functools import lru_cache
from ipaddress import ip_address
from struct import Struct

from kappamq.errors import UsageError

_PORT = Struct(">i")
_OFFSET = Struct(">q")
_UNIQUE_TAIL = Struct(">HIIH")


@lru_cache(maxsize=4096)
def pack_host(address: str, port: int) -> bytes:
    """Host as records keep it: 4 or 16 bytes of IP address and the port in 4 bytes."""
    return ip_address(address).packed + _PORT.pack(port)


@lru_cache(maxsize=4096)
def format_host(packed: bytes) -> str:
    """`ip:port` of a packed host; IPv6 addresses stand in brackets."""
    address = ip_address(packed[:-4])
    (port,) = _PORT.unpack(packed[-4:])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"address {address!r} is not of the form host:port: write for example 127.0.0.1:9876")
    return host.strip("[]"), int(port)


def offset_id(store_host: bytes, log_offset: int) -> str:
    """Id of a stored message that says where it is."""
    return (store_host + _OFFSET.pack(log_offset)).hex().upper()


def parse_offset_id(text: str) -> tuple[str, int]:
    """Address `ip:port` of the broker and log offset that an offset id names."""
    if len(text) not in (32, 56):
        raise UsageError(f"message id {text!r} has {len(text)} digits: an offset id has 32 (IPv4) or 56 (IPv6)")
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"message id {text!r} is not hexadecimal: copy it whole from a send receipt") from None
    (log_offset,) = _OFFSET.unpack(packed[-8:])
    return format_host(packed[:-8]), log_offset


def unique_id(host: bytes, *, pid: int, nonce: int, since_month_ms: int, counter: int) -> str:
    """Client-made id; `host` is the packed IP address without a port."""
    tail = _UNIQUE_TAIL.pack(pid & 0xFFFF, nonce & 0xFFFFFFFF, since_month_ms & 0xFFFFFFFF, counter & 0xFFFF)
    return (host + tail).hex().upper()

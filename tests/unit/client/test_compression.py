"""Bodies are packed and unpacked as their flags say."""

from __future__ import annotations

import sys
import zlib

import pytest

from kappamq.client import compression
from kappamq.client.compression import Compression, check_available, compress, decompress
from kappamq.errors import ConfigError, RemoteProtocolError
from kappamq.model.message import Flags

BODY = b"a body that repeats itself, " * 200


@pytest.mark.parametrize("method", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_round_trip(method: Compression) -> None:
    packed, flags = compress(BODY, method)
    assert len(packed) < len(BODY)
    assert flags == Flags.COMPRESSED | method.value
    assert decompress(packed, flags) == BODY


def test_none_leaves_the_body_alone() -> None:
    assert compress(BODY, Compression.NONE) == (BODY, 0)
    assert decompress(BODY, 0) is BODY


def test_old_clients_name_no_method_and_mean_zlib() -> None:
    assert decompress(zlib.compress(BODY), Flags.COMPRESSED) == BODY


@pytest.mark.parametrize("method", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("damage", [lambda data: b"nonsense", lambda data: data[: len(data) // 2]])
def test_damaged_bodies_are_refused(method: Compression, damage: object) -> None:
    packed, flags = compress(BODY, method)
    assert callable(damage)
    with pytest.raises(RemoteProtocolError, match="damaged bytes"):
        decompress(damage(packed), flags)


@pytest.mark.parametrize("method", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_a_small_record_cannot_fill_our_memory(method: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "INFLATED_BYTES_MAX", 1000)
    packed, flags = compress(b"\0" * 1_000_000, method)
    with pytest.raises(RemoteProtocolError, match="grows over"):
        decompress(packed, flags)


@pytest.mark.parametrize(("method", "package"), [(Compression.LZ4, "lz4"), (Compression.ZSTD, "zstandard")])
def test_a_missing_package_is_named(method: Compression, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.frame", None)
    with pytest.raises(ConfigError, match=rf"{package}.*kappamq\[compression\]"):
        check_available(method)

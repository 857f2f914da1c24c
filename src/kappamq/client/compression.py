"""Compressed message bodies. The record's flags name the method, so every consumer can tell."""

import zlib
from enum import Enum
from typing import Any, Final

from kappamq.errors import ConfigError, RemoteProtocolError
from kappamq.model.message import BODY_BYTES_MAX, COMPRESSION_MASK, Flags

LEVEL: Final = 5
INFLATED_BYTES_MAX: Final = 16 * BODY_BYTES_MAX
"""Most bytes a received body may grow to: a small record must not be able to fill our memory."""

_ZSTD_STEP_BYTES: Final = 256
_INSTALL: Final = "pip install 'kappamq[compression]'"


class Compression(Enum):
    """How large bodies are packed. LZ4 and ZSTD need the extra `compression`, here and at every consumer."""

    NONE = 0
    LZ4 = int(Flags.LZ4)
    ZSTD = int(Flags.ZSTD)
    ZLIB = int(Flags.ZLIB)


def check_available(method: Compression) -> None:
    """Raise `ConfigError` now, not at the first large message, when the method's package is missing."""
    if method is Compression.LZ4:
        _lz4()
    elif method is Compression.ZSTD:
        _zstandard()


def compress(body: bytes, method: Compression, *, level: int = LEVEL) -> tuple[bytes, int]:
    """Packed body, and the flags that say so."""
    if method is Compression.NONE:
        return body, 0
    flags = int(Flags.COMPRESSED) | method.value
    if method is Compression.ZLIB:
        return zlib.compress(body, level), flags
    if method is Compression.LZ4:
        return _lz4().compress(body), flags
    return _zstandard().ZstdCompressor(level=level).compress(body), flags


def decompress(body: bytes, flags: int) -> bytes:
    """The body as it was sent. Raises `RemoteProtocolError` when its bytes are not what the flags say."""
    if not flags & Flags.COMPRESSED:
        return body
    method = flags & COMPRESSION_MASK
    if method == Flags.LZ4:
        return _inflate_lz4(body)
    if method == Flags.ZSTD:
        return _inflate_zstd(body)
    # RocketMQ: clients before 4.9.4, and those of other languages, leave the method at 0 and mean zlib.
    return _inflate_zlib(body)


def _inflate_zlib(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as fault:
        raise _damaged("zlib", fault) from None
    if stream.unconsumed_tail:
        raise _too_large("zlib")
    if not stream.eof:
        raise _damaged("zlib", "it ends too early")
    return plain


def _inflate_lz4(body: bytes) -> bytes:
    stream = _lz4().LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, INFLATED_BYTES_MAX)
    except RuntimeError as fault:
        raise _damaged("LZ4", fault) from None
    if not stream.eof:
        raise _too_large("LZ4") if len(plain) >= INFLATED_BYTES_MAX else _damaged("LZ4", "it ends too early")
    return plain


def _inflate_zstd(body: bytes) -> bytes:
    zstandard = _zstandard()
    stream = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    size = 0
    try:
        # In small steps: what one step can grow to is bounded by its input only.
        for at in range(0, len(body), _ZSTD_STEP_BYTES):
            if stream.eof:
                break
            pieces.append(stream.decompress(body[at : at + _ZSTD_STEP_BYTES]))
            size += len(pieces[-1])
            if size > INFLATED_BYTES_MAX:
                raise _too_large("zstd")
    except zstandard.ZstdError as fault:
        raise _damaged("zstd", fault) from None
    if not stream.eof:
        raise _damaged("zstd", "it ends too early")
    return b"".join(pieces)


def _damaged(method: str, fault: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"body is not valid {method} data ({fault}): its producer sent damaged bytes")


def _too_large(method: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{method} body grows over {INFLATED_BYTES_MAX} bytes: refused to protect our memory")


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise ConfigError(f"LZ4 bodies need the package lz4: {_INSTALL}") from None
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ConfigError(f"ZSTD bodies need the package zstandard: {_INSTALL}") from None
    return zstandard

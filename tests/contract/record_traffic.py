"""Records for the readers: as brokers store them, with odd properties, compressed, as batches, and damaged."""

import zlib
from typing import Any

import lz4.frame
import zstandard
from hypothesis import strategies as st

from kappamq.model.ids import pack_host
from kappamq.model.message import Flags
from kappamq.model.record import NewRecord
from kappamq.wire.batch import BatchItem, encode_batch

HOSTS = (pack_host("127.0.0.1", 10911), pack_host("10.0.0.7", 1), pack_host("::1", 10911))
BATCH = encode_batch([BatchItem(f"part {n}".encode(), f"KEYS\x01k{n}\x02".encode(), n) for n in range(3)])
BODIES: tuple[tuple[bytes, int], ...] = (
    (b"plain", 0),
    (zlib.compress(b"old" * 9), int(Flags.COMPRESSED)),
    (zlib.compress(b"zlib" * 9), int(Flags.COMPRESSED | Flags.ZLIB)),
    (lz4.frame.compress(b"lz4" * 9), int(Flags.COMPRESSED | Flags.LZ4)),
    (zstandard.compress(b"zstd" * 9), int(Flags.COMPRESSED | Flags.ZSTD)),
    (BATCH, int(Flags.NEED_UNWRAP | Flags.INNER_BATCH)),
    (b"not compressed", int(Flags.COMPRESSED | Flags.ZLIB)),
)
"""Bodies and the flags that tell what they are; the last one lies."""

_WORD = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=6)
_PIECE = st.one_of(
    st.tuples(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "KEY", "a", "b"]), _WORD).map("\x01".join),
    st.text(st.sampled_from("ab\x01é🎈"), max_size=5),
)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def property_bytes(draw: st.DrawFn) -> bytes:
    """Properties, some without a name or a value, some twice, some not closed."""
    text = "\x02".join(draw(st.lists(_PIECE, max_size=5))) + draw(st.sampled_from(("\x02", "")))
    return text.encode()


@st.composite
def records(draw: st.DrawFn, *, is_plain: bool = False) -> bytes:
    """One record as a broker would store it."""
    body, flags = draw(st.sampled_from(BODIES[:1] if is_plain else BODIES[:1] * 8 + BODIES))
    values: dict[str, Any] = {
        "topic": draw(st.sampled_from(["orders", "%DLQ%g", "t" * 127, "t" * 200, "日本"])),
        "queue_id": draw(I32),
        "body": draw(st.binary(max_size=40)) if not flags and draw(st.booleans()) else body,
        "properties": draw(property_bytes()),
        "born_at_ms": draw(I64),
        "born_host": draw(st.sampled_from(HOSTS)),
        "store_host": draw(st.sampled_from(HOSTS)),
        "flag": draw(I32),
        "flags": flags | draw(st.sampled_from((0, 0x8, 0x400))),
        "retry_count": draw(I32),
        "prepared_offset": draw(I64),
    }
    return NewRecord(**values).encode(
        queue_offset=draw(st.integers(0, 20)),
        log_offset=draw(I64),
        stored_at_ms=draw(I64),
        append_crc=draw(st.booleans()),
    )


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    """What a pull may bring: records, perhaps with some bytes changed, perhaps cut short."""
    data = bytearray(b"".join(draw(st.lists(records(), max_size=5))))
    if data and not draw(st.integers(0, 2)):
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if data and not draw(st.integers(0, 4)):
        del data[draw(st.integers(0, len(data) - 1)) :]
    return bytes(data)

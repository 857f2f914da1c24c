"""JSON and binary encodings of a command's header.

Binary: code i16 │ language u8 │ version i16 │ opaque i32 │ flag i32 │ remarkLen i32, remark │ extLen i32, then repeated
        keyLen i16, key │ valueLen i32, value
"""

from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import msgspec

from kappamq.errors import LocalProtocolError, RemoteProtocolError
from kappamq.wire.codes import LANGUAGES
from kappamq.wire.command import Command, HeaderType

HEADER_FIELDS_MAX: Final = 256
"""Most header fields a peer may send: the largest command has a few dozen."""

_FIXED = Struct(">hBhiii")
_I32 = Struct(">i")
_I16 = Struct(">h")
_LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}


class _JsonHeader(msgspec.Struct, rename={"fields": "extFields", "serialization": "serializeTypeCurrentRPC"}):
    """Keys in the order RocketMQ writes them (alphabetical)."""

    code: int
    fields: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    flag: int = 0
    language: str = "OTHER"
    opaque: int = 0
    remark: str | msgspec.UnsetType | None = msgspec.UNSET
    serialization: str = "JSON"
    version: int = 0


class _LenientJsonHeader(msgspec.Struct, rename={"fields": "extFields"}):
    """What other languages' clients may send: numbers and booleans as values, numbers as languages."""

    code: int
    fields: dict[str, str | int | float | bool | None] | None = None
    flag: int = 0
    language: str | int | None = None
    opaque: int = 0
    remark: str | None = None
    version: int = 0


_strict_decoder = msgspec.json.Decoder(_JsonHeader)
_lenient_decoder = msgspec.json.Decoder(_LenientJsonHeader, strict=False)
_encoder = msgspec.json.Encoder()


def decode_header(header_type: int, header: bytes, body: bytes) -> Command:
    """Command of one frame's header and body. Raises `RemoteProtocolError` for bytes that are no header."""
    command = _decode_json(header, body) if header_type == HeaderType.JSON else _decode_binary(header, body)
    if len(command.fields) > HEADER_FIELDS_MAX:
        raise RemoteProtocolError(f"header has {len(command.fields)} fields, the limit is {HEADER_FIELDS_MAX}")
    return command


def encode_header(command: Command) -> bytes:
    """Header bytes of a command in its own encoding."""
    if command.header_type == HeaderType.BINARY:
        return _encode_binary(command)
    return _encoder.encode(
        _JsonHeader(
            code=command.code,
            fields=command.fields or msgspec.UNSET,
            flag=command.flag,
            language=command.language,
            opaque=command.request_id,
            remark=command.remark if command.remark is not None else msgspec.UNSET,
            version=command.version,
        )
    )


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        parsed = _strict_decoder.decode(header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _decode_lenient_json(header, body)
    return Command(
        parsed.code,
        parsed.opaque,
        parsed.fields or {},
        body,
        parsed.flag,
        parsed.remark or None,
        parsed.language,
        parsed.version,
        HeaderType.JSON,
    )


def _decode_lenient_json(header: bytes, body: bytes) -> Command:
    try:
        parsed = _lenient_decoder.decode(header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as fault:
        raise RemoteProtocolError(f"header is not the JSON of a command: {str(fault)[:200]}") from None
    language = parsed.language
    if isinstance(language, int):
        language = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(
        code=parsed.code,
        request_id=parsed.opaque,
        fields={name: _as_text(value) for name, value in (parsed.fields or {}).items() if value is not None},
        body=body,
        flag=parsed.flag,
        remark=parsed.remark or None,
        language=language or "OTHER",
        version=parsed.version,
        header_type=HeaderType.JSON,
    )


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, request_id, flag, remark_bytes = _FIXED.unpack_from(header, 0)
        at = _FIXED.size
        remark, at = _take(header, at, remark_bytes)
        (fields_bytes,) = _I32.unpack_from(header, at)
        at += 4
        end = at + fields_bytes
        if fields_bytes < 0 or end > len(header):
            raise RemoteProtocolError(f"field section of {fields_bytes} bytes does not fit the header")
        fields: dict[str, str] = {}
        while at < end:
            (name_bytes,) = _I16.unpack_from(header, at)
            name, at = _take(header, at + 2, name_bytes)
            (value_bytes,) = _I32.unpack_from(header, at)
            value, at = _take(header, at + 4, value_bytes)
            if value:  # RocketMQ: an empty value reads as absent.
                fields[name] = value
    except struct_error:
        raise RemoteProtocolError("binary header is cut short") from None
    except UnicodeDecodeError:
        raise RemoteProtocolError("binary header holds text that is not UTF-8") from None
    name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return Command(code, request_id, fields, body, flag, remark or None, name, version, HeaderType.BINARY)


def _take(header: bytes, at: int, size: int) -> tuple[str, int]:
    if size < 0 or at + size > len(header):
        raise RemoteProtocolError(f"text of {size} bytes does not fit the header")
    return header[at : at + size].decode(), at + size


def _encode_binary(command: Command) -> bytes:
    if not -(2**15) <= command.code < 2**15:
        raise LocalProtocolError(f"code {command.code} does not fit a binary header: use the JSON header for it")
    remark = (command.remark or "").encode()
    fields = bytearray()
    for name, value in command.fields.items():
        name_bytes = name.encode()
        value_bytes = value.encode()
        fields += _I16.pack(len(name_bytes)) + name_bytes + _I32.pack(len(value_bytes)) + value_bytes
    fixed = _FIXED.pack(
        command.code,
        _LANGUAGE_NUMBERS.get(command.language, _LANGUAGE_NUMBERS["OTHER"]),
        command.version,
        command.request_id,
        command.flag,
        len(remark),
    )
    return b"".join((fixed, remark, _I32.pack(len(fields)), bytes(fields)))

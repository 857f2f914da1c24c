"""The JSON dialect of RocketMQ's bodies and config files: JSON, plus map keys that are numbers or whole objects.

    {"offsetTable":{0:5,1:7}}                                                integer keys without quotes
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}           objects as keys
    {"a":{…},"b":{"$ref":"$.a"}}                                             the second sight of one object

`loads` reads both, and strict JSON; `dumps` writes integer keys and `Queue` keys the way RocketMQ does.
"""

import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

from kappamq.errors import RemoteProtocolError
from kappamq.model.message import Queue

DEPTH_MAX: Final = 64

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|[A-Za-z_$][\w$]*")
_NUMBER = re.compile(r"-?\d+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_REFERENCE = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_TABLE_LINE = "\n\t"
_ENTRY_LINE = "\n\t\t"
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "v": "\v"}


def loads(data: bytes | str) -> Any:
    """Value of a document. Integer keys become `int`, object keys that name a queue become `Queue`.

    Raises `RemoteProtocolError` when the text is not even this dialect.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            text = data if isinstance(data, str) else data.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("body is not UTF-8 text") from None
        value = _Reader(text).document()
    return _resolve(value) if _mentions_reference(data) else value


def dumps(value: Any, *, pretty: bool = False, standard: bool = False) -> str:
    """Text of a value without blanks; `pretty` indents with tabs, `standard` quotes every key and escapes non-ASCII."""
    pieces: list[str] = []
    _write(value, pieces, "\n" if pretty else "", standard)
    text = "".join(pieces)
    if standard and not text.isascii():
        text = "".join(_ascii(character) for character in text)
    return text


class Written(str):
    """Text that is in this dialect already: `dumps` takes it as it is."""

    __slots__ = ()


class TableText:
    """Pretty text of a table in a document that is saved again and again: entries keep theirs until they are replaced.

    Entries must not change themselves. The table is a member of the document.
    """

    def __init__(self) -> None:
        self._texts: dict[str, tuple[object, str]] = {}

    def of(self, table: Mapping[str, Any]) -> Written:
        known = self._texts
        texts: dict[str, tuple[object, str]] = {}
        for key, entry in table.items():
            kept = known.get(key)
            if kept is None or kept[0] is not entry:
                pieces = [_ENTRY_LINE, encode_basestring(key), ":"]
                _write(entry, pieces, _ENTRY_LINE, standard=False)
                kept = (entry, "".join(pieces))
            texts[key] = kept
        self._texts = texts
        return Written("{" + ",".join([text for _, text in texts.values()]) + (_TABLE_LINE if texts else "") + "}")


def queue_of(value: Any) -> Queue:
    """Queue of a `MessageQueue` object or of a string that holds one as JSON."""
    if isinstance(value, Queue):
        return value
    if isinstance(value, str):
        value = loads(value)
    if isinstance(value, dict):
        try:
            return Queue(str(value["topic"]), str(value["brokerName"]), int(value["queueId"]))
        except (KeyError, TypeError, ValueError):
            pass
    raise RemoteProtocolError(f"not a message queue: {str(value)[:80]!r}")


def queue_value(queue: Queue) -> dict[str, Any]:
    """`MessageQueue` object of a queue."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


class _Reader:
    """Recursive descent over the dialect, with a bound on depth."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self._at != len(self._text):
            raise self._fault("text after the end of the document")
        return value

    def _fault(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"body is not JSON: {what} at position {self._at}")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _peek(self) -> str:
        self._skip_space()
        if self._at >= len(self._text):
            raise self._fault("unexpected end")
        return self._text[self._at]

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._fault(f"nesting deeper than {DEPTH_MAX}")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in "\"'":
            return self._string()
        return self._scalar()

    def _object(self, depth: int) -> dict[Any, Any]:
        self._at += 1
        members: dict[Any, Any] = {}
        while self._peek() != "}":
            key = self._key(depth)
            if self._peek() != ":":
                raise self._fault("expected ':'")
            self._at += 1
            members[key] = self._value(depth + 1)
            self._end_of_item("}")
        self._at += 1
        return members

    def _key(self, depth: int) -> Any:
        first = self._peek()
        if first == "{":
            return queue_of(self._value(depth + 1))
        if first in "\"'":
            return self._string()
        match = _NUMBER.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
            return int(match.group())
        return str(self._scalar())

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        while self._peek() != "]":
            items.append(self._value(depth + 1))
            self._end_of_item("]")
        self._at += 1
        return items

    def _end_of_item(self, closing: str) -> None:
        following = self._peek()
        if following == ",":
            self._at += 1
        elif following != closing:
            raise self._fault(f"expected ',' or '{closing}'")

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._fault("string without an end")
        self._at = match.end()
        raw = match.group(1) if match.group(1) is not None else match.group(2)
        if "\\" not in raw:
            return raw
        text = _ESCAPE.sub(_unescape, raw)
        # Surrogate pairs written as two escapes become one character.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def _scalar(self) -> Any:
        match = _SCALAR.match(self._text, self._at)
        if match is None:
            raise self._fault(f"unexpected {self._text[self._at]!r}")
        self._at = match.end()
        word = match.group()
        if word in ("true", "false"):
            return word == "true"
        if word == "null":
            return None
        if word[0] == "-" or word[0].isdigit():
            return float(word) if any(mark in word for mark in ".eE") else int(word)
        raise self._fault(f"unexpected word {word[:20]!r}")


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _PLAIN_ESCAPES.get(code, code)


def _mentions_reference(data: bytes | str) -> bool:
    return (b"$ref" in data) if isinstance(data, bytes) else ("$ref" in data)


def _resolve(root: Any) -> Any:
    def walk(value: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            return None
        if isinstance(value, dict):
            path = value.get("$ref")
            if len(value) == 1 and isinstance(path, str):
                return _at_path(root, path)
            return {key: walk(member, depth + 1) for key, member in value.items()}
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        return value

    return walk(root, 0)


def _at_path(root: Any, path: str) -> Any:
    """Value a reference points at, `None` for one we cannot follow."""
    value = root
    for name, index in _REFERENCE.findall(path):
        if index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        elif name and isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    return value


def _write(value: Any, pieces: list[str], line: str, standard: bool) -> None:
    kind = type(value)  # The usual ones first: tables have tens of thousands of values.
    if kind is str:
        pieces.append(encode_basestring(value))
    elif kind is int:
        pieces.append(str(value))
    elif kind is Written:
        pieces.append(value)
    elif kind is dict or isinstance(value, Mapping):
        _write_object(value, pieces, line, standard)
    elif isinstance(value, str):
        pieces.append(encode_basestring(value))
    elif value is None:
        pieces.append("null")
    elif isinstance(value, bool):
        pieces.append("true" if value else "false")
    elif isinstance(value, (int, float)):
        pieces.append(str(int(value)) if isinstance(value, int) else repr(value))
    elif isinstance(value, Queue):
        _write_object(queue_value(value), pieces, "", standard)
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        pieces.append("[")
        for number, item in enumerate(items):
            pieces.append(("," if number else "") + (line + "\t" if line else ""))
            _write(item, pieces, line + "\t" if line else "", standard)
        pieces.append((line if line and value else "") + "]")
    else:
        _write_object(msgspec.to_builtins(value), pieces, line, standard)


def _write_object(value: Mapping[Any, Any], pieces: list[str], line: str, standard: bool) -> None:
    inner = line + "\t" if line else ""
    pieces.append("{")
    first = True
    for key, member in value.items():
        if member is None:
            continue  # RocketMQ: fields without a value are left out.
        pieces.append(("" if first else ",") + inner)
        first = False
        if isinstance(key, Queue):
            _write_object(queue_value(key), pieces, "", standard)
        elif isinstance(key, int) and not standard:
            pieces.append(str(key))
        else:
            pieces.append(encode_basestring(str(key)))
        pieces.append(":")
        _write(member, pieces, inner, standard)
    pieces.append(("" if first else line) + "}")


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))

"""Settings: defaults, then a TOML file, then the environment, then flags, into one frozen dataclass.

    [broker]                                    section of the file
    flush = "durable"                           key = field of the dataclass
    segment_bytes = "64MiB"                     fields that count bytes also take KiB, MiB and GiB
    [broker.store]                              a field that is itself a dataclass

    KAPPAMQ_BROKER_FLUSH=async                  the same key in the environment
    KAPPAMQ_BROKER_STORE_SEGMENT_BYTES=64MiB

Knows no component: the caller names the dataclass and the section. RocketMQ's `key=value` files are read by
`load_properties` with a table of the caller's that says which key means what.
"""

import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kappamq.errors import ConfigError

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "KAPPAMQ_"
FILE_BYTES_MAX: Final = 1024 * 1024
"""A settings file larger than this is something else."""

_SIZE = re.compile(r"(\d+)\s*(k|m|g)i?b?", re.IGNORECASE)
_SIZE_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_PROPERTY_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class PropertyRule:
    """What one key of a RocketMQ settings file means here: our key (dots for nested ones) and how to read its text."""

    key: str
    convert: Callable[[str], object] = str


@dataclass(frozen=True, slots=True)
class _Given:
    """A value and where the user wrote it."""

    value: object
    source: str


_Tree = dict[str, "_Given | _Tree"]


def load(
    kind: type[T],
    *,
    section: str,
    file: Path | None = None,
    values: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> T:
    """Settings of one component. `overrides` (flags) win over the environment, which wins over the file.

    `values` stand for a file of another kind that was read already (`load_properties`). An override that is `None`
    counts as not given. Raises `ConfigError` that names the place and the nearest spelling.
    """
    tree: _Tree = {}
    if file is not None:
        _merge(tree, _file_values(file, section), lambda path: f"{path} in {file}", (section,))
    _merge(tree, values or {}, lambda path: f"{path} in the settings file", (section,))
    for name, path in _environment_keys(kind, section, environment or {}):
        _put(tree, path, _Given((environment or {})[name], name))
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    _merge(tree, given, lambda path: f"{path} (flag)", (section,))
    return _build(kind, tree, (section,))


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of Java properties text: `#` and `!` start comments, `=`, `:` or a blank ends a key."""
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split_property(line)
        values[key] = value
    return values


def load_properties(path: Path, rules: Mapping[str, PropertyRule]) -> tuple[dict[str, object], list[str]]:
    """Values of a RocketMQ `.conf` file under our keys, and the keys that mean nothing here.

    Nested keys (`store.segment_bytes`) become nested mappings, ready to be given to `load` as `values`.
    """
    values: dict[str, object] = {}
    ignored: list[str] = []
    for name, text in parse_properties(_read(path)).items():
        rule = rules.get(name)
        if rule is None:
            ignored.append(name)
            continue
        try:
            converted = rule.convert(text)
        except (ValueError, KeyError) as fault:  # A plain table's lookup makes a fine converter.
            raise ConfigError(f"{name} in {path} has the value {text!r}, which is not valid: {fault}") from None
        *parents, leaf = rule.key.split(".")
        table = values
        for parent in parents:
            table = cast(dict[str, object], table.setdefault(parent, {}))
        table[leaf] = converted
    return values, ignored


def check_listen_host(host: str, *, insecure: bool) -> None:
    """Raise `ConfigError` for an address that others can reach, unless the user insists: nobody is authenticated."""
    if insecure or is_loopback(host):
        return
    raise ConfigError(
        f"listening on {host or 'every address'} lets anybody on the network read and write, because there is no "
        "authentication yet: listen on 127.0.0.1, or add --insecure if the network is trusted"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


# ── Where values come from ──────────────────────────────────────────────────────────────────────────────────────────


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"settings file {path} is larger than {FILE_BYTES_MAX} bytes: is it the right file?")
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise ConfigError(f"cannot read settings file {path} ({fault.strerror}): check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"settings file {path} is not UTF-8 text: is it the right file?") from None


def _file_values(file: Path, section: str) -> Mapping[str, object]:
    try:
        document = tomllib.loads(_read(file))
    except tomllib.TOMLDecodeError as fault:
        raise ConfigError(f"settings file {file} is not TOML: {fault}") from None
    if section not in document:
        near = difflib.get_close_matches(section, document, n=1)
        if near:
            raise ConfigError(f"section [{near[0]}] in {file} is unknown: did you mean [{section}]?")
        return {}
    values = document[section]
    if not isinstance(values, dict):
        raise ConfigError(f"{section} in {file} is not a section: write [{section}] above its keys")
    return values


def _environment_keys(
    kind: type[Any], section: str, environment: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Variables that belong to the section, each with the path of its field."""
    prefix = f"{ENVIRONMENT_PREFIX}{section.upper()}_"
    known = {"_".join(path).upper(): path for path in _leaf_paths(kind, ())}
    for name in sorted(environment):
        if not name.startswith(prefix):
            continue
        path = known.get(name.removeprefix(prefix))
        if path is None:
            candidates = [prefix + suffix for suffix in known]
            raise ConfigError(f"environment variable {name} is unknown{_suggestion(name, candidates)}")
        yield name, path


def _leaf_paths(kind: type[Any], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, hint in _fields(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _leaf_paths(cast(type[Any], hint), (*above, name))
        else:
            yield (*above, name)


def _merge(tree: _Tree, values: Mapping[str, object], describe: Callable[[str], str], above: tuple[str, ...]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            branch = tree.setdefault(key, {})
            if isinstance(branch, _Given):
                branch = tree[key] = {}
            _merge(branch, value, describe, (*above, key))
        else:
            tree[key] = _Given(value, describe(".".join((*above, key))))


def _put(tree: _Tree, path: tuple[str, ...], given: _Given) -> None:
    *parents, leaf = path
    for parent in parents:
        branch = tree.setdefault(parent, {})
        assert isinstance(branch, dict)
        tree = branch
    tree[leaf] = given


# ── Typed values ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fields(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _build(kind: type[T], tree: _Tree, path: tuple[str, ...]) -> T:
    hints = _fields(kind)
    arguments: dict[str, Any] = {}
    for key, entry in tree.items():
        where = ".".join((*path, key))
        if key not in hints:
            source = entry.source if isinstance(entry, _Given) else where
            raise ConfigError(f"setting {source} is unknown{_suggestion(key, hints)}")
        hint = hints[key]
        if isinstance(entry, _Given):
            arguments[key] = entry.value if dataclasses.is_dataclass(hint) else _convert(key, hint, entry)
        elif dataclasses.is_dataclass(hint):
            arguments[key] = _build(cast(type[Any], hint), entry, (*path, key))
        else:
            raise ConfigError(f"setting {where} is one value, not a section")
    missing = [field.name for field in dataclasses.fields(cast(Any, kind)) if _is_missing(field, arguments)]
    if missing:
        where = ".".join((*path, missing[0]))
        raise ConfigError(f"setting {where} is missing: set {_variable(where)} or write it in the settings file")
    try:
        return kind(**arguments)
    except ValueError as fault:
        raise ConfigError(f"settings of {'.'.join(path)} are not valid: {fault}") from None


def _is_missing(field: "dataclasses.Field[Any]", arguments: Mapping[str, Any]) -> bool:
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return field.init and not has_default and field.name not in arguments


def _variable(path: str) -> str:
    return ENVIRONMENT_PREFIX + path.replace(".", "_").upper()


def _suggestion(name: str, known: Mapping[str, object] | list[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {near[0]}?" if near else f": known are {', '.join(sorted(known))}"


def _convert(key: str, hint: Any, given: _Given) -> object:
    try:
        return _typed(key, hint, given.value)
    except ValueError as fault:
        raise ConfigError(f"setting {given.source} is {given.value!r}, which is not valid: {fault}") from None


def _typed(key: str, hint: Any, value: object) -> object:
    """Value of the type that a field declares; text is read, other values are only checked."""
    origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise ValueError(f"choose one of {', '.join(map(str, get_args(hint)))}")
    if origin in (Union, types.UnionType):
        return _typed_union(key, get_args(hint), value)
    if origin in (tuple, frozenset):
        return _typed_sequence(key, hint, value)
    if hint is bool:
        return _typed_bool(value)
    if hint in (int, float):
        return _typed_number(key, hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return value if isinstance(value, hint) else hint(value)
        except ValueError:
            raise ValueError(f"choose one of {', '.join(str(member.value) for member in hint)}") from None
    if hint is Path and isinstance(value, str):
        return Path(value).expanduser()
    if isinstance(hint, type) and not isinstance(value, hint):
        raise ValueError(f"write {'text' if hint is str else f'a {hint.__name__}'}")
    return value


def _typed_union(key: str, hints: tuple[Any, ...], value: object) -> object:
    if value is None and type(None) in hints:
        return None
    reason = ValueError("no type fits")
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _typed(key, hint, value)
        except ValueError as fault:
            reason = fault
    if isinstance(value, str) and value.strip().lower() in ("", "none") and type(None) in hints:
        return None
    raise reason


def _typed_sequence(key: str, hint: Any, value: object) -> object:
    items = [item.strip() for item in re.split("[,;]", value) if item.strip()] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple, set, frozenset)):
        raise ValueError("write a list")
    inner = get_args(hint)[0]
    return get_origin(hint)(_typed(key, inner, item) for item in items)


def _typed_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("write true or false")


def _typed_number(key: str, hint: type[int] | type[float], value: object) -> float:
    if isinstance(value, bool):
        raise ValueError("write a number")
    if isinstance(value, str):
        size = _SIZE.fullmatch(value.strip()) if "bytes" in key else None
        if size is not None:
            return int(size.group(1)) * _SIZE_UNITS[size.group(2).lower()]
        try:
            return hint(value.replace("_", ""))
        except ValueError:
            raise ValueError("write a whole number" if hint is int else "write a number") from None
    if isinstance(value, int) or (hint is float and isinstance(value, float)):
        return hint(value)
    raise ValueError("write a whole number" if hint is int else "write a number")


# ── Java properties ─────────────────────────────────────────────────────────────────────────────────────────────────


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without blanks around them and without comments; a line that ends in one backslash goes on."""
    pending = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not pending and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _split_property(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=: \t":
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(" \t")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t")
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    def replace(match: "re.Match[str]") -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) == 5 else _PROPERTY_ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)

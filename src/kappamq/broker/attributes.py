"""Attributes of topics and groups: what an administrator may add, change and take away.

Changes are signed: `+key=value` adds or replaces, `-key` removes. Stored attributes carry no sign.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kappamq.errors import UsageError

ATTRIBUTES_MAX: Final = 32
_TEXT_MAX: Final = 256

Check = Callable[[str], bool]


def _one_of(*values: str) -> Check:
    return lambda value: value in values


def _is_number(value: str) -> bool:
    return value.removeprefix("-").isdigit() and len(value) <= 19


TOPIC_ATTRIBUTES: Final[Mapping[str, Check]] = {
    "message.type": _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"),
    "queue.type": _one_of("SimpleCQ", "BatchCQ"),
    "cleanup.policy": _one_of("DELETE", "COMPACTION"),
    "reserve.time": _is_number,
}
GROUP_ATTRIBUTES: Final[Mapping[str, Check]] = {"priority.factor": _is_number}
FIXED_ATTRIBUTES: Final = frozenset({"queue.type", "cleanup.policy"})
"""Attributes that a topic keeps from its creation on."""


def parse_attributes(text: str | None) -> dict[str, str]:
    """Signed changes of `+key=value,-key`."""
    changes: dict[str, str] = {}
    for piece in (text or "").split(","):
        word = piece.strip()
        if not word:
            continue
        key, equals, value = word.partition("=")
        if len(key) < 2 or key[0] != ("+" if equals else "-"):
            raise UsageError(f"attribute {word[:_TEXT_MAX]!r} is not understood: write +key=value or -key")
        if key in changes:
            raise UsageError(f"attribute {key[1:]!r} is given twice: give it once")
        changes[key] = value
    return changes


def alter_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str], *, known: Mapping[str, Check]
) -> dict[str, str]:
    """Attributes after signed changes; `current` is `None` when the topic or group is new."""
    result = dict(current or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        check = known.get(key)
        if sign not in ("+", "-") or check is None:
            raise UsageError(f"unsupported key: {key[:_TEXT_MAX]}. Known are {', '.join(known)}, signed + or -")
        if current is None and sign == "-":
            raise UsageError(f"only add attribute is supported while creating: leave {signed} out")
        if current is not None and key in FIXED_ATTRIBUTES and value != current.get(key):
            raise UsageError(f"attempt to update an unchangeable attribute. key: {key}: it stays as it was created")
        if sign == "-":
            result.pop(key, None)
        elif not check(value):
            raise UsageError(f"attribute {key} cannot be {value[:_TEXT_MAX]!r}: see the list of its values")
        else:
            result[key] = value
    return result

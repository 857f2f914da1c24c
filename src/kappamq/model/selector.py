"""Which messages a subscription wants: tag expressions (`a || b`) and SQL92 conditions behind one value.

The broker asks twice: `matches_tag_code` of a queue entry, before it reads the record; `matches` of the properties.
A tag subscription is decided by the code alone on the broker, and again by the exact tag at the consumer, since
codes collide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kappamq.errors import InvalidExpression
from kappamq.model.properties import Name, java_hash
from kappamq.model.sql import Condition, parse_condition

TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL_TAGS: Final = "*"
TAG_SEPARATOR: Final = "||"

TAG_CHARACTERS_MAX: Final = 8 * 1024
"""Longest tag expression."""

SELECTORS_CACHED: Final = 100
"""Parsed expressions that are kept, because pulls may carry theirs every time."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed subscription expression. `expression` is normalised: `*` for everything."""

    expression: str
    expression_type: str
    tags: frozenset[str]
    tag_codes: frozenset[int]
    condition: Condition | None

    @staticmethod
    def parse(expression: str | None, expression_type: str | None) -> "Selector":
        """Read an expression as it travels on the wire; raise `InvalidExpression` with its position.

        No type means TAG; no expression means every message (TAG only).
        """
        return _parse(expression, expression_type)

    @property
    def is_everything(self) -> bool:
        """Whether no message is ever filtered out."""
        return self.condition is None and not self.tags

    def matches_tag_code(self, tags_code: int) -> bool:
        """Whether a queue entry with this code can match: only the low 32 bits count; SQL cannot tell yet."""
        return not self.tag_codes or _signed_32(tags_code) in self.tag_codes

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches."""
        if self.condition is not None:
            return self.condition.matches(properties)
        return not self.tags or properties.get(Name.TAGS) in self.tags


def retry_selector(conditions: Mapping[str, Condition]) -> Selector:
    """For messages that come again: each must meet the condition of the topic it came from, if there is one."""

    def evaluate(properties: Mapping[str, str]) -> bool:
        condition = conditions.get(properties.get(Name.RETRY_TOPIC, ""))
        return condition is None or condition.matches(properties)

    text = "; ".join(f"{topic}: {condition.text}" for topic, condition in sorted(conditions.items()))
    return Selector(text, SQL92, frozenset(), frozenset(), Condition(text, evaluate))


@lru_cache(maxsize=SELECTORS_CACHED)
def _parse(expression: str | None, expression_type: str | None) -> Selector:
    if expression_type in (None, "", TAG):
        return _parse_tags(expression)
    if expression_type != SQL92:
        raise InvalidExpression(f"expression type {expression_type!r} is unknown: use {TAG!r} or {SQL92!r}")
    if expression is None or not expression.strip():
        raise InvalidExpression("SQL expression, position 1: it is empty: write a condition such as a > 5", position=1)
    return Selector(expression, SQL92, frozenset(), frozenset(), parse_condition(expression))


def _parse_tags(expression: str | None) -> Selector:
    if not expression or expression == ALL_TAGS:
        return Selector(ALL_TAGS, TAG, frozenset(), frozenset(), None)
    if len(expression) > TAG_CHARACTERS_MAX:
        raise InvalidExpression(
            f"tag expression of {len(expression)} characters is too long: use at most {TAG_CHARACTERS_MAX}",
            position=TAG_CHARACTERS_MAX + 1,
        )
    tags = frozenset(tag for piece in expression.split(TAG_SEPARATOR) if (tag := piece.strip()))
    if not tags:
        raise InvalidExpression(
            f"tag expression {expression!r}, position 1: it names no tag: write 'a || b', or '*' for every message",
            position=1,
        )
    return Selector(expression, TAG, tags, frozenset(map(java_hash, tags)), None)


def _signed_32(code: int) -> int:
    return ((code + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000

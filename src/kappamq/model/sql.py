"""SQL92 conditions over message properties: text in, a question that can be asked of properties out.

    or       := and (OR and)*
    and      := equality (AND equality)*
    equality := comparison ( "=" comparison | "<>" comparison | IS [NOT] NULL )*
    comparison := unary ( (">" | ">=" | "<" | "<=") unary
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN "(" string ("," string)* ")"
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string )*
    unary    := "+" unary | "-" unary | NOT unary | primary
    primary  := string | integer | float | TRUE | FALSE | NULL | property | "(" or ")"

NOT binds tighter than every comparison: `NOT a = 1` reads `(NOT a) = 1`.

Properties are texts. A condition is true, false or unknown (`None`); only true delivers. Where a text cannot be read as
the number beside it, RocketMQ raises and does not deliver: here that is a `ValueError` which ends in "no match".
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from kappamq.errors import InvalidExpression

SQL_CHARACTERS_MAX: Final = 8 * 1024
"""Longest text of a condition."""

SQL_DEPTH_MAX: Final = 64
"""Deepest nesting: of parentheses and signs while parsing, of operators in the condition."""

SQL_NODES_MAX: Final = 2048
"""Most values, properties and operators in one condition; a list after IN counts once."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the text. Its size decides how a property's text beside it is read (`read`)."""

    value: int | float
    read: Callable[[str], int | float]


Value: TypeAlias = bool | str | Number | None
Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value]


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. Equal texts are equal conditions."""

    text: str
    _evaluate: Evaluate = field(compare=False, repr=False)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is delivered: unknown and unreadable numbers count as no."""
        try:
            return self._evaluate(properties) is True
        except ValueError:
            return False


def parse_condition(text: str) -> Condition:
    """Parse SQL92 `text`; raise `InvalidExpression` that names the position (from 1) and what to do."""
    if len(text) > SQL_CHARACTERS_MAX:
        raise InvalidExpression(
            f"SQL expression of {len(text)} characters is too long: use at most {SQL_CHARACTERS_MAX}",
            position=SQL_CHARACTERS_MAX + 1,
        )
    return Condition(text, _Parser(_tokens(text)).parse())


# --- words ----------------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str  # "word" (a keyword), "property", "string", "integer", "float", "symbol" or "end"
    text: str  # keywords in upper case, the rest as written
    position: int  # of its first character, from 1

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        shown = self.text if len(self.text) <= 40 else self.text[:40] + "…"
        return shown if self.kind == "string" else f"'{shown}'"


_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

# Quantifiers over characters that could also end the token are possessive: one pass, no backtracking.
_TOKEN = re.compile(
    r"""
      (?P<blank>   [ \t\n\r\f]++ | --[^\n\r]*+ | /\*.*?\*/ )
    | (?P<float>   [0-9]++\.[0-9]*+(?:E[+-]?[0-9]++)? | \.[0-9]++(?:E[+-]?[0-9]++)? | [0-9]++E[+-]?[0-9]++ )
    | (?P<integer> [0-9]++L? )
    | (?P<string>  '(?:[^']|'')*+' )
    | (?P<word>    [A-Z_$][A-Z0-9_$]*+ )
    | (?P<symbol>  <> | <= | >= | [=<>+\-(),] )
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII | re.DOTALL,
)

_LEXICAL_HINTS: Final = (
    ("'", "this text has no end: close it with a single quote"),
    ("/*", "this comment has no end: close it with '*/'"),
    ('"', "texts stand in single quotes: write 'text'"),
    ("!=", "there is no '!=': write '<>'"),
)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    start = 0
    while start < len(text):
        found = _TOKEN.match(text, start)
        if found is None:
            hint = next((hint for sign, hint in _LEXICAL_HINTS if text.startswith(sign, start)), None)
            raise _error(start + 1, hint or f"{text[start]!r} has no meaning here: remove it or put it in quotes")
        kind, piece = found.lastgroup or "", found.group()
        if kind == "word" and piece.upper() in _KEYWORDS:
            tokens.append(_Token("word", piece.upper(), start + 1))
        elif kind != "blank":
            tokens.append(_Token("property" if kind == "word" else kind, piece, start + 1))
        start = found.end()
    tokens.append(_Token("end", "", len(text) + 1))
    return tokens


def _error(position: int, what: str) -> InvalidExpression:
    return InvalidExpression(f"SQL expression, position {position}: {what}", position=position)


# --- grammar --------------------------------------------------------------------------------------------------------


class _Kind(Enum):
    CONSTANT = auto()
    PROPERTY = auto()
    NEGATION = auto()  # of anything: RocketMQ does not see a constant in `-5` when it checks operands
    CONDITION = auto()


@dataclass(frozen=True, slots=True)
class _Node:
    kind: _Kind
    evaluate: Evaluate
    token: _Token  # where it starts
    depth: int
    value: Value = None  # of a constant

    @property
    def is_logical(self) -> bool:
        """Whether it is true, false or unknown by itself: a condition, or TRUE, FALSE, NULL."""
        return self.kind is _Kind.CONDITION or (
            self.kind is _Kind.CONSTANT and (self.value is None or isinstance(self.value, bool))
        )


class _Parser:
    """Recursive descent over the tokens of one text; bounded by `SQL_DEPTH_MAX` and `SQL_NODES_MAX`."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._open = 0
        self._nodes = 0

    def parse(self) -> Evaluate:
        condition = self._as_condition(self._either())
        token = self._peek
        if token.kind == "end":
            return condition.evaluate
        # RocketMQ: ignores what follows a complete expression; a filter that silently lost its tail helps nobody.
        hint = "join conditions with AND or OR"
        if token.text.upper() == "LIKE":
            hint = "there is no LIKE, use CONTAINS, STARTSWITH or ENDSWITH"
        raise _error(token.position, f"the expression is complete before {token}: {hint}, or remove the rest")

    # Tokens

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _accept(self, *texts: str) -> _Token | None:
        """Take the next token if it is one of these keywords or symbols."""
        token = self._peek
        return self._take() if token.kind in ("word", "symbol") and token.text in texts else None

    def _accept_negated(self, *texts: str) -> tuple[_Token, bool] | None:
        """Take `[NOT] text`; the flag tells whether NOT stood before it."""
        if found := self._accept(*texts):
            return found, False
        if self._peek.kind == "word" and self._peek.text == "NOT":
            following = self._tokens[self._next + 1]  # There is always one: the end follows every other token.
            if following.kind == "word" and following.text in texts:
                self._take()
                return self._take(), True
        return None

    def _expect(self, kind: str, text: str | None, what: str) -> _Token:
        token = self._peek
        if token.kind != kind or (text is not None and token.text != text):
            raise self._unexpected(what)
        return self._take()

    def _unexpected(self, what: str) -> InvalidExpression:
        token = self._peek
        place = f"after {self._tokens[self._next - 1]}" if self._next else "at the start"
        return _error(token.position, f"expected {what} {place} (found {token})" + _hint_for(token))

    # Nodes

    def _node(self, kind: _Kind, evaluate: Evaluate, token: _Token, *children: _Node, value: Value = None) -> _Node:
        self._nodes += 1
        if self._nodes > SQL_NODES_MAX:
            raise _error(token.position, f"more than {SQL_NODES_MAX} parts: shorten it, for example with IN (…)")
        depth = 1 + max((child.depth for child in children), default=0)
        if depth > SQL_DEPTH_MAX:
            here = self._tokens[self._next - 1].position
            raise _error(here, f"more than {SQL_DEPTH_MAX} operators within each other: write it flatter")
        return _Node(kind, evaluate, token, depth, value)

    def _condition(self, evaluate: Evaluate, *children: _Node) -> _Node:
        return self._node(_Kind.CONDITION, evaluate, children[0].token, *children)

    def _as_condition(self, node: _Node) -> _Node:
        if node.is_logical:
            return node
        if node.kind is _Kind.PROPERTY:
            evaluate = node.evaluate
            # RocketMQ: a bare property is never true, because its value is a text and not a boolean.
            return self._condition(lambda properties: None if evaluate(properties) is None else False, node)
        raise _error(node.token.position, f"{node.token} is a value, not a condition: compare it with something")

    # Rules, loosest first. Chains of OR and AND are one flat node each, so that long ones are not deep.

    def _either(self) -> _Node:
        parts = [self._all()]
        while self._accept("OR"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else self._joined(parts, _any_of)

    def _all(self) -> _Node:
        parts = [self._equality()]
        while self._accept("AND"):
            parts.append(self._equality())
        return parts[0] if len(parts) == 1 else self._joined(parts, _all_of)

    def _joined(self, parts: list[_Node], join: Callable[[tuple[Evaluate, ...]], Evaluate]) -> _Node:
        conditions = [self._as_condition(part) for part in parts]
        return self._condition(join(tuple(condition.evaluate for condition in conditions)), *conditions)

    def _equality(self) -> _Node:
        left = self._comparison()
        while found := self._accept("=", "<>", "IS"):
            if found.text == "IS":
                is_not = self._accept("NOT") is not None
                self._expect("word", "NULL", "NULL or NOT NULL")
                left = self._condition(_null_test(left.evaluate, expected=not is_not), left)
                continue
            right = self._comparison()
            _check_equality(left, right)
            equal = _equality_of(left.evaluate, right.evaluate)
            left = self._condition(equal if found.text == "=" else _not(equal), left, right)
        return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            if found := self._accept(*_ORDER_TESTS):
                right = self._unary()
                left = self._ordered(left, found.text, right)
            elif negatable := self._accept_negated("BETWEEN", "IN", *_TEXT_TESTS):
                found, negated = negatable
                if found.text == "BETWEEN":
                    left = self._between(left, negated=negated)
                elif found.text == "IN":
                    left = self._membership(left, negated=negated)
                else:
                    search = self._text(f"a text in single quotes for {found.text}")
                    test = _TEXT_TESTS[found.text]
                    left = self._condition(_text_test(left.evaluate, test, search, expected=not negated), left)
            else:
                return left

    def _ordered(self, left: _Node, symbol: str, right: _Node) -> _Node:
        for node in (left, right):
            _check_orderable(node, symbol)
        return self._condition(_order_test(left.evaluate, right.evaluate, _ORDER_TESTS[symbol]), left, right)

    def _between(self, left: _Node, *, negated: bool) -> _Node:
        low = self._unary()
        self._expect("word", "AND", "AND and the upper bound")
        high = self._unary()
        if negated:
            # RocketMQ: bounds in the wrong order are refused for BETWEEN only.
            parts = (self._ordered(left, "<", low), self._ordered(left, ">", high))
            return self._condition(_any_of(tuple(part.evaluate for part in parts)), *parts)
        parts = (self._ordered(left, ">=", low), self._ordered(left, "<=", high))
        if isinstance(low.value, Number) and isinstance(high.value, Number) and _order(low.value, high.value) > 0:
            raise _error(
                low.token.position, f"BETWEEN {low.token} AND {high.token} is empty: put the smaller one first"
            )
        return self._condition(_all_of(tuple(part.evaluate for part in parts)), *parts)

    def _membership(self, left: _Node, *, negated: bool) -> _Node:
        if left.kind is not _Kind.PROPERTY:
            raise _error(
                left.token.position, f"IN needs a property before it (found {left.token}): write name IN ('a')"
            )
        self._expect("symbol", "(", "'(' and a list of texts")
        texts = {self._text("a text in single quotes")}
        while self._accept(","):
            texts.add(self._text("a text in single quotes"))
        self._expect("symbol", ")", "',' or ')'")
        return self._condition(_membership_test(left.evaluate, frozenset(texts), expected=not negated), left)

    def _unary(self) -> _Node:
        sign = self._accept("+", "-", "NOT")
        if sign is None:
            return self._primary()
        self._enter(sign)
        operand = self._unary()
        self._open -= 1
        if sign.text == "+":
            return operand
        if sign.text == "-":
            return self._node(_Kind.NEGATION, _negation(operand.evaluate), sign, operand)
        condition = self._as_condition(operand)
        return self._node(_Kind.CONDITION, _not(condition.evaluate), sign, condition)

    def _primary(self) -> _Node:
        token = self._peek
        if token.kind == "property":
            name = self._take().text
            return self._node(_Kind.PROPERTY, lambda properties: properties.get(name), token)
        if self._accept("("):
            self._enter(token)
            inner = self._either()
            self._expect("symbol", ")", "')'")
            self._open -= 1
            return inner
        value = self._literal()
        return self._node(_Kind.CONSTANT, lambda _properties: value, token, value=value)

    def _enter(self, token: _Token) -> None:
        self._open += 1
        if self._open > SQL_DEPTH_MAX:
            raise _error(token.position, f"nested deeper than {SQL_DEPTH_MAX} levels: write it flatter")

    def _literal(self) -> Value:
        token = self._peek
        if token.kind == "string":
            return self._text("a text")
        if token.kind in ("integer", "float"):
            self._take()
            return _integer(token) if token.kind == "integer" else _float(token)
        if token.kind == "word" and token.text in _CONSTANTS:
            return _CONSTANTS[self._take().text]
        raise self._unexpected("a value")

    def _text(self, what: str) -> str:
        return self._expect("string", None, what).text[1:-1].replace("''", "'")


_CONSTANTS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}


def _hint_for(token: _Token) -> str:
    if token.kind == "end":
        return ": complete the expression"
    if token.kind == "word":
        return f": {token.text} is a keyword and cannot be a property name or a value"
    return ": put texts in single quotes and check the operators around it"


def _check_orderable(node: _Node, symbol: str) -> None:
    if node.is_logical or isinstance(node.value, str):
        hint = "write NOT (…)" if node.token.text == "NOT" else "compare numbers and properties"
        what = f"the condition at {node.token}" if node.kind is _Kind.CONDITION else str(node.token)
        raise _error(node.token.position, f"{what} cannot stand beside an ordering such as {symbol!r}: {hint}")


def _check_equality(left: _Node, right: _Node) -> None:
    for node in (left, right):
        if node.kind is _Kind.CONSTANT and node.value is None:
            raise _error(node.token.position, "NULL equals nothing: write IS NULL or IS NOT NULL")
    # RocketMQ: refuses a boolean literal on the left of another literal, and takes it on the right.
    constants = left.kind is _Kind.CONSTANT and right.kind is _Kind.CONSTANT
    if constants and isinstance(left.value, bool) and not isinstance(right.value, bool):
        raise _error(left.token.position, f"{left.token} cannot be compared with {right.token}: compare a property")


# --- numbers --------------------------------------------------------------------------------------------------------

_INTEGER_TEXT = re.compile(r"[+-]?[0-9]++")
_DOUBLE_TEXT = re.compile(
    r"[\x00-\x20]*+([+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?))[fFdD]?[\x00-\x20]*+"
)


def _read_integer(text: str, bits: int) -> int:
    if not _INTEGER_TEXT.fullmatch(text):
        raise ValueError("not an integer")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError("integer out of range")
    return value


def _read_i32(text: str) -> int:
    return _read_integer(text, 32)


def _read_i64(text: str) -> int:
    return _read_integer(text, 64)


def _read_double(text: str) -> float:
    found = _DOUBLE_TEXT.fullmatch(text)
    if found is None:
        raise ValueError("not a number")
    return float(found[1])


def _integer(token: _Token) -> Number:
    digits = token.text.rstrip("lL")
    if len(digits) > 1 and digits[0] == "0":
        raise _error(token.position, f"{token} starts with a zero: remove it, or quote it if it is a text")
    # The length is tested first because Python refuses to convert very long texts.
    value = int(digits) if len(digits) <= 19 else 1 << 63
    if value >= 1 << 63:
        raise _error(token.position, f"{token} does not fit 64 bits: use a float, or quote it if it is a text")
    return Number(value, _read_i32 if value < 1 << 31 else _read_i64)


def _float(token: _Token) -> Number:
    value = float(token.text)
    if value == 0 or math.isinf(value):
        # RocketMQ: the literal must lie between the smallest and the largest positive double, so 0.0 is refused too.
        raise _error(token.position, f"{token} is not between 4.9e-324 and 1.8e308: write 0 for zero")
    return Number(value, _read_double)


def _order_doubles(left: float, right: float) -> int:
    """Java's total order of doubles: -0.0 before 0.0, NaN equal to itself and after everything."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) - math.copysign(1, right)) if left == 0 else 0
    return math.isnan(left) - math.isnan(right)


def _order_numbers(left: int | float, right: int | float) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return _order_doubles(float(left), float(right))


def _order(left: str | Number, right: str | Number) -> int:
    """Compare two operands of which texts are read as numbers; `ValueError` if one cannot be."""
    if isinstance(left, Number):
        return _order_numbers(left.value, right.value if isinstance(right, Number) else left.read(right))
    if isinstance(right, Number):
        return _order_numbers(right.read(left), right.value)
    return _order_doubles(_read_double(left), _read_double(right))


# --- evaluation: each function builds the question that one operator asks ---------------------------------------------

_ORDER_TESTS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _any_of(parts: tuple[Evaluate, ...]) -> Evaluate:
    return _join(parts, decisive=True)


def _all_of(parts: tuple[Evaluate, ...]) -> Evaluate:
    return _join(parts, decisive=False)


def _join(parts: tuple[Evaluate, ...], *, decisive: bool) -> Evaluate:
    """OR (`decisive` is true) or AND (false): from left to right, the decisive value wins over unknown."""

    def evaluate(properties: Properties) -> Value:
        result: Value = not decisive
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _not(part: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else not value

    return evaluate


def _negation(part: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        # RocketMQ: the negative of anything but a number is unknown, also of a property that holds one.
        return Number(-value.value, value.read) if isinstance(value, Number) else None

    return evaluate


def _null_test(part: Evaluate, *, expected: bool) -> Evaluate:
    return lambda properties: (part(properties) is None) is expected


def _order_test(left: Evaluate, right: Evaluate, test: Callable[[int, int], bool]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        first = left(properties)
        second = right(properties)
        if first is None or second is None:
            return None
        assert not isinstance(first, bool)
        assert not isinstance(second, bool)  # The parser refuses conditions beside an ordering.
        return test(_order(first, second), 0)

    return evaluate


def _equality_of(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        first = left(properties)
        second = right(properties)
        # RocketMQ: two that are missing are equal, and nothing is equal to something on its left; only a missing left
        # side of something makes it unknown. So "'x' <> a" delivers messages without a, and "a <> 'x'" does not.
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return _equal(first, second)

    return evaluate


def _equal(left: bool | str | Number, right: bool | str | Number) -> bool:
    if isinstance(left, bool):
        if isinstance(right, str):
            # RocketMQ: reads a text as a boolean only when the text stands on the left.
            raise ValueError("a boolean on the left of a text")
        return left is right
    if isinstance(right, bool):
        return isinstance(left, str) and (left.lower() == "true") is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return _order(left, right) == 0


def _membership_test(part: Evaluate, texts: frozenset[str], *, expected: bool) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else (value in texts) is expected

    return evaluate


def _text_test(part: Evaluate, test: Callable[[str, str], bool], search: str, *, expected: bool) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        # RocketMQ: false and not unknown for a missing property and for an empty search, with or without NOT.
        return isinstance(value, str) and search != "" and test(value, search) is expected

    return evaluate

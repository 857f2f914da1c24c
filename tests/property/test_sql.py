"""Generated SQL conditions mean the same to the parser as to a naive evaluator of their tree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.errors import InvalidExpression
from kappamq.model.sql import parse_condition


@dataclass(frozen=True)
class Property:
    name: str


@dataclass(frozen=True)
class Literal:
    value: int | float | str | bool | None


@dataclass(frozen=True)
class Apply:
    """An operator: or, and, =, <>, <, <=, >, >=, between, in, contains…, is null, not, -; `negated` adds a NOT."""

    operator: str
    operands: tuple["Tree", ...]
    texts: tuple[str, ...] = ()
    negated: bool = False


Tree: TypeAlias = Property | Literal | Apply
Properties: TypeAlias = dict[str, str]

ORDERINGS = ("<", "<=", ">", ">=")
TEXT_TESTS = ("contains", "startswith", "endswith")
NAMES = ("a", "b", "c", "_x$1")
TEXTS = ("", "x", "abc", "it's", "true", "TRUE", "5", "5.0", "-3", "+7", "3000000000", "1e2", "NaN", " 5 ", "0", "-0.0")


# Printing, with as few parentheses as the grammar allows.

LEVELS = {"or": 0, "and": 1, "=": 2, "<>": 2, "is null": 2, "not": 4, "-": 4}


def level(tree: Tree) -> int:
    return LEVELS.get(tree.operator, 3) if isinstance(tree, Apply) else 5


def print_tree(tree: Tree, least: int, word: Callable[[str], str]) -> str:
    text = print_bare(tree, word)
    return f"({text})" if level(tree) < least else text


def print_bare(tree: Tree, word: Callable[[str], str]) -> str:
    if isinstance(tree, Property):
        return tree.name
    if isinstance(tree, Literal):
        return print_literal(tree.value, word)
    first = tree.operands[0]
    no = word("NOT ") if tree.negated else ""
    if tree.operator in ("or", "and"):
        joint = word(f" {tree.operator.upper()} ")
        return joint.join(print_tree(part, LEVELS[tree.operator] + 1, word) for part in tree.operands)
    if tree.operator == "not":
        return word("NOT ") + print_tree(first, 4, word)
    if tree.operator == "-":
        return "- " + print_tree(first, 4, word)
    if tree.operator == "is null":
        return print_tree(first, 2, word) + word(f" IS {no}NULL")
    if tree.operator in ("=", "<>"):
        return print_tree(first, 2, word) + f" {tree.operator} " + print_tree(tree.operands[1], 3, word)
    left = print_tree(first, 3, word)
    if tree.operator in ORDERINGS:
        return f"{left}{tree.operator}" + print_tree(tree.operands[1], 4, word)
    if tree.operator == "between":
        low, high = (print_tree(bound, 4, word) for bound in tree.operands[1:])
        return f"{left} {no}{word('BETWEEN')} {low} {word('AND')} {high}"
    quoted = [print_literal(text, word) for text in tree.texts]
    if tree.operator == "in":
        return f"{left} {no}{word('IN')} (" + ", ".join(quoted) + ")"
    return f"{left} {no}{word(tree.operator.upper())} {quoted[0]}"


def print_literal(value: int | float | str | bool | None, word: Callable[[str], str]) -> str:
    if value is None or isinstance(value, bool):
        return word({None: "NULL", True: "TRUE", False: "FALSE"}[value])
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


# The naive evaluator: Java's types are pairs of a type name and a value.


class UnreadableError(Exception):
    """A text is not the number that its neighbour needs."""


Java: TypeAlias = tuple[str, int | float | str | bool] | None
TRUE: Java = ("bool", True)
FALSE: Java = ("bool", False)


def truth(value: bool | None) -> Java:
    return None if value is None else ("bool", value)


def java_literal(value: int | float | str | bool | None) -> Java:
    if value is None:
        return None
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, str):
        return ("text", value)
    if isinstance(value, float):
        return ("double", value)
    return ("int" if abs(value) < 2**31 else "long", value)


def as_number(text: str, kind: str) -> int | float:
    try:
        if kind == "double":
            if text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity") and text.strip() != "NaN":
                raise UnreadableError
            return float(text)
        if text != text.strip() or "_" in text:
            raise UnreadableError
        number = int(text)
    except ValueError:
        raise UnreadableError from None
    limit = 2**31 if kind == "int" else 2**63
    if not -limit <= number < limit:
        raise UnreadableError
    return number


def double_key(number: float) -> tuple[bool, float, float]:
    return (math.isnan(number), 0.0 if math.isnan(number) else number, math.copysign(1, number) if number == 0 else 0)


def order(left: Java, right: Java) -> int:
    assert left is not None
    assert right is not None
    kinds = {left[0], right[0]}
    if kinds == {"text"}:
        kinds = {"double"}
    numeric = kinds - {"text"}
    kind = "double" if "double" in numeric else "long" if "long" in numeric else "int"
    numbers = []
    for one in (left, right):
        value = one[1]
        numbers.append(as_number(value, kind) if isinstance(value, str) else value)
    keys = [double_key(float(number)) if kind == "double" else (False, number, 0) for number in numbers]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def equal(left: Java, right: Java) -> Java:
    if left is None and right is None:
        return TRUE
    if left is None:
        return None
    if right is None:
        return FALSE
    if left[0] == right[0] and left[0] in ("bool", "text"):
        return truth(left[1] == right[1])
    if left[0] == "bool":
        if right[0] == "text":
            raise UnreadableError
        return FALSE
    if right[0] == "bool":
        return truth(left[0] == "text" and (str(left[1]).lower() == "true") == right[1])
    return truth(order(left, right) == 0)


def negate(value: Java) -> Java:
    if value is None:
        return None
    assert value[0] == "bool"
    return truth(not value[1])


def evaluate(tree: Tree, properties: Properties) -> Java:
    if isinstance(tree, Property):
        return ("text", properties[tree.name]) if tree.name in properties else None
    if isinstance(tree, Literal):
        return java_literal(tree.value)
    if tree.operator in ("or", "and"):
        return evaluate_chain(tree, properties)
    values = [evaluate(operand, properties) for operand in tree.operands]
    first = values[0]
    if tree.operator == "not":
        return negate(evaluate_condition(tree.operands[0], properties))
    if tree.operator == "-":
        return None if first is None or first[0] in ("bool", "text") else (first[0], -first[1])  # type: ignore[operator]
    if tree.operator == "is null":
        return truth((first is None) != tree.negated)
    if tree.operator in ("=", "<>"):
        result = equal(first, values[1])
        return result if tree.operator == "=" else negate(result)
    if tree.operator in ORDERINGS:
        return compare(tree.operator, first, values[1])
    if tree.operator == "between":
        low, high = ("<", ">") if tree.negated else (">=", "<=")
        parts = [lambda: compare(low, first, values[1]), lambda: compare(high, first, values[2])]
        return chain(parts, decisive=tree.negated)
    if tree.operator == "in":
        return None if first is None else truth((first[1] in tree.texts) != tree.negated)
    return text_test(tree, first)


def compare(operator: str, left: Java, right: Java) -> Java:
    if left is None or right is None:
        return None
    sign = order(left, right)
    return truth({"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[operator])


def text_test(tree: Apply, value: Java) -> Java:
    search = tree.texts[0]
    if value is None or value[0] != "text" or not search:
        return FALSE
    text = str(value[1])
    places = {
        "contains": search in text,
        "startswith": text[: len(search)] == search,
        "endswith": text.endswith(search),
    }
    return truth(places[tree.operator] != tree.negated)


def evaluate_condition(tree: Tree, properties: Properties) -> Java:
    value = evaluate(tree, properties)
    return FALSE if isinstance(tree, Property) and value is not None else value


def evaluate_chain(tree: Apply, properties: Properties) -> Java:
    # Binary steps from the left, as RocketMQ nests them; the parser under test has one flat node.
    parts = [partial(evaluate_condition, part, properties) for part in tree.operands]
    return chain(parts, decisive=tree.operator == "or")


def chain(parts: Sequence[Callable[[], Java]], *, decisive: bool) -> Java:
    if len(parts) == 1:
        return parts[0]()
    left = chain(parts[:-1], decisive=decisive)
    if left == ("bool", decisive):
        return left
    right = parts[-1]()
    if right == ("bool", decisive):
        return right
    return None if left is None or right is None else ("bool", not decisive)


def delivers(tree: Tree, properties: Properties) -> bool:
    try:
        return evaluate_condition(tree, properties) == TRUE
    except UnreadableError:
        return False


# Generators, of what the grammar and its operand checks accept.

properties_of = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS), max_size=4)
texts = st.sampled_from(TEXTS)
integers = st.integers(min_value=0, max_value=2**63 - 1) | st.sampled_from([0, 5, 7, 3_000_000_000])
floats = st.floats(min_value=5e-324, max_value=1e300) | st.sampled_from([5.0, 0.5, 100.0])
numbers = st.builds(Literal, integers | floats)
names = st.builds(Property, st.sampled_from(NAMES))
plain_operands = names | numbers
operands = plain_operands | st.builds(lambda operand: Apply("-", (operand,)), plain_operands)
truths = st.builds(Literal, st.sampled_from([True, False, None]))


def is_acceptable(tree: Tree) -> bool:
    """The operand checks that depend on both sides."""
    if not isinstance(tree, Apply):
        return True
    if tree.operator in ("=", "<>"):
        left, right = tree.operands
        if isinstance(left, Literal) and isinstance(right, Literal) and isinstance(left.value, bool):
            return isinstance(right.value, bool)
    if tree.operator == "between" and not tree.negated:
        low, high = tree.operands[1:]
        if isinstance(low, Literal) and isinstance(high, Literal):
            return order(java_literal(low.value), java_literal(high.value)) <= 0
    return True


def comparisons(conditions: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    equatable = operands | st.builds(Literal, texts | st.booleans()) | conditions.filter(lambda t: t != Literal(None))
    pairs = st.tuples(equatable, equatable)
    negated = st.booleans()
    return st.one_of(
        st.builds(Apply, st.sampled_from(["or", "and"]), st.lists(conditions, min_size=2, max_size=4).map(tuple)),
        st.builds(Apply, st.just("not"), st.tuples(conditions)),
        st.builds(Apply, st.sampled_from(["=", "<>"]), pairs),
        st.builds(Apply, st.sampled_from(ORDERINGS), st.tuples(operands, operands)),
        st.builds(Apply, st.just("is null"), st.tuples(equatable), st.just(()), negated),
        st.builds(Apply, st.just("between"), st.tuples(operands, operands, operands), st.just(()), negated),
        st.builds(Apply, st.just("in"), st.tuples(names), st.lists(texts, min_size=1, max_size=3).map(tuple), negated),
        st.builds(Apply, st.sampled_from(TEXT_TESTS), st.tuples(equatable), st.tuples(texts), negated),
    ).filter(is_acceptable)


trees = st.recursive(names | truths, comparisons, max_leaves=12)


@settings(max_examples=500, deadline=None)
@given(trees, st.lists(properties_of, min_size=1, max_size=4), st.sampled_from([str.upper, str.lower, str.title]))
def test_parsed_text_means_what_its_tree_means(
    tree: Tree, messages: list[Properties], word: Callable[[str], str]
) -> None:
    text = print_tree(tree, 0, word)
    condition = parse_condition(text)
    for properties in messages:
        assert condition.matches(properties) is delivers(tree, properties), text


PIECES = ["a", "'x'", "5", "1.5", "NOT", "AND", "OR", "BETWEEN", "IN", "(", ")", ",", "=", "<>", "<", "-", "+", "IS"]
PIECES += ["NULL", "TRUE", "CONTAINS", "--", "/*", "*/", "'", '"', "!", "é", "\n", "0", "0.0", "9" * 30]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join) | st.text(max_size=60), properties_of)
def test_any_text_parses_or_is_refused_with_a_position_inside_it(text: str, properties: Properties) -> None:
    position = refused_at(text)
    if position is None:
        assert parse_condition(text).matches(properties) in (True, False)
    else:
        assert 1 <= position <= len(text) + 1


def refused_at(text: str) -> int | None:
    try:
        parse_condition(text)
    except InvalidExpression as error:
        return error.position or 0
    return None

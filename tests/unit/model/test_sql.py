"""The SQL92 conditions of subscriptions: what they mean, what is refused, and where."""

import re

import pytest

from kappamq.errors import InvalidExpression
from kappamq.model.sql import SQL_CHARACTERS_MAX, SQL_DEPTH_MAX, SQL_NODES_MAX, parse_condition


def matches(text: str, **properties: str) -> bool:
    return parse_condition(text).matches(properties)


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        # Equality with texts is exact.
        ("a = 'x'", {"a": "x"}, True),
        ("a = 'x'", {"a": "X"}, False),
        ("a <> 'x'", {"a": "y"}, True),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a = b", {"a": "x", "b": "x"}, True),
        ("a = b", {"a": "5", "b": "5.0"}, False),
        ("A = 'x'", {"a": "x"}, False),
        ("$a_1 = 'x'", {"$a_1": "x"}, True),
        # A missing property is unknown, and unknown is not delivered.
        ("a = 'x'", {}, False),
        ("a <> 'x'", {}, False),
        ("a > 1", {}, False),
        ("NOT (a > 1)", {}, False),
        ("a BETWEEN 1 AND 2", {}, False),
        ("a NOT BETWEEN 1 AND 2", {}, False),
        ("a IN ('x')", {}, False),
        ("a NOT IN ('x')", {}, False),
        ("NOT (a IN ('x'))", {}, False),
        # But for equality: what is missing equals what is missing, and nothing on its left.
        ("'x' <> a", {}, True),
        ("'x' = a", {}, False),
        ("NOT (5 = a)", {}, True),
        ("NOT (a = 5)", {}, False),
        ("a = b", {}, True),
        ("a <> b", {}, False),
        ("a <> b", {"a": "x"}, True),
        ("a <> b", {"b": "x"}, False),
        # IS NULL is definite.
        ("a IS NULL", {}, True),
        ("a IS NULL", {"a": "x"}, False),
        ("a IS NOT NULL", {"a": "x"}, True),
        ("a IS NOT NULL", {}, False),
        ("(a > 1) IS NULL", {}, True),
        ("(a > 1) IS NULL", {"a": "x"}, False),
        ("NULL IS NULL", {}, True),
        ("TRUE IS NOT NULL", {}, True),
        # CONTAINS and its kin are false when there is nothing to look at or for, whatever NOT says before them.
        ("a CONTAINS 'b'", {"a": "abc"}, True),
        ("a CONTAINS 'B'", {"a": "abc"}, False),
        ("a NOT CONTAINS 'b'", {"a": "abc"}, False),
        ("a NOT CONTAINS 'x'", {"a": "abc"}, True),
        ("a CONTAINS ''", {"a": "abc"}, False),
        ("a NOT CONTAINS ''", {"a": "abc"}, False),
        ("a CONTAINS 'x'", {}, False),
        ("a NOT CONTAINS 'x'", {}, False),
        ("NOT (a CONTAINS 'x')", {}, True),
        ("a STARTSWITH 'ab'", {"a": "abc"}, True),
        ("a STARTSWITH 'bc'", {"a": "abc"}, False),
        ("a NOT STARTSWITH 'bc'", {"a": "abc"}, True),
        ("a ENDSWITH 'bc'", {"a": "abc"}, True),
        ("a NOT ENDSWITH 'bc'", {"a": "abc"}, False),
        ("'abc' CONTAINS 'b'", {}, True),
        ("5 CONTAINS '5'", {}, False),
        # Integers: the text must be one, of the literal's size.
        ("a = 5", {"a": "5"}, True),
        ("a = 5", {"a": "+5"}, True),
        ("a = 5", {"a": "005"}, True),
        ("a = 5", {"a": "5.0"}, False),
        ("a <> 5", {"a": "5.0"}, False),
        ("a <> 5", {"a": "abc"}, False),
        ("NOT (a = 5)", {"a": "abc"}, False),
        ("a = 5", {"a": " 5"}, False),
        ("a > 5", {"a": "2147483647"}, True),
        ("a > 5", {"a": "2147483648"}, False),
        ("a > 2147483648", {"a": "2147483649"}, True),
        ("a > 2147483648", {"a": "9223372036854775808"}, False),
        ("a = 0L", {"a": "0"}, True),
        ("a = 5L", {"a": "5"}, True),
        ("a = -5", {"a": "-5"}, True),
        ("a = - -5", {"a": "5"}, True),
        ("a = +5", {"a": "5"}, True),
        ("5 < a", {"a": "6"}, True),
        ("5 = 5.", {}, True),
        ("9007199254740993 = 9007199254740992.0", {}, True),
        # Floats: the text is read as Java reads a double.
        ("a = 5.0", {"a": "5"}, True),
        ("a < .5", {"a": "1e-1"}, True),
        ("a >= 5E3", {"a": "5000.0d"}, True),
        ("a = 5.5", {"a": " 5.5\t"}, True),
        ("a > 1.5", {"a": "Infinity"}, True),
        ("a > 1.5", {"a": "NaN"}, True),
        ("a < 1.5", {"a": "NaN"}, False),
        ("a > 1.5", {"a": "inf"}, False),
        ("a > 1.5", {"a": "1_000"}, False),
        # An ordering between two properties reads both as doubles.
        ("a < b", {"a": "5", "b": "10"}, True),
        ("a < b", {"a": "x", "b": "y"}, False),
        ("a >= b", {"a": "x", "b": "y"}, False),
        ("a < b", {"a": "-0.0", "b": "0.0"}, True),
        ("a <= b", {"a": "NaN", "b": "NaN"}, True),
        # Booleans: everything but "true" is false; a text on the right of a boolean is an error.
        ("a = TRUE", {"a": "True"}, True),
        ("a = TRUE", {"a": "yes"}, False),
        ("a = FALSE", {"a": "abc"}, True),
        ("a = FALSE", {}, False),
        ("TRUE = a", {"a": "true"}, False),
        ("NOT (TRUE = a)", {"a": "false"}, False),
        ("5 = TRUE", {}, False),
        ("5 <> TRUE", {}, True),
        ("(a > 1) = TRUE", {"a": "2"}, True),
        ("TRUE", {}, True),
        ("FALSE", {}, False),
        ("NULL", {}, False),
        # A bare property is never true.
        ("a", {"a": "true"}, False),
        ("NOT a", {"a": "true"}, True),
        ("NOT a", {}, False),
        ("a OR TRUE", {}, True),
        # The negative of a property is unknown.
        ("-a = 5", {"a": "-5"}, False),
        ("-a IS NULL", {"a": "-5"}, True),
        # Three values.
        ("a > 1 AND FALSE IS NULL", {}, False),
        ("(a > 1 AND FALSE) IS NULL", {}, False),
        ("(a > 1 AND TRUE) IS NULL", {}, True),
        ("(a > 1 OR FALSE) IS NULL", {}, True),
        ("a > 1 OR TRUE", {}, True),
        ("FALSE AND a > 1 OR TRUE", {}, True),
        # Errors end the evaluation, unless it was decided before.
        ("a > 1 OR TRUE", {"a": "x"}, False),
        ("TRUE OR a > 1", {"a": "x"}, True),
        ("NOT (FALSE AND a > 1)", {"a": "x"}, True),
        # BETWEEN and IN.
        ("a BETWEEN 1 AND 3", {"a": "1"}, True),
        ("a BETWEEN 1 AND 3", {"a": "3"}, True),
        ("a BETWEEN 1 AND 3", {"a": "4"}, False),
        ("a BETWEEN 1 AND 3 AND b = 'x'", {"a": "2", "b": "x"}, True),
        ("a BETWEEN 5 AND -5", {"a": "0"}, False),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "2"}, False),
        ("a NOT BETWEEN 3 AND 1", {"a": "2"}, True),
        ("a BETWEEN b AND c", {"a": "2", "b": "1", "c": "3"}, True),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x', 'y')", {"a": "z"}, True),
        ("(+a) IN ('x')", {"a": "x"}, True),
        # Precedence: NOT before comparisons, AND before OR.
        ("NOT a = 'x'", {"a": "y"}, False),
        ("NOT (a = 'x')", {"a": "y"}, True),
        ("TRUE OR TRUE AND FALSE", {}, True),
        ("(TRUE OR TRUE) AND FALSE", {}, False),
        # Writing.
        ("a=5AND b=6", {"a": "5", "b": "6"}, True),
        ("a between 1 And 3 aNd b iS nUlL", {"a": "2"}, True),
        ("a = 1 -- to the end", {"a": "1"}, True),
        ("a /* one * two ** */ = -- x\n 1", {"a": "1"}, True),
        ("a = '--x'", {"a": "--x"}, True),
        ("\t\r\n\fa = 'é\n'", {"a": "é\n"}, True),
    ],
)
def test_meaning(text: str, properties: dict[str, str], expected: bool) -> None:
    assert parse_condition(text).matches(properties) is expected


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 1, "expected a value at the start (found the end)"),
        ("a > AND b", 5, "expected a value after '>' (found 'AND')"),
        ("a = ", 5, "expected a value after '=' (found the end)"),
        ("a = 1 b", 7, "complete before 'b'"),
        ("a = 1)", 6, "complete before ')'"),
        ("a LIKE 'x%'", 3, "there is no LIKE"),
        ("a != 1", 3, "write '<>'"),
        ("a == 1", 4, "expected a value"),
        ('a = "x"', 5, "single quotes"),
        ("a = 'x", 5, "no end"),
        ("a = 'x''", 5, "no end"),
        ("a = 1 /* x", 7, "no end"),
        ("a = #", 5, "'#' has no meaning"),
        ("(a = 1", 7, "expected ')'"),
        ("a IS 5", 6, "expected NULL or NOT NULL"),
        ("a IN 'x'", 6, "expected '('"),
        ("a IN ()", 7, "expected a text in single quotes"),
        ("a IN (1)", 7, "expected a text in single quotes"),
        ("a IN ('x' 'y')", 11, "expected ',' or ')'"),
        ("a CONTAINS 5", 12, "expected a text in single quotes for CONTAINS"),
        ("a BETWEEN 1 OR 2", 13, "expected AND"),
        ("a NOT 'x'", 3, "complete before 'NOT'"),
        # Operands that RocketMQ refuses as well.
        ("a > 'x'", 5, "cannot stand beside an ordering"),
        ("TRUE < a", 1, "cannot stand beside an ordering"),
        ("a < NULL", 5, "cannot stand beside an ordering"),
        ("(a = 1) < 5", 2, "the condition at 'a' cannot stand"),
        ("NOT a > 5", 1, "write NOT (…)"),
        ("a = NULL", 5, "IS NULL"),
        ("NULL <> a", 1, "IS NULL"),
        ("TRUE = 5", 1, "cannot be compared with '5'"),
        ("5 IN ('x')", 1, "IN needs a property"),
        ("-a IN ('x')", 1, "IN needs a property"),
        ("a BETWEEN 3 AND 1", 11, "smaller one first"),
        ("a BETWEEN 3.5 AND 3", 11, "smaller one first"),
        ("a BETWEEN NULL AND 3", 11, "cannot stand"),
        ("a BETWEEN 'a' AND 'b'", 11, "cannot stand"),
        ("'x'", 1, "not a condition"),
        ("5", 1, "not a condition"),
        ("-5", 1, "not a condition"),
        ("-a", 1, "not a condition"),
        ("a = 1 AND 5", 11, "not a condition"),
        ("NOT 5", 5, "not a condition"),
        # Numbers.
        ("a = 0.0", 5, "write 0"),
        ("a = 1e999", 5, "4.9e-324"),
        ("a = 007", 5, "starts with a zero"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a = " + "9" * 5000, 5, "64 bits"),
        # Unicode letters that fold to ASCII ones are not letters of names.
        ("\u017f = 1", 1, "has no meaning"),
    ],
)
def test_refusal_names_position_and_remedy(text: str, position: int, says: str) -> None:
    with pytest.raises(InvalidExpression, match=re.escape(says)) as caught:
        parse_condition(text)
    assert caught.value.position == position
    assert str(caught.value).startswith(f"SQL expression, position {position}: ")


def test_largest_integer_is_accepted() -> None:
    assert matches("a = 9223372036854775807", a="9223372036854775807")


@pytest.mark.parametrize(
    "text",
    [
        "(" * SQL_DEPTH_MAX + "a" + ")" * SQL_DEPTH_MAX,
        "NOT " * (SQL_DEPTH_MAX - 2) + "a",
        "a" + " IS NULL" * (SQL_DEPTH_MAX - 1),
        " OR ".join(["a = 1"] * (SQL_NODES_MAX // 3)),
    ],
)
def test_at_the_limit(text: str) -> None:
    parse_condition(text).matches({"a": "1"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(" * (SQL_DEPTH_MAX + 1) + "a" + ")" * (SQL_DEPTH_MAX + 1), "nested deeper"),
        ("(" * SQL_CHARACTERS_MAX, "nested deeper"),
        ("-" + " -" * 4000 + "5 = a", "nested deeper"),
        ("NOT " * 2000 + "a", "nested deeper"),
        ("a" + " IS NULL" * SQL_DEPTH_MAX, "within each other"),
        ("a" + " = 1" * 2000, "within each other"),
        ("a" + " CONTAINS 'x'" * 600, "within each other"),
        (" OR ".join(["a=1"] * (SQL_NODES_MAX // 3 + 1)), "parts"),
        ("a = '" + "x" * SQL_CHARACTERS_MAX + "'", "too long"),
    ],
)
def test_beyond_the_limit(text: str, says: str) -> None:
    with pytest.raises(InvalidExpression, match=says) as caught:
        parse_condition(text)
    assert caught.value.position is not None


def test_long_numbers_are_read_in_linear_time() -> None:
    # The longest property there can be, made to defeat a backtracking pattern: seconds if it did.
    assert not matches("a > 1.5", a="1" * 32_000 + "x")
    assert not matches("a > 1", a="1" * 32_000)


def test_equal_texts_are_equal_conditions() -> None:
    assert parse_condition("a = 1") == parse_condition("a = 1")
    assert parse_condition("a = 1") != parse_condition("a = 2")
    assert len({parse_condition("a = 1"), parse_condition("a = 1")}) == 1

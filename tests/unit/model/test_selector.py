"""Tag expressions and the value that joins them with SQL."""

import pytest

from kappamq.errors import InvalidExpression
from kappamq.model.properties import java_hash
from kappamq.model.selector import SQL92, TAG, TAG_CHARACTERS_MAX, Selector


@pytest.mark.parametrize("expression", [None, "", "*"])
@pytest.mark.parametrize("expression_type", [None, "", TAG])
def test_everything(expression: str | None, expression_type: str | None) -> None:
    selector = Selector.parse(expression, expression_type)
    assert selector.expression == "*"
    assert selector.is_everything
    assert selector.matches_tag_code(0)
    assert selector.matches_tag_code(java_hash("TagA"))
    assert selector.matches({})
    assert selector.matches({"TAGS": "TagA"})


def test_tags_are_split_and_trimmed() -> None:
    selector = Selector.parse(" TagA ||TagB|| || TagA", TAG)
    assert selector.tags == {"TagA", "TagB"}
    assert selector.tag_codes == {2598919, 2598920}
    assert selector.expression == " TagA ||TagB|| || TagA"
    assert not selector.is_everything
    assert selector.matches_tag_code(2598919)
    assert not selector.matches_tag_code(2598921)
    assert not selector.matches_tag_code(0)
    assert selector.matches({"TAGS": "TagB"})
    assert not selector.matches({"TAGS": "TagC"})
    assert not selector.matches({})


def test_a_single_bar_is_part_of_a_tag() -> None:
    assert Selector.parse("a|b", None).tags == {"a|b"}


def test_equal_codes_are_told_apart_by_the_exact_tag() -> None:
    assert java_hash("Aa") == java_hash("BB")
    selector = Selector.parse("Aa", TAG)
    assert selector.matches_tag_code(java_hash("BB"))
    assert not selector.matches({"TAGS": "BB"})


@pytest.mark.parametrize("high_bits", [0, 1 << 32, -1 << 32])
def test_only_the_low_32_bits_of_a_code_count(high_bits: int) -> None:
    tag = "user_77"
    assert java_hash(tag) < 0
    assert Selector.parse(tag, TAG).matches_tag_code((java_hash(tag) & 0xFFFFFFFF) + high_bits)


@pytest.mark.parametrize("expression", ["||", " || ", "   "])
def test_no_tag_at_all(expression: str) -> None:
    with pytest.raises(InvalidExpression, match="names no tag") as caught:
        Selector.parse(expression, TAG)
    assert caught.value.position == 1


def test_too_long() -> None:
    assert Selector.parse("a" * TAG_CHARACTERS_MAX, TAG).tags
    with pytest.raises(InvalidExpression, match=f"at most {TAG_CHARACTERS_MAX}"):
        Selector.parse("a" * (TAG_CHARACTERS_MAX + 1), TAG)


def test_sql_is_decided_by_properties_only() -> None:
    selector = Selector.parse("price > 5 AND TAGS = 'TagA'", SQL92)
    assert not selector.is_everything
    assert selector.matches_tag_code(12345)
    assert selector.matches({"price": "6", "TAGS": "TagA"})
    assert not selector.matches({"price": "6"})


@pytest.mark.parametrize("expression", [None, "", "  "])
def test_empty_sql(expression: str | None) -> None:
    with pytest.raises(InvalidExpression, match="empty") as caught:
        Selector.parse(expression, SQL92)
    assert caught.value.position == 1


def test_unknown_type() -> None:
    with pytest.raises(InvalidExpression, match="'CLASS' is unknown: use 'TAG' or 'SQL92'"):
        Selector.parse("a", "CLASS")


def test_parsed_selectors_are_shared_and_comparable() -> None:
    assert Selector.parse("a || b", TAG) is Selector.parse("a || b", TAG)
    assert hash(Selector.parse("a > 1", SQL92)) == hash(Selector.parse("a > 1", SQL92))

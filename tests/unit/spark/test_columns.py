import pytest

from kappamq.errors import UsageError
from kappamq.spark.columns import ARROW_TYPES, COLUMNS, NOT_NULL, SPARK_TYPES, check_projection


def test_both_type_tables_have_the_same_columns() -> None:
    assert tuple(SPARK_TYPES) == COLUMNS == tuple(ARROW_TYPES)


def test_projection_keeps_the_users_order() -> None:
    assert check_projection([("body", "binary"), ("topic", "string")]) == ("body", "topic")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("value", "binary")], "no column 'value'"),
        ([("body", "string")], "'body' is binary, not string"),
        ([("body", "binary" + NOT_NULL)], "'body' may hold nulls"),
        ([], "no column"),
    ],
)
def test_wrong_schemas_are_explained(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_projection(fields)

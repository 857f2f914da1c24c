"""What the data source refuses before Spark has planned anything."""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kappamq.errors import UsageError
from kappamq.spark.source import RocketMQSource

WHERE = {"namesrvAddr": "127.0.0.1:9876"}


@pytest.mark.parametrize(
    "field",
    [
        StructField("body", BinaryType(), nullable=False),
        StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False)),
    ],
)
def test_no_column_is_promised_to_be_filled(field: StructField) -> None:
    source = RocketMQSource(WHERE | {"subscribe": "orders"})
    for reader in (source.reader, source.streamReader):
        with pytest.raises(UsageError, match=f"'{field.name}' may hold nulls"):
            reader(StructType([field]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("keys", IntegerType()), ("properties", MapType(StringType(), IntegerType())), ("flag", StringType())],
)
def test_columns_of_wrong_types_are_refused_before_anything_is_sent(name: str, kind: DataType) -> None:
    source = RocketMQSource(WHERE | {"topic": "orders"})
    schema = StructType([StructField("body", StringType()), StructField(name, kind)])
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(UsageError, match=f"column '{name}' is "):
            writer(schema, False)


def test_rows_that_change_are_for_another_sink() -> None:
    source = RocketMQSource(WHERE | {"topic": "orders"})
    with pytest.raises(UsageError, match=r"cannot be overwritten.*foreachBatch"):
        source.streamWriter(StructType([StructField("body", StringType())]), True)

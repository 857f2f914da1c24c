"""Dead letters that are chosen, and what the command line says of them."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from kappamq.model.properties import Name
from kappamq.spark.cli import _show, pipeline_app
from kappamq.spark.columns import DDL
from kappamq.spark.jobs import dead_letters
from kappamq.testing import ClusterAddresses
from tests.spark.reading import numbers

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def letters(spark: SparkSession) -> DataFrame:
    def letter(number: int, topic: str, cause: str | None) -> tuple[object, ...]:
        stored = MOMENT + timedelta(hours=number)
        properties = {"RETRY_TOPIC": topic} | ({Name.CAUSE: cause} if cause else {})
        where = ("%DLQ%billing", "broker-a", 0, number, stored, stored)
        return (
            *where,
            f"k{number} order-{number}",
            "paid",
            f"id{number}",
            16,
            properties,
            json.dumps({"n": number}).encode(),
        )

    rows = [
        letter(1, "orders", "TimeoutError: [/slow] 5 s"),
        letter(2, "orders", "KeyError: 'price'"),
        letter(3, "payments", "TimeoutError: [/slow] 5 s"),
        letter(4, "payments", None),
    ]
    return dead_letters.build(spark.createDataFrame(rows, DDL))


def test_letters_are_chosen(letters: DataFrame) -> None:
    assert numbers(dead_letters.choose(letters)) == [1, 2, 3, 4]
    assert numbers(dead_letters.choose(letters, topics=("orders",))) == [1, 2]
    assert numbers(dead_letters.choose(letters, causes=("Timeout", "price"))) == [1, 2, 3]
    assert numbers(dead_letters.choose(letters, keys=("order-2", "k4", "order"))) == [2, 4]
    start, end = MOMENT + timedelta(hours=2), MOMENT + timedelta(hours=4)
    assert numbers(dead_letters.choose(letters, start=start, end=end)) == [2, 3]
    assert numbers(dead_letters.choose(letters, topics=("payments",), causes=("[/slow]",))) == [3]


def test_causes_are_shown_as_they_are(letters: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    assert _show(dead_letters.summarise(letters), otherwise="")
    printed = capsys.readouterr().out
    assert "TimeoutError: [/slow] 5 s" in printed
    assert "originTopic" in printed
    assert "2026-03-01 13:00:00" in printed


def test_no_dead_letters_are_no_mistake(spark: SparkSession, cluster: ClusterAddresses) -> None:
    assert spark is not None, "commands take the session that runs"
    result = CliRunner().invoke(
        pipeline_app, ["dead-letters", "--group", "nobody", "-n", cluster.nameserver, "--redrive"]
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == "no dead letters\n0 letters sent again\n"

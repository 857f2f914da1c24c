"""The page about Spark names everything there is."""

from pathlib import Path

import pytest

from kappamq.spark import options
from kappamq.spark.cli import pipeline_app
from kappamq.spark.columns import COLUMNS
from kappamq.spark.encoding import COLUMNS_PASSED_OVER, COLUMNS_USED
from kappamq.spark.lake.options import LAKE_NAMES

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
JOBS = [command.name or command.callback.__name__ for command in pipeline_app.registered_commands if command.callback]


@pytest.mark.parametrize(
    "name",
    sorted(
        {*options.READ_NAMES, *options.WRITE_NAMES, *COLUMNS, *COLUMNS_USED, *COLUMNS_PASSED_OVER, *LAKE_NAMES, *JOBS}
    ),
)
def test_the_page_explains(name: str) -> None:
    assert name in PAGE

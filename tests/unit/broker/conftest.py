"""A broker's tables for tests of administration."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.admin_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "data")
    yield desk
    desk.close()

"""The door to administration."""

import asyncio

import pytest

from kappamq.admin.admin import Admin
from kappamq.errors import ConfigError, UsageError


@pytest.mark.parametrize(("nameservers", "error"), [("", ConfigError), ("nohost", UsageError)])
def test_addresses_are_checked_before_anything_starts(nameservers: str, error: type[Exception]) -> None:
    async def scenario() -> None:
        with pytest.raises(error):
            Admin(nameservers)

    asyncio.run(scenario())

"""What tests of Spark share: the kinds of their fixtures, and a look at the numbers that were sent."""

import json
from collections.abc import Callable

from pyspark.sql import DataFrame

import kappamq
from kappamq.admin.admin import Admin

Send = Callable[..., list[kappamq.SendReceipt]]
Read = Callable[..., DataFrame]


def numbers(frame: DataFrame) -> list[int]:
    """The numbers that `send` has put into the bodies, sorted."""
    return sorted(json.loads(row.body)["n"] for row in frame.select("body").collect())


async def make_queues(nameserver: str, topic: str, count: int) -> None:
    """Give a topic so many queues on every broker."""
    async with Admin(nameserver) as admin:
        await admin.topics.create(topic, queues=count)

"""Topics as tables, through a real Spark session and a real cluster."""

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kappamq
from kappamq.spark.columns import COLUMNS
from kappamq.testing import ClusterAddresses
from spark.conftest import Read, Send, numbers


def test_a_table_is_what_was_sent(read: Read, send: Send, topic: str) -> None:
    receipts = send(300)
    rows = read().collect()
    assert tuple(rows[0].asDict()) == COLUMNS
    found = {(row.broker, row.queueId, row.queueOffset): row for row in rows}
    assert len(found) == len(rows) == 300
    for number, receipt in enumerate(receipts):
        row = found[receipt.queue.broker, receipt.queue.queue_id, receipt.queue_offset]
        assert row.topic == topic
        assert json.loads(row.body) == {"n": number}
        assert row.keys == f"k{number}"
        assert row.tags == f"t{number % 3}"
        assert row.messageId == receipt.message_id
        assert row.reconsumeTimes == 0
        assert row.properties["number"] == str(number)
        assert row.bornTimestamp <= row.storeTimestamp


def test_projection(read: Read, send: Send) -> None:
    send(20)
    frame = read("body binary, queueOffset bigint")
    assert frame.columns == ["body", "queueOffset"]
    assert numbers(frame) == list(range(20))

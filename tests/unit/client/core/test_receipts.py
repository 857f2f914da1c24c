"""Receipts of replies."""

from __future__ import annotations

import pytest

from kappamq.client.core.receipts import SendStatus, receipt_of, split_receipt
from kappamq.errors import Busy, RemoteProtocolError
from kappamq.model.message import Queue
from kappamq.wire.command import Command

QUEUE = Queue("orders", "b", 1)
FIELDS = {"msgId": "X,Y", "queueId": "3", "queueOffset": "7", "transactionId": "T", "MSG_REGION": "R"}


def test_the_queue_is_the_one_that_the_broker_chose() -> None:
    receipt = receipt_of(Command(code=0, fields=FIELDS), "A,B", QUEUE, "address")
    assert receipt.queue == Queue("orders", "b", 3)
    assert (receipt.queue_offset, receipt.transaction_id, receipt.region) == (7, "T", "R")
    assert receipt.is_ok


def test_codes_10_to_12_are_results() -> None:
    for code in (10, 11, 12):
        receipt = receipt_of(Command(code=code, fields=FIELDS), "A,B", QUEUE, "address")
        assert receipt.status is SendStatus(code)
        assert not receipt.is_ok


def test_refusals_and_nonsense_raise() -> None:
    with pytest.raises(Busy):
        receipt_of(Command(code=2, remark="slow down"), "A,B", QUEUE, "address")
    with pytest.raises(RemoteProtocolError):
        receipt_of(Command(code=0, fields={"msgId": "X"}), "A,B", QUEUE, "address")


def test_a_batch_has_consecutive_receipts() -> None:
    first, second = split_receipt(receipt_of(Command(code=0, fields=FIELDS), "A,B", QUEUE, "address"))
    assert (first.message_id, first.offset_id, first.queue_offset) == ("A", "X", 7)
    assert (second.message_id, second.offset_id, second.queue_offset) == ("B", "Y", 8)

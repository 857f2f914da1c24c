"""What a producer gets back: where its message is and how safely."""

from enum import Enum
from typing import Final

from msgspec import Struct

from kappamq.model.message import Queue
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import error_of
from kappamq.wire.headers import decode_send_reply


class SendStatus(Enum):
    """How safely a message was stored. Everything but OK means: stored, but less safely than asked."""

    OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


_STATUS_BY_CODE: Final = {status.value: status for status in SendStatus}


class SendReceipt(Struct, frozen=True, gc=False):
    """A stored message. `message_id` was made by the producer, `offset_id` by the broker."""

    status: SendStatus
    message_id: str
    offset_id: str
    queue: Queue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str | None = None
    is_traced: bool = True
    """Whether the broker wants traces."""

    @property
    def is_ok(self) -> bool:
        """Whether it was stored as safely as asked."""
        return self.status is SendStatus.OK


def receipt_of(reply: Command, message_id: str, queue: Queue, address: str) -> SendReceipt:
    """Receipt of a reply. Raises what a refusal stands for."""
    status = _STATUS_BY_CODE.get(reply.code)
    if status is None:
        raise error_of(reply, address)
    header = decode_send_reply(reply.fields)
    if header.queue_id != queue.queue_id:
        queue = Queue(queue.topic, queue.broker, header.queue_id)
    return SendReceipt(
        status,
        message_id,
        header.offset_id,
        queue,
        header.queue_offset,
        header.transaction_id,
        header.recall_handle,
        header.region,
        header.trace_on != "false",
    )


def split_receipt(receipt: SendReceipt) -> list[SendReceipt]:
    """Receipts of the single messages of a batch: they have consecutive offsets in one queue."""
    offset_ids = receipt.offset_id.split(",")
    return [
        SendReceipt(
            receipt.status,
            message_id,
            offset_ids[position] if position < len(offset_ids) else "",
            receipt.queue,
            receipt.queue_offset + position,
            region=receipt.region,
            is_traced=receipt.is_traced,
        )
        for position, message_id in enumerate(receipt.message_id.split(","))
    ]

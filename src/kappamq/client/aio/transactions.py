"""Transactions: a half message that consumers see only when the producer has decided for it."""

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from kappamq.client.aio.calling import Raised, call_user
from kappamq.client.aio.tasks import OwnedTasks
from kappamq.client.core.receipts import SendReceipt
from kappamq.errors import TransportError
from kappamq.model.ids import parse_offset_id
from kappamq.model.message import Flags, Message, StoredMessage
from kappamq.net.connection import Connection
from kappamq.wire.headers import CheckTransactionRequest, EndTransactionRequest

log = logging.getLogger(__name__)


class Decision(Enum):
    """How a transaction ends. UNKNOWN leaves it open: the broker will ask the checker."""

    COMMIT = int(Flags.COMMITTED)
    ROLLBACK = int(Flags.ROLLED_BACK)
    UNKNOWN = 0

    @property
    def state_name(self) -> str:
        """RocketMQ's word for it, in traces."""
        return {Decision.COMMIT: "COMMIT_MESSAGE", Decision.ROLLBACK: "ROLLBACK_MESSAGE"}.get(self, "UNKNOW")


class TransactionReceipt(Struct, frozen=True):
    """A transactional message and what was decided about it."""

    receipt: SendReceipt
    decision: Decision


class Transaction:
    """A transaction while its block runs: the half message is stored, and nobody sees it yet."""

    def __init__(self, receipt: SendReceipt, message: Message) -> None:
        self.receipt = receipt
        self.message = message
        self._is_left_open = False

    @property
    def message_id(self) -> str:
        return self.receipt.message_id

    def leave_undecided(self) -> None:
        """Decide nothing at the end of the block, however it ends: the broker will ask the checker."""
        self._is_left_open = True

    def decision_after(self, error: BaseException | None) -> Decision:
        """How the transaction ends when its block ended with `error`.

        What is no `Exception` (a cancelled task, Ctrl-C) interrupted the local work at a point that nobody knows: the
        checker must look.
        """
        if self._is_left_open or (error is not None and not isinstance(error, Exception)):
            return Decision.UNKNOWN
        return Decision.COMMIT if error is None else Decision.ROLLBACK


Action: TypeAlias = Callable[[Message], Decision | Awaitable[Decision]]
"""The local part of a transaction; what it raises leaves the transaction open and reaches the caller."""

Checker: TypeAlias = Callable[[StoredMessage], Decision | Awaitable[Decision]]
"""Says how a transaction ended, perhaps one of another process of the group."""


class TransactionChecks:
    """Answers brokers that ask about open transactions."""

    def __init__(self, group: str, tasks: OwnedTasks, *, checks_max: int) -> None:
        self._group = group
        self._tasks = tasks
        self._checks_max = checks_max
        self._running = 0
        self.checker: Checker | None = None
        self.on_decided: Callable[[StoredMessage, Decision, str], None] | None = None
        """Told about answers: message, decision, address of the broker."""

    def on_check(self, connection: Connection, request: CheckTransactionRequest, message: StoredMessage) -> None:
        """A broker asks. Without a checker, or with too many questions open, it asks again later."""
        if self.checker is None:
            log.warning("transaction asked about, but there is no checker message_id=%s", message.message_id)
            return
        if self._running >= self._checks_max:
            log.warning("transaction check dropped: too many at once limit=%d", self._checks_max)
            return
        self._running += 1
        self._tasks.start(self._answer(self.checker, connection, request, message), name="transaction check")

    async def _answer(
        self, checker: Checker, connection: Connection, request: CheckTransactionRequest, message: StoredMessage
    ) -> None:
        try:
            decision = decision_of(await call_user(checker, message), message.message_id)
        finally:
            self._running -= 1
        answer = EndTransactionRequest(
            topic=message.topic,
            producer_group=self._group,
            half_queue_offset=request.half_queue_offset,
            half_log_offset=request.half_log_offset,
            decision=decision.value,
            from_check=True,
            message_id=message.message_id,
            transaction_id=request.transaction_id,
            broker=request.broker,
        )
        try:
            connection.send(answer.command())
        except TransportError as fault:
            log.warning("transaction check not answered message_id=%s fault=%s", message.message_id, fault)
            return
        if self.on_decided is not None:
            self.on_decided(message, decision, message.store_host)


def decision_of(outcome: "Decision | Raised[Decision]", message_id: str) -> Decision:
    """What a user's function decided; anything but a decision leaves the transaction open."""
    if isinstance(outcome, Decision):
        return outcome
    if isinstance(outcome, Raised):
        log.error("transaction function failed message_id=%s", message_id, exc_info=outcome.error)
    else:
        log.error("transaction function returned %r, not a Decision message_id=%s", outcome, message_id)
    return Decision.UNKNOWN


def end_request(group: str, receipt: SendReceipt, decision: Decision) -> EndTransactionRequest:
    """The request that decides a transaction whose half message was just sent."""
    _, log_offset = parse_offset_id(receipt.offset_id)
    return EndTransactionRequest(
        topic=receipt.queue.topic,
        producer_group=group,
        half_queue_offset=receipt.queue_offset,
        half_log_offset=log_offset,
        decision=decision.value,
        message_id=receipt.message_id,
        transaction_id=receipt.transaction_id,
        broker=receipt.queue.broker,
    )

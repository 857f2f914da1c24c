"""Decisions about transactions, and the questions of a broker that waits for one."""

import asyncio
import logging
import random
from collections.abc import Mapping

from kappamq.broker.appender import Appender
from kappamq.broker.members import Members
from kappamq.broker.router import Handler
from kappamq.broker.transactions import Half, Transactions, check_body, resumed
from kappamq.clock import Clock
from kappamq.errors import KappaError, Refused, StorageError, UsageError
from kappamq.model.ids import parse_offset_id
from kappamq.model.message import Flags, StoredMessage
from kappamq.model.names import GIVEN_UP_TOPIC, HALF_TOPIC
from kappamq.model.properties import Name
from kappamq.model.record import decode_record
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import CheckTransactionRequest, EndTransactionRequest, ResumeCheckRequest, decode_fields

log = logging.getLogger(__name__)


class TransactionHandlers:
    """Requests 37 and 323."""

    def __init__(self, *, transactions: Transactions, store: Store, appender: Appender, clock: Clock) -> None:
        self._transactions = transactions
        self._store = store
        self._appender = appender
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end, RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    async def end(self, connection: Connection, request: Command) -> Command | None:
        """Commit or roll back; the reply says that the decision is durable."""
        end = decode_fields(request.fields, EndTransactionRequest)
        if end.decision not in (0, Flags.COMMITTED, Flags.ROLLED_BACK):
            raise Refused(f"commitOrRollback is {end.decision}: use 8 (commit), 12 (roll back) or 0 (unknown)", code=1)
        if end.decision == 0:
            # RocketMQ: undecided yet gets no answer at all.
            if not request.is_one_way:
                connection.settle()
            return None
        message = await self._read(end.half_log_offset)
        self._check(end, message)
        # No await from here until the decision is on its way: two requests cannot both decide.
        half = self._transactions.find(message.queue_offset)
        if half is None or half.is_deciding:
            return self._repeated(request, end, message)
        try:
            if end.decision == Flags.COMMITTED:
                await self._transactions.commit(half, message)
            else:
                await self._transactions.roll_back(half)
        except KappaError as fault:
            log.warning("transaction not ended queue_offset=%d fault=%s", message.queue_offset, fault)
            raise
        return request.reply()

    async def _read(self, log_offset: int) -> StoredMessage:
        try:
            return decode_record(await asyncio.to_thread(self._store.read, log_offset))
        except StorageError as fault:
            raise Refused(
                f"Find prepared transaction message failed: {fault}", code=ResponseCode.SYSTEM_ERROR
            ) from None

    def _check(self, end: EndTransactionRequest, message: StoredMessage) -> None:
        """Raise unless the request speaks of this half message, in the name of its group and in time."""
        if message.topic != HALF_TOPIC:
            raise Refused(f"the message at log offset {message.log_offset} is no half message", code=1)
        if message.properties.get(Name.PRODUCER_GROUP) != end.producer_group:
            raise Refused(f"The producer group wrong: the transaction was not opened by {end.producer_group!r}", code=1)
        if message.queue_offset != end.half_queue_offset:
            raise Refused(
                f"The transaction state table offset wrong: it is {message.queue_offset}, not {end.half_queue_offset}",
                code=1,
            )
        immunity = message.properties.get(Name.CHECK_IMMUNITY_SECONDS)
        if not end.from_check and immunity is not None and immunity.isdecimal():
            age_ms = self._clock.now_ms() - message.born_at_ms
            if age_ms > max(int(immunity) * 1000, self._transactions.timeout_ms):
                raise Refused(
                    f"the decision comes {age_ms} ms after the message, later than its time of {immunity} s: "
                    "wait to be asked",
                    code=ResponseCode.ILLEGAL_OPERATION,
                )

    def _repeated(self, request: Command, end: EndTransactionRequest, message: StoredMessage) -> Command:
        """Answer for a transaction that is no longer open."""
        if self._transactions.decision_of(message.queue_offset) == end.decision:
            return request.reply()
        raise Refused(
            f"the transaction of half message {message.queue_offset} has been decided already, or is given up",
            code=ResponseCode.SYSTEM_ERROR,
        )

    async def resume(self, _connection: Connection, request: Command) -> Command:
        """Ask again about a message that was given up."""
        resume = decode_fields(request.fields, ResumeCheckRequest)
        if not resume.msg_id:
            raise UsageError("msgId is missing: pass the offset id of a message in " + GIVEN_UP_TOPIC)
        _address, log_offset = parse_offset_id(resume.msg_id)
        message = await self._read(log_offset)
        if message.topic not in (GIVEN_UP_TOPIC, HALF_TOPIC):
            raise UsageError(f"message {resume.msg_id} is not of {GIVEN_UP_TOPIC}: only given-up messages are resumed")
        if message.topic == HALF_TOPIC and self._transactions.find(message.queue_offset) is not None:
            return request.reply(remark="the message is undecided and will be asked about anyway")
        await self._appender.store([resumed(message)])
        return request.reply()


def ask_producer(members: Members, half: Half, message: StoredMessage, *, broker: str) -> None:
    """Ask any live member of the producer group how a transaction ended; it answers with request 37."""
    group = message.properties.get(Name.PRODUCER_GROUP, "")
    connections = [member.connection for member in members.producers(group) if member.connection.is_open]
    if not connections:
        log.info("undecided transaction: no producer is online group=%s queue_offset=%d", group, half.queue_offset)
        return
    unique_id = message.properties.get(Name.UNIQUE_ID)
    question = CheckTransactionRequest(
        half_queue_offset=half.queue_offset,
        half_log_offset=half.log_offset,
        message_id=unique_id,
        transaction_id=unique_id,
        offset_id=message.offset_id,
        topic=message.properties.get(Name.REAL_TOPIC),
        broker=broker,
    )
    random.choice(connections).send(question.command(body=check_body(half, message)))

"""Reading messages: pull with long polling."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass

from kappamq.broker.cold_reads import ColdReads
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.groups import Groups
from kappamq.broker.members import Members
from kappamq.broker.parked_pulls import ParkedPull, ParkedPulls
from kappamq.broker.router import Answer, Handler, answer_fault
from kappamq.broker.statistics import Statistics
from kappamq.broker.topics import Topics
from kappamq.clock import Clock
from kappamq.errors import InvalidExpression, KappaError, NotPermitted, Refused
from kappamq.model.config import GroupConfig, Permission
from kappamq.model.names import RETRY_PREFIX
from kappamq.model.selector import Selector, retry_selector
from kappamq.model.sql import Condition
from kappamq.model.subscription import MessageModel
from kappamq.net.connection import Connection
from kappamq.store.reading import Fetched, FetchLimit, FetchStatus
from kappamq.store.store import Store
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import PullRequest, decode_fields

_READ = int(Permission.READ)  # Plain numbers: flag enums are slow on the hot path.

CODE_BY_STATUS: dict[FetchStatus, ResponseCode] = {
    FetchStatus.FOUND: ResponseCode.SUCCESS,
    FetchStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    FetchStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    FetchStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    FetchStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    FetchStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRules:
    """Limits and switches of pulling."""

    permission: int
    count_max: int
    bytes_max: int
    cold_bytes_max: int
    long_polling: bool
    short_polling_ms: int
    sql_filter: bool
    filter_retries: bool
    slave_read: bool
    hot_bytes: int


class PullHandlers:
    """Requests 11 and 361."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        members: Members,
        offsets: CommittedOffsets,
        store: Store,
        cold: ColdReads,
        statistics: Statistics,
        rules: PullRules,
        clock: Clock,
        parked_max: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._store = store
        self._cold = cold
        self._statistics = statistics
        self._rules = rules
        self._tasks = tasks
        self.parked = ParkedPulls(clock=clock, parked_max=parked_max, rerun=self._rerun)

    @property
    def rules(self) -> PullRules:
        return self._rules

    def use(self, rules: PullRules) -> None:
        """Follow these rules from now on."""
        self._rules = rules

    def table(self) -> Mapping[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, request: Command) -> "Answer | Coroutine[None, None, Answer]":
        """Answer with the next records of one queue; wait once if there are none yet."""
        pull = decode_fields(request.fields, PullRequest)
        selector = self.selector_of(pull)
        if pull.flags & PullRequest.COMMIT_OFFSET and pull.committed_offset >= 0:
            self._offsets.commit(pull.topic, pull.group, pull.queue_id, pull.committed_offset)
        self._offsets.pulled(pull.topic, pull.group, pull.queue_id, pull.start)
        parked = ParkedPull(connection, request, pull, selector)
        if self._store.is_behind(pull.topic, pull.queue_id, pull.start):
            return self._pull_behind(parked, may_park=True)
        # No await from here to the park: an append cannot slip in between.
        return self._finish(parked, self._fetch(pull, selector, self._rules.bytes_max), may_park=True)

    def answer(self, connection: Connection, request: Command) -> None:
        """Answer a pull that was taken from its bytes and counted as unanswered before."""
        self._tasks.create_task(self._answer(connection, request), name="pull")

    async def _answer(self, connection: Connection, request: Command) -> None:
        try:
            answer = self.pull(connection, request)
            if isinstance(answer, Coroutine):
                answer = await answer
        except KappaError as fault:
            answer_fault(connection, request, fault)
            return
        if answer is not None:
            connection.reply(answer)

    async def _pull_behind(self, parked: ParkedPull, *, may_park: bool) -> Answer:
        """Who is behind waits for its turn, and until threads have got ready what is not in memory."""
        pull = parked.pull
        bytes_max = self._rules.cold_bytes_max
        await self._cold.turn()
        if self._is_cold(pull):
            await self._cold.load(pull.topic, pull.queue_id, pull.start)
        if parked.selector.condition is None and not self._is_cold(pull):
            # No await from here to the park.
            fetched = self._fetch(pull, parked.selector, bytes_max)
            self._cold.ahead(pull.topic, pull.queue_id, fetched.next_offset)
            return self._finish(parked, fetched, may_park=may_park)
        # Damaged, very large, or a condition to be evaluated for many: still nothing for the event loop.
        fetched = await asyncio.to_thread(self._fetch, pull, parked.selector, bytes_max)
        if fetched.status is not FetchStatus.FOUND and self._store.max_offset(pull.topic, pull.queue_id) > pull.start:
            fetched = self._fetch(pull, parked.selector, bytes_max)
        return self._finish(parked, fetched, may_park=may_park)

    def _rerun(self, parked: ParkedPull) -> None:
        """Answer a pull that has waited."""
        if not parked.connection.is_open:
            return
        pull = parked.pull
        if self._store.is_behind(pull.topic, pull.queue_id, pull.start):
            self._tasks.create_task(self._answer_behind(parked), name="cold-pull")
            return
        try:
            fetched = self._fetch(pull, parked.selector, self._rules.bytes_max)
        except KappaError as fault:
            answer_fault(parked.connection, parked.request, fault)
            return
        answer = self._finish(parked, fetched, may_park=False)
        if answer is not None:
            parked.connection.reply(answer)

    async def _answer_behind(self, parked: ParkedPull) -> None:
        try:
            answer = await self._pull_behind(parked, may_park=False)
        except KappaError as fault:
            answer_fault(parked.connection, parked.request, fault)
            return
        if answer is not None:
            parked.connection.reply(answer)

    def _is_cold(self, pull: PullRequest) -> bool:
        return self._store.is_cold(pull.topic, pull.queue_id, pull.start, self._count(pull))

    def _count(self, pull: PullRequest) -> int:
        return min(max(pull.count_max, 1), self._rules.count_max)

    def _fetch(self, pull: PullRequest, selector: Selector, bytes_max: int) -> Fetched:
        limit = FetchLimit(count=self._count(pull), bytes_max=bytes_max)
        return self._store.fetch(
            pull.topic, pull.queue_id, pull.start, limit=limit, selector=None if selector.is_everything else selector
        )

    def _finish(self, parked: ParkedPull, fetched: Fetched, *, may_park: bool) -> Answer:
        """Turn what the store said into a reply, or let the pull wait."""
        pull = parked.pull
        reset = self._offsets.take_reset(pull.topic, pull.group, pull.queue_id)
        if reset is not None:
            return _reply(parked.request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fetched, next_offset=reset)
        code = CODE_BY_STATUS[fetched.status]
        if fetched.status in _EMPTY and pull.start != 0:
            code = ResponseCode.PULL_OFFSET_MOVED
        if code == ResponseCode.PULL_NOT_FOUND:
            self._statistics.get_miss += 1
            if may_park and pull.flags & PullRequest.SUSPEND and pull.suspend_ms > 0 and not self.parked.is_full:
                wait_ms = pull.suspend_ms if self._rules.long_polling else self._rules.short_polling_ms
                self.parked.park(parked, wait_ms=wait_ms)
                return None
        elif code == ResponseCode.SUCCESS:
            self._statistics.fetched(pull.topic, pull.group, fetched.count, fetched.bytes)
        reader = self._suggested_reader(pull, fetched) if self._rules.slave_read else "0"
        return _reply(
            parked.request, code, fetched.status.name, fetched, next_offset=fetched.next_offset, reader=reader
        )

    def _suggested_reader(self, pull: PullRequest, fetched: Fetched) -> str:
        """Who should serve the next pull: one who reads what is not in memory here any more had better ask a slave."""
        group = self._groups.get(pull.group)
        behind = self._store.max_log_offset - fetched.last_log_offset if fetched.status in _LOOKED_AT else 0
        is_far_behind = behind > self._rules.hot_bytes
        return str(group.which_broker_when_consume_slowly if is_far_behind else group.broker_id)

    def selector_of(self, pull: PullRequest) -> Selector:
        """Which messages a pull wants; raises what a pull that may not be answered is told."""
        return self._selector(pull, self._check(pull))

    # ── Checks ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check(self, pull: PullRequest) -> GroupConfig:
        if not self._rules.permission & _READ:
            raise NotPermitted("the broker pulling message is forbidden")
        group = self._groups.get_or_create(pull.group)
        if not group.consume_enable:
            raise NotPermitted(f"subscription group no permission, {pull.group}: it is disabled, enable it first")
        self._topics.check_queue(self._topics.get(pull.topic), pull.queue_id)
        return group

    def _selector(self, pull: PullRequest, group: GroupConfig) -> Selector:
        """The filter of this pull: its own, or the one of the group's heartbeats."""
        if self._rules.filter_retries and pull.topic.startswith(RETRY_PREFIX):
            conditions = self._conditions(pull.group)
            if conditions:
                return retry_selector(conditions)
        if pull.flags & PullRequest.SUBSCRIPTION:
            expression, kind = pull.subscription, pull.expression_type
        else:
            expression, kind = self._subscribed(pull, group)
        if kind not in (None, "", "TAG") and not self._rules.sql_filter:
            raise Refused(f"The broker does not support consumer to filter message by {kind}", code=1)
        try:
            return Selector.parse(expression, kind)
        except InvalidExpression as fault:
            raise InvalidExpression(f"parse the consumer's subscription failed: {fault}") from None

    def _conditions(self, group: str) -> dict[str, Condition]:
        """Conditions by topic of a group that filters by SQL. RocketMQ: retries are never filtered by tags."""
        online = self._members.consumer_group(group)
        if online is None or not self._rules.sql_filter:
            return {}
        selectors = {
            topic: Selector.parse(subscription.sub_string, subscription.expression_type)
            for topic, subscription in online.subscriptions.items()
            if subscription.expression_type not in (None, "", "TAG")
        }
        return {topic: selector.condition for topic, selector in selectors.items() if selector.condition is not None}

    def _subscribed(self, pull: PullRequest, group: GroupConfig) -> tuple[str | None, str | None]:
        online = self._members.consumer_group(pull.group)
        if online is None:
            raise Refused(
                f"the consumer's group info not exist, {pull.group}: send a heartbeat first",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if not group.consume_broadcast_enable and online.message_model is MessageModel.BROADCASTING:
            raise NotPermitted(f"the consumer group[{pull.group}] can not consume by broadcast way")
        topic = pull.topic
        subscription = online.subscriptions.get(topic)
        if subscription is None:
            raise Refused(
                f"the consumer's subscription not exist, group {pull.group} topic {topic}: subscribe first",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if subscription.sub_version < pull.subscription_version and pull.subscription:
            # RocketMQ: refused with 25 until the next heartbeat; the pull itself carries the newer expression.
            return pull.subscription, pull.expression_type
        if subscription.class_filter_mode:
            return "*", None
        return subscription.sub_string, subscription.expression_type


_LOOKED_AT = (FetchStatus.FOUND, FetchStatus.NO_MATCHED_MESSAGE, FetchStatus.MESSAGE_WAS_REMOVING)
_EMPTY = (FetchStatus.NO_MATCHED_LOGIC_QUEUE, FetchStatus.NO_MESSAGE_IN_QUEUE)


def _reply(
    request: Command, code: int, remark: str, fetched: Fetched, *, next_offset: int, reader: str = "0"
) -> Command:
    return request.reply(
        code,
        remark,
        fields=reply_fields(
            reader=reader,
            next_offset=str(next_offset),
            min_offset=str(max(fetched.min_offset, 0)),
            max_offset=str(max(fetched.max_offset, 0)),
        ),
        body=fetched.body if code == ResponseCode.SUCCESS else b"",
    )


def reply_fields(*, reader: str, next_offset: str, min_offset: str, max_offset: str) -> dict[str, str]:
    """What a consumer is told; `reader` is the broker that it should ask the next time."""
    return {
        "suggestWhichBrokerId": reader,
        "nextBeginOffset": next_offset,
        "minOffset": min_offset,
        "maxOffset": max_offset,
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }

"""What a pull is told besides the messages, and which retries it gets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from kappamq.broker.cold_reads import ColdReads
from kappamq.broker.handlers.pull import PullHandlers, PullRules
from kappamq.model.config import GroupConfig
from kappamq.model.record import decode_records
from kappamq.model.subscription import ClientConnection, ConsumerMembership, Subscription
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from kappamq.wire.headers import PullRequest
from tests.unit.broker.admin_desk import Desk, Peer, ask

RULES = PullRules(
    permission=6,
    count_max=32,
    bytes_max=1 << 18,
    cold_bytes_max=1 << 16,
    long_polling=True,
    short_polling_ms=1000,
    sql_filter=True,
    filter_retries=False,
    slave_read=True,
    hot_bytes=1000,
)


def pulls_of(desk: Desk, rules: PullRules = RULES) -> PullHandlers:
    return PullHandlers(
        topics=desk.topics,
        groups=desk.groups,
        members=desk.members,
        offsets=desk.offsets,
        store=desk.store,
        cold=ColdReads(desk.store),
        statistics=desk.statistics,
        rules=rules,
        clock=desk.clock,
        parked_max=10,
        tasks=cast(asyncio.TaskGroup, None),
    )


def pull(handlers: PullHandlers, topic: str, start: int, **more: Any) -> Command:
    request = PullRequest(
        group="g",
        topic=topic,
        queue_id=0,
        start=start,
        count_max=4,
        flags=PullRequest.SUBSCRIPTION,
        committed_offset=0,
        suspend_ms=0,
        subscription_version=0,
        subscription="*",
        **more,
    )
    return ask(handlers.table(), RequestCode.PULL_MESSAGE, request.command().fields)


def test_a_reader_far_behind_is_sent_to_the_slave_of_its_group(desk: Desk) -> None:
    desk.topic("orders", 1)
    desk.append("orders", 0, *[b"x" * 100] * 20)
    handlers = pulls_of(desk)
    assert pull(handlers, "orders", 0).fields["suggestWhichBrokerId"] == "1"
    assert pull(handlers, "orders", 19).fields["suggestWhichBrokerId"] == "0"
    assert pull(handlers, "orders", 20).fields["suggestWhichBrokerId"] == "0"
    desk.groups.put(GroupConfig(group_name="g", broker_id=3, which_broker_when_consume_slowly=2))
    assert pull(handlers, "orders", 0).fields["suggestWhichBrokerId"] == "2"
    assert pull(handlers, "orders", 19).fields["suggestWhichBrokerId"] == "3"


def test_without_slaves_everybody_reads_from_the_master(desk: Desk) -> None:
    desk.topic("orders", 1)
    desk.append("orders", 0, *[b"x" * 100] * 20)
    handlers = pulls_of(desk, replace(RULES, slave_read=False))
    assert pull(handlers, "orders", 0).fields["suggestWhichBrokerId"] == "0"


@pytest.mark.parametrize(("filter_retries", "expected"), [(False, [b"1", b"2", b"3"]), (True, [b"2", b"3"])])
def test_retries_are_filtered_as_the_setting_says(desk: Desk, filter_retries: bool, expected: list[bytes]) -> None:
    desk.topic("orders", 1)
    desk.topic("%RETRY%g", 1)
    desk.groups.get_or_create("g")
    subscriptions = (
        Subscription(topic="orders", sub_string="a > 5", expression_type="SQL92"),
        Subscription(topic="tagged", sub_string="T"),
    )
    desk.members.join_consumer(
        ConsumerMembership(group="g", subscriptions=subscriptions),
        ClientConnection(client_id="c", address="1.2.3.4:5", language="JAVA", version=479),
        Peer().connection,
    )
    desk.append("%RETRY%g", 0, b"1", properties="RETRY_TOPIC\x01orders\x02a\x013\x02")
    desk.append("%RETRY%g", 0, b"2", properties="RETRY_TOPIC\x01orders\x02a\x017\x02")
    desk.append("%RETRY%g", 0, b"3", properties="RETRY_TOPIC\x01tagged\x02TAGS\x01other\x02")
    reply = pull(pulls_of(desk, replace(RULES, filter_retries=filter_retries)), "%RETRY%g", 0)
    assert [record.body for record in decode_records(reply.body)] == expected

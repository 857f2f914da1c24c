"""Administration of consumer groups."""

from collections.abc import Mapping

import pytest

from kappamq.broker.handlers.group_admin import GroupAdminHandlers
from kappamq.broker.router import Handler
from kappamq.model import fastjson
from kappamq.model.config import GroupConfig
from kappamq.wire.codes import RequestCode, ResponseCode
from tests.unit.broker.admin_desk import Desk, ask, value_of


class Saved:
    """Counts how often a handler waited for the disk."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def table(desk: Desk, saved: Saved | None = None) -> Mapping[int, Handler]:
    return GroupAdminHandlers(
        topics=desk.topics,
        groups=desk.groups,
        offsets=desk.offsets,
        members=desk.members,
        statistics=desk.statistics,
        saved=saved or Saved(),
    ).table()


def put(desk: Desk, **config: object) -> int:
    body = fastjson.dumps(config).encode()
    return ask(table(desk), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code


def test_a_group_is_created_with_all_that_was_said_and_defaults_for_the_rest(desk: Desk) -> None:
    assert put(desk, groupName="g", retryMaxTimes=3, consumeBroadcastEnable=False, attributes=None) == 0
    group = desk.groups.get("g")
    assert (group.retry_max_times, group.consume_broadcast_enable, group.retry_queue_nums) == (3, False, 1)
    shown = value_of(ask(table(desk), RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}))
    assert shown["retryMaxTimes"] == 3


@pytest.mark.parametrize("name", ["bad name", "", "x" * 121])
def test_a_group_needs_a_proper_name(desk: Desk, name: str) -> None:
    assert put(desk, groupName=name) == ResponseCode.INVALID_PARAMETER
    assert desk.groups.find(name) is None


def test_attributes_of_a_group_are_changes(desk: Desk) -> None:
    assert put(desk, groupName="g", attributes={"+priority.factor": "50"}) == 0
    assert desk.groups.get("g").attributes == {"priority.factor": "50"}
    assert put(desk, groupName="g", attributes={"-priority.factor": ""}) == 0
    assert desk.groups.get("g").attributes == {}
    assert put(desk, groupName="g", attributes={"+colour": "red"}) == ResponseCode.INVALID_PARAMETER


def test_a_list_creates_each_group(desk: Desk) -> None:
    body = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b","retryQueueNums":2}]}'
    assert ask(table(desk), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body).code == 0
    assert desk.groups.get("b").retry_queue_nums == 2
    everything = value_of(ask(table(desk), RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert {"a", "b", "TOOLS_CONSUMER"} <= set(everything["subscriptionGroupTable"])


def test_an_unknown_group_has_no_settings(desk: Desk) -> None:
    reply = ask(table(desk), RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "none"})
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, True), ({"cleanOffset": "false"}, True), ({"cleanOffset": "true"}, False), ({"removeOffset": "true"}, False)],
)
def test_a_deleted_group_is_gone_and_its_progress_only_on_demand(
    desk: Desk, fields: dict[str, str], is_kept: bool
) -> None:
    desk.groups.put(GroupConfig(group_name="g"))
    desk.offsets.commit("t", "g", 0, 5)
    desk.statistics.fetched("t", "g", 1, 10)
    assert ask(table(desk), RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"} | fields).code == 0
    assert desk.groups.find("g") is None
    assert desk.statistics.windows("GROUP_GET_NUMS", "t@g") is None
    assert (desk.offsets.find("t", "g", 0) == 5) is is_kept


def test_a_slave_gets_all_progress(desk: Desk) -> None:
    desk.offsets.commit("t", "g", 0, 5)
    desk.offsets.commit("t", "g", 1, 7)
    value = value_of(ask(table(desk), RequestCode.GET_ALL_CONSUMER_OFFSET))
    assert value["offsetTable"] == {"t@g": {0: 5, 1: 7}}


def clone(desk: Desk, **fields: str) -> int:
    return ask(table(desk), RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "old", "destGroup": "new"} | fields).code


def test_progress_is_copied_for_one_topic_or_all(desk: Desk) -> None:
    desk.groups.put(GroupConfig(group_name="new"))
    for name, offset in (("t", 3), ("u", 4), ("gone", 5)):
        desk.offsets.commit(name, "old", 0, offset)
    desk.topic("t")
    desk.topic("u")
    assert clone(desk, topic="t") == 0
    assert desk.offsets.topics_of("new") == ["t"]
    assert clone(desk) == 0
    assert desk.offsets.topics_of("new") == ["t", "u"]
    assert desk.offsets.find("u", "new", 0) == 4


def test_topics_that_an_online_source_no_longer_reads_are_left_out(desk: Desk) -> None:
    desk.groups.put(GroupConfig(group_name="new"))
    desk.topic("t")
    desk.topic("u")
    desk.offsets.commit("t", "old", 0, 3)
    desk.offsets.commit("u", "old", 0, 4)
    desk.join("old", "t")
    assert clone(desk) == 0
    assert desk.offsets.topics_of("new") == ["t"]
    assert clone(desk, offline="true") == 0
    assert desk.offsets.topics_of("new") == ["t", "u"]


def test_a_copy_needs_two_groups_that_exist(desk: Desk) -> None:
    assert clone(desk) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert clone(desk, destGroup="old") == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("topic", "mode", "code"),
    [
        ("orders", "PULL", 0),
        ("orders", "POP", ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        ("%RETRY%g", "PULL", ResponseCode.NO_PERMISSION),
    ],
)
def test_the_mode_of_a_group_is_pull(desk: Desk, topic: str, mode: str, code: int) -> None:
    wanted = {"topic": topic, "consumerGroup": "g", "mode": mode, "popShareQueueNum": 0}
    reply = ask(table(desk), RequestCode.SET_MESSAGE_REQUEST_MODE, body=fastjson.dumps(wanted).encode())
    assert reply.code == code


def test_changes_of_groups_are_answered_when_they_are_on_disk(desk: Desk) -> None:
    saved = Saved()
    handlers = table(desk, saved)
    ask(handlers, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g1"}')
    ask(
        handlers, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=b'{"groupConfigList":[{"groupName":"g2"}]}'
    )
    ask(handlers, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g1"})
    assert (saved.count, desk.groups.find("g1")) == (3, None)
    assert desk.groups.find("g2") is not None

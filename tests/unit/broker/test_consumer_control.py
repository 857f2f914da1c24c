"""Online clients: lists, questions that are passed on, and moving them."""

from collections.abc import Mapping

import pytest

from kappamq.broker.handlers.consumer_control import FORWARD_MS, ConsumerControlHandlers
from kappamq.broker.parked_pulls import ParkedPull, ParkedPulls
from kappamq.broker.router import Handler
from kappamq.errors import CallTimeout, ConnectionLost
from kappamq.model import fastjson
from kappamq.model.ids import offset_id
from kappamq.model.selector import Selector
from kappamq.model.subscription import ClientConnection
from kappamq.wire.bodies import decode_offset_table
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import PullRequest
from tests.unit.broker.admin_desk import HOST, Desk, Peer, ask, queue, value_of


class Control:
    """Handlers, and the pulls that were woken."""

    def __init__(self, desk: Desk) -> None:
        self.woken: list[ParkedPull] = []
        self.parked = ParkedPulls(clock=desk.clock, parked_max=10, rerun=self.woken.append)
        self.table: Mapping[int, Handler] = ConsumerControlHandlers(
            broker="b1",
            topics=desk.topics,
            groups=desk.groups,
            offsets=desk.offsets,
            members=desk.members,
            parked=self.parked,
            store=desk.store,
            settings=desk.settings,
            clock=desk.clock,
        ).table()

    def park(self, topic: str, queue_id: int) -> None:
        pull = PullRequest(group="g", topic=topic, queue_id=queue_id, start=0, count_max=32)
        request = Command(code=11)
        self.parked.park(ParkedPull(Peer().connection, request, pull, Selector.parse("*", None)), wait_ms=1000)


@pytest.fixture
def control(desk: Desk) -> Control:
    return Control(desk)


# ── Who is online ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_consumers_of_a_group_are_listed_with_their_subscriptions(desk: Desk, control: Control) -> None:
    desk.join("g", "t", client_id="one", language="GO", version=317)
    value = value_of(ask(control.table, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}))
    assert value["connectionSet"] == [{"clientAddr": "1.2.3.4:5", "clientId": "one", "language": "GO", "version": 317}]
    assert value["subscriptionTable"]["t"]["subString"] == "*"
    assert (value["consumeType"], value["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    offline = ask(control.table, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "none"})
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_producers_are_listed_by_group_and_all_together(desk: Desk, control: Control) -> None:
    client = ClientConnection(client_id="p", address="1.2.3.4:5", language="JAVA", version=479)
    desk.members.join_producer("pg", client, Peer().connection)
    seen_ms = desk.clock.now_ms()
    desk.clock.advance(ms=1500)
    value = value_of(ask(control.table, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"}))
    assert value["connectionSet"][0]["clientId"] == "p"
    everything = value_of(ask(control.table, RequestCode.GET_ALL_PRODUCER_INFO))["data"]
    assert everything == {
        "pg": [
            {
                "clientId": "p",
                "language": "JAVA",
                "lastUpdateTimestamp": seen_ms,
                "remoteIP": "/1.2.3.4:5",
                "version": 479,
            }
        ]
    }
    unknown = ask(control.table, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "none"})
    assert unknown.code == ResponseCode.SYSTEM_ERROR


# ── Moving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def reset(control: Control, **fields: str) -> Command:
    wanted = {"topic": "t", "group": "g", "timestamp": "-1", "isForce": "true"} | fields
    return ask(control.table, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wanted)


def filled(desk: Desk) -> list[int]:
    """Three messages a second apart in queue 0 of topic t, one in queue 1; returns the times."""
    desk.topic("t")
    desk.groups.get_or_create("g")
    times = []
    for body in (b"1", b"2", b"3"):
        times.append(desk.clock.now_ms())
        desk.append("t", 0, body)
        desk.clock.advance(ms=1000)
    desk.append("t", 1, b"4")
    return times


def test_a_group_moves_to_the_end_and_its_waiting_pulls_are_woken(desk: Desk, control: Control) -> None:
    filled(desk)
    control.park("t", 1)
    control.park("other", 1)
    assert decode_offset_table(reset(control).body) == {queue("t", 0): 3, queue("t", 1): 1}
    assert [parked.pull.topic for parked in control.woken] == ["t"]
    desk.offsets.commit("t", "g", 0, 1)
    assert desk.offsets.find("t", "g", 0) == 3, "a commit from before the move counts no more"
    assert desk.offsets.take_reset("t", "g", 0) == 3


def test_a_group_moves_to_a_time(desk: Desk, control: Control) -> None:
    times = filled(desk)
    assert decode_offset_table(reset(control, timestamp=str(times[1])).body) == {queue("t", 0): 1, queue("t", 1): 0}


def test_one_queue_moves_to_a_time_or_an_offset(desk: Desk, control: Control) -> None:
    filled(desk)
    assert decode_offset_table(reset(control, queueId="0").body) == {queue("t", 0): 3}
    assert decode_offset_table(reset(control, queueId="0", offset="-1", timestamp="0").body) == {queue("t", 0): 0}
    assert decode_offset_table(reset(control, queueId="0", offset="2").body) == {queue("t", 0): 2}
    assert desk.offsets.of("t", "g") == {0: 2}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "9"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "0", "offset": "4"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_impossible_moves_are_refused(desk: Desk, control: Control, fields: dict[str, str], code: int) -> None:
    filled(desk)
    assert reset(control, **fields).code == code
    assert desk.offsets.of("t", "g") == {}


def test_clients_are_told_to_move_where_the_setting_says_so(desk: Desk, control: Control) -> None:
    times = filled(desk)
    desk.settings.change({"server_side_reset": False})
    assert reset(control).code == ResponseCode.SYSTEM_ERROR, "no progress yet"
    desk.offsets.commit("t", "g", 0, 2)
    desk.offsets.commit("t", "g", 1, 0)
    assert reset(control).code == ResponseCode.CONSUMER_NOT_ONLINE
    java = desk.join("g", "t", client_id="java")
    cpp = desk.join("g", "t", client_id="cpp", language="CPP")
    reply = reset(control, timestamp=str(times[1]), isForce="false")
    expected = {queue("t", 0): 1, queue("t", 1): 0}
    assert decode_offset_table(reply.body) == expected
    assert java.sent[0].code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert java.sent[0].fields["group"] == "g"
    assert decode_offset_table(java.sent[0].body) == expected
    assert isinstance(fastjson.loads(cpp.sent[0].body)["offsetTable"], list)
    assert desk.offsets.of("t", "g") == {0: 2, 1: 0}, "the clients commit it themselves"
    forward = decode_offset_table(reset(control, isForce="false").body)
    assert forward == {queue("t", 0): 2, queue("t", 1): 0}, "never forward without force"


# ── Asking clients ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_client_is_doing_is_asked_of_the_client(desk: Desk, control: Control) -> None:
    peer = desk.join("g", "t", client_id="one")
    peer.answer = Command(code=0, body=b'{"jstack":"x"}')
    fields = {"consumerGroup": "g", "clientId": "one", "jstackEnable": "true", "more": "kept"}
    reply = ask(control.table, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert (reply.code, reply.body) == (0, b'{"jstack":"x"}')
    assert peer.sent[0].code == RequestCode.GET_CONSUMER_RUNNING_INFO
    assert peer.sent[0].fields == fields
    assert peer.timeouts == [FORWARD_MS]


def test_a_stored_message_is_consumed_by_one_client(desk: Desk, control: Control) -> None:
    desk.topic("t")
    (log_offset,) = desk.append("t", 0, b"body")
    peer = desk.join("g", "t", client_id="one")
    peer.answer = Command(code=0, body=b'{"consumeResult":"CR_SUCCESS"}')
    fields = {"consumerGroup": "g", "clientId": "one", "msgId": offset_id(HOST, log_offset)}
    reply = ask(control.table, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert reply.body == b'{"consumeResult":"CR_SUCCESS"}'
    assert peer.sent[0].body == desk.store.read(log_offset)
    assert peer.sent[0].fields["brokerName"] == "b1"
    missing = ask(control.table, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields | {"msgId": offset_id(HOST, 999)})
    assert missing.code == ResponseCode.SYSTEM_ERROR
    assert len(peer.sent) == 1


@pytest.mark.parametrize(
    ("client_id", "version", "answer", "code"),
    [
        ("two", 479, None, ResponseCode.SYSTEM_ERROR),
        ("one", 61, None, ResponseCode.SYSTEM_ERROR),
        ("one", 479, CallTimeout("late"), ResponseCode.CONSUME_MSG_TIMEOUT),
        ("one", 479, ConnectionLost("gone"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_clients_that_cannot_answer(
    desk: Desk, control: Control, client_id: str, version: int, answer: CallTimeout | None, code: int
) -> None:
    peer = desk.join("g", "t", client_id="one", version=version)
    peer.answer = answer
    fields = {"consumerGroup": "g", "clientId": client_id}
    assert ask(control.table, RequestCode.GET_CONSUMER_RUNNING_INFO, fields).code == code


def test_offsets_are_asked_of_each_client_and_silence_is_no_error(desk: Desk, control: Control) -> None:
    one, two = desk.join("g", "t", client_id="one"), desk.join("g", "t", client_id="two")
    one.answer = Command(code=0, body=fastjson.dumps({"messageQueueTable": {queue("t", 0): 5}}).encode())
    two.answer = CallTimeout("late")
    fields = {"topic": "t", "group": "g"}
    value = value_of(ask(control.table, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields))
    assert value["consumerTable"] == {"one": {queue("t", 0): 5}}
    assert one.sent[0].code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    ask(control.table, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields | {"clientAddr": "two"})
    assert (len(one.sent), len(two.sent)) == (1, 2)
    offline = ask(control.table, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields | {"group": "none"})
    assert offline.code == ResponseCode.SYSTEM_ERROR

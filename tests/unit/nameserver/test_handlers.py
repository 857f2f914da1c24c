"""Requests of a name server, as commands in and commands out."""

import json
import zlib

import pytest

from kappamq.clock import ManualClock
from kappamq.kernel import crc31
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.model.route import TopicQueues, TopicRoute
from kappamq.nameserver.handlers import Handlers
from kappamq.nameserver.kv import KeyValues
from kappamq.nameserver.routes import RouteTable
from kappamq.wire import bodies
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.registration import BrokerTopics, encode_registration

VERSION_OF_GO = 317


class Desk:
    """Handlers with what they need, and short ways to ask."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.routes = RouteTable()
        self.key_values = KeyValues()
        self.handlers = Handlers(
            self.routes, self.key_values, clock=self.clock, broker_timeout_seconds=120, facts={"listenPort": "9876"}
        )

    def ask(self, code: int, body: bytes = b"", *, version: int = 479, connection: str = "c", **fields: str) -> Command:
        return self.ask_with(fields, code, body, version=version, connection=connection)

    def ask_with(
        self, fields: dict[str, str], code: int, body: bytes = b"", *, version: int = 479, connection: str = "c"
    ) -> Command:
        request = Command(code=code, request_id=7, fields=fields, body=body, version=version)
        reply = self.handlers.answer(request, connection)
        assert reply.is_reply
        assert reply.request_id == 7
        return reply

    def register(
        self, *, broker_id: int = 0, port: int = 10911, body: bytes | None = None, connection: str = "c", **more: str
    ) -> Command:
        fields = {
            "brokerName": "b1",
            "brokerAddr": f"127.0.0.1:{port}",
            "clusterName": "c1",
            "haServerAddr": f"127.0.0.1:{port + 1}",
            "brokerId": str(broker_id),
        }
        body = body if body is not None else registration("t", "u")
        return self.ask_with(fields | more, RequestCode.REGISTER_BROKER, body, connection=connection)

    def topics(self) -> list[str]:
        return bodies.decode_topic_list(self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)


def registration(*names: str, counter: int = 1) -> bytes:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in names}
    return encode_registration(BrokerTopics(DataVersion(counter=counter, timestamp=5), table))


@pytest.fixture
def desk() -> Desk:
    return Desk()


BROKER = {"brokerName": "b1", "brokerAddr": "127.0.0.1:10911", "clusterName": "c1", "brokerId": "0"}


def test_route_of_a_registered_topic(desk: Desk) -> None:
    assert desk.register().code == 0
    reply = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t")
    assert reply.code == 0
    assert reply.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"b1","cluster":"c1",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b1","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_old_clients_get_unquoted_broker_ids_unless_they_ask_otherwise(desk: Desk) -> None:
    desk.register()
    old = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, version=VERSION_OF_GO, topic="t")
    assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in old.body
    assert b" " not in old.body
    asked = desk.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, version=VERSION_OF_GO, topic="t", acceptStandardJsonOnly="true"
    )
    assert json.loads(asked.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    assert b'{"0":' in desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, version=401, topic="t").body
    assert b"{0:" in desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, version=400, topic="t").body


def test_route_of_an_unknown_topic_is_code_17(desk: Desk) -> None:
    reply = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="nope")
    assert (reply.code, reply.body) == (ResponseCode.TOPIC_NOT_EXIST, b"")
    assert "nope" in (reply.remark or "")


def test_a_wrong_checksum_is_refused(desk: Desk) -> None:
    body = registration("t", "u")
    assert desk.register(body=body, bodyCrc32=str(crc31(body) ^ 1)).code == ResponseCode.SYSTEM_ERROR
    assert desk.topics() == []
    assert desk.register(body=body, bodyCrc32=str(crc31(body))).code == 0


def test_a_deflated_registration_is_read(desk: Desk) -> None:
    def text(value: str) -> bytes:
        return len(value).to_bytes(4, "big") + value.encode()

    plain = text('{"counter":1,"timestamp":2}') + (2).to_bytes(4, "big")
    plain += text("t 4 8 6 SINGLE_TAG {}") + text("u 1 1 6 SINGLE_TAG") + text("[]")
    assert desk.register(body=zlib.compress(plain, 9), compressed="true").code == 0
    route = bodies.decode_route(desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").body)
    assert (route.queues[0].read_queues, route.queues[0].write_queues) == (4, 8)


def test_one_topic_before_the_whole_table_is_refused(desk: Desk) -> None:
    reply = desk.register(body=registration("t"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith("register broker failed")


def test_a_follower_is_told_its_master(desk: Desk) -> None:
    desk.register()
    reply = desk.register(broker_id=1, port=10921)
    assert reply.fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}


def test_a_missing_field_is_an_error_that_names_it(desk: Desk) -> None:
    reply = desk.ask(RequestCode.REGISTER_BROKER, registration("t", "u"), brokerName="b1")
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "brokerAddr" in (reply.remark or "")


def test_ordered_topics_travel_with_registration_and_route(desk: Desk) -> None:
    desk.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="t", value="b1:4")
    assert bodies.decode_table(desk.register().body) == {"t": "b1:4"}
    assert b"orderTopicConf" not in desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").body
    assert desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n").code == 0
    assert b'"orderTopicConf":"b1:4"' in desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").body
    desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"returnOrderTopicConfigToBroker=false\n")
    assert desk.register().body == b""


def test_data_version_says_whether_to_register_again(desk: Desk) -> None:
    version = b'{"counter":1,"stateVersion":0,"timestamp":5}'
    unknown = desk.ask_with(BROKER, RequestCode.QUERY_DATA_VERSION, version)
    assert (unknown.fields["changed"], unknown.body) == ("true", b"")
    desk.register()
    same = desk.ask_with(BROKER, RequestCode.QUERY_DATA_VERSION, version)
    assert same.fields["changed"] == "false"
    assert json.loads(same.body) == {"counter": 1, "stateVersion": 0, "timestamp": 5}
    older = desk.ask_with(BROKER, RequestCode.QUERY_DATA_VERSION, b'{"counter":0,"timestamp":5}')
    assert older.fields["changed"] == "true"


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
def test_signs_of_life_postpone_expiry(desk: Desk, code: int) -> None:
    desk.register()
    desk.clock.advance(ms=100_000)
    assert desk.ask_with(BROKER, code, b"{}").code == 0
    desk.clock.advance(ms=100_000)
    assert desk.routes.expire(now=desk.clock.monotonic()) == []
    desk.clock.advance(ms=21_000)
    assert len(desk.routes.expire(now=desk.clock.monotonic())) == 1


def test_a_broker_may_ask_for_another_timeout(desk: Desk) -> None:
    desk.register(heartbeatTimeoutMillis="1000")
    desk.clock.advance(ms=1001)
    assert len(desk.routes.expire(now=desk.clock.monotonic())) == 1


def test_unregister(desk: Desk) -> None:
    desk.register()
    assert desk.ask_with(BROKER, RequestCode.UNREGISTER_BROKER).code == 0
    assert desk.ask_with(BROKER, RequestCode.UNREGISTER_BROKER).code == 0
    assert desk.topics() == []


def test_cluster_and_members(desk: Desk) -> None:
    desk.register()
    desk.register(broker_id=1, port=10921)
    value = bodies.decode_object(desk.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert value["clusterAddrTable"] == {"c1": ["b1"]}
    assert value["brokerAddrTable"]["b1"]["brokerAddrs"] == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    members = desk.ask(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c1", brokerName="b1").body
    group = bodies.decode_object(members)["brokerMemberGroup"]
    assert group["brokerAddrs"] == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    nobody = desk.ask(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c1", brokerName="b9").body
    assert bodies.decode_object(nobody)["brokerMemberGroup"]["brokerAddrs"] == {}


def test_topic_lists(desk: Desk) -> None:
    desk.register()
    assert desk.topics() == ["t", "u"]
    assert bodies.decode_topic_list(desk.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c1").body) == ["t", "u"]
    assert bodies.decode_topic_list(desk.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c2").body) == []
    system = bodies.decode_object(desk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert system == {"brokerAddr": "127.0.0.1:10911", "topicList": ["c1", "b1"]}
    for code in (311, 312, 313):
        assert bodies.decode_topic_list(desk.ask(code).body) == []
    desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableAllTopicList=false")
    refused = desk.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert (refused.remark or "").startswith("disable")


def test_topics_are_added_and_deleted(desk: Desk) -> None:
    desk.register()
    route = bodies.encode_route(TopicRoute(brokers=(), queues=(TopicQueues("b1", 2, 2, 6),)), standard=True)
    assert desk.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, route, topic="new").code == 0
    assert desk.topics() == ["new", "t", "u"]
    assert desk.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="new").code == 0
    assert desk.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="t", clusterName="elsewhere").code == 0
    assert desk.topics() == ["t", "u"]


def test_write_permission_of_a_broker(desk: Desk) -> None:
    desk.register()
    assert desk.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b1").fields == {"wipeTopicCount": "2"}
    assert b'"perm":4' in desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").body
    assert desk.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="b1").fields == {"addTopicCount": "2"}
    assert b'"perm":6' in desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t").body


def test_key_values(desk: Desk) -> None:
    assert desk.ask(RequestCode.PUT_KV_CONFIG, namespace="ns", key="k", value="v").code == 0
    assert desk.ask(RequestCode.GET_KV_CONFIG, namespace="ns", key="k").fields == {"value": "v"}
    assert bodies.decode_table(desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ns").body) == {"k": "v"}
    assert desk.ask(RequestCode.DELETE_KV_CONFIG, namespace="ns", key="k").code == 0
    assert desk.ask(RequestCode.GET_KV_CONFIG, namespace="ns", key="k").code == ResponseCode.QUERY_NOT_FOUND
    assert desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ns").code == ResponseCode.QUERY_NOT_FOUND
    assert desk.ask(RequestCode.PUT_KV_CONFIG, key="k", value="v").code == ResponseCode.SYSTEM_ERROR


def test_settings_are_shown_and_only_the_listed_ones_change(desk: Desk) -> None:
    shown = desk.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode()
    assert "listenPort=9876\n" in shown
    assert "orderMessageEnable=false\n" in shown
    refused = desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\nkvConfigPath=/etc/passwd\n")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "orderMessageEnable=false\n" in desk.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode()
    wrong = desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=maybe\n")
    assert wrong.code == ResponseCode.INVALID_PARAMETER
    assert desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"\xff\xfe").code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("code", [0, 10, 310, 999, 200050, -5])
def test_unknown_codes_are_told_apart(desk: Desk, code: int) -> None:
    reply = desk.ask(code)
    assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


def test_every_code_of_a_name_server_is_served(desk: Desk) -> None:
    expected = {105, 103, 104, 322, 106, 904, 100, 101, 102, 219, 206, 216, 224, 304, 205, 327, 318, 319}
    expected |= {311, 312, 313, 217, 901}
    assert desk.handlers.codes == expected
    for code in sorted(expected):
        assert desk.ask(code, b"{}").code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"\xff", b'{"a":'])
def test_malformed_bodies_are_errors_not_crashes(desk: Desk, body: bytes) -> None:
    for code in desk.handlers.codes:
        fields = {"topic": "t", "cluster": "c", "namespace": "n", "key": "k", "value": "v"}
        reply = desk.ask_with(BROKER | fields, code, body)
        assert reply.is_reply

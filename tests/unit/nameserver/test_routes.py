"""The route table: who is taken in, what is remembered, who is forgotten, and when."""

import pytest

from kappamq.errors import Refused, TopicNotFound
from kappamq.model.config import DataVersion, TopicConfig
from kappamq.model.route import TopicQueues
from kappamq.nameserver import routes as routes_module
from kappamq.nameserver.routes import Member, Registered, RouteTable
from kappamq.wire.registration import BrokerTopics


def member(
    broker: str = "b1",
    broker_id: int = 0,
    *,
    port: int = 10911,
    cluster: str = "c1",
    acting_master: bool | None = False,
) -> Member:
    return Member(
        cluster=cluster,
        broker=broker,
        broker_id=broker_id,
        address=f"127.0.0.1:{port}",
        replication_address=f"127.0.0.1:{port + 1}",
        acting_master=acting_master,
    )


def topics(*names: str, version: int = 1, queues: int = 4, perm: int = 6, term: int = 0) -> BrokerTopics:
    return BrokerTopics(
        version=DataVersion(counter=version, state_version=term),
        topics={
            name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name in names
        },
    )


def register(
    table: RouteTable, who: Member, what: BrokerTopics, *, connection: str = "x", now: float = 0.0
) -> Registered:
    return table.register(who, what, connection=connection, now=now, timeout_seconds=120)


def queue_counts(table: RouteTable, topic: str) -> dict[str, int]:
    return {queues.broker: queues.write_queues for queues in table.route(topic).queues}


def test_a_registered_topic_has_a_route() -> None:
    table = RouteTable()
    assert register(table, member(), topics("t", "u")) == Registered()
    route = table.route("t")
    assert route.queues == (TopicQueues("b1", 4, 4, 6, 0),)
    assert [(broker.name, broker.cluster, broker.addresses) for broker in route.brokers] == [
        ("b1", "c1", {0: "127.0.0.1:10911"})
    ]


def test_an_unknown_topic_is_not_found() -> None:
    with pytest.raises(TopicNotFound, match="nope"):
        RouteTable().route("nope")


def test_two_brokers_share_a_topic() -> None:
    table = RouteTable()
    register(table, member("b1"), topics("t", "u"))
    register(table, member("b2", port=10921), topics("t", "v", queues=8))
    assert queue_counts(table, "t") == {"b1": 4, "b2": 8}
    assert queue_counts(table, "v") == {"b2": 8}
    assert table.topics() == ["t", "u", "v"]


def test_a_single_topic_is_refused_until_the_broker_is_known() -> None:
    table = RouteTable()
    with pytest.raises(Refused, match="register broker failed"):
        register(table, member(), topics("only"))
    assert table.brokers() == []
    register(table, member(), topics())
    register(table, member(), topics("only", version=2))
    assert queue_counts(table, "only") == {"b1": 4}


def test_topics_change_only_with_the_version() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u", version=1))
    register(table, member(), topics("t", "u", version=1, queues=9))
    assert queue_counts(table, "t") == {"b1": 4}
    register(table, member(), topics("t", "u", version=2, queues=9))
    assert queue_counts(table, "t") == {"b1": 9}


def test_a_missing_topic_comes_back_with_the_same_version() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u"))
    table.delete_topic("t")
    register(table, member(), topics("t", "u"))
    assert queue_counts(table, "t") == {"b1": 4}


def test_topics_absent_from_a_registration_stay() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u"))
    register(table, member(), topics("v", version=2))
    assert table.topics() == ["t", "u", "v"]


def test_followers_do_not_register_topics_and_learn_their_master() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u"))
    follower = member(broker_id=1, port=10921)
    answer = register(table, follower, topics("t", "u", "only-on-follower"))
    assert answer == Registered(master_address="127.0.0.1:10911", replication_address="127.0.0.1:10912")
    assert table.topics() == ["t", "u"]
    assert table.route("t").brokers[0].addresses == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}


def test_the_lowest_follower_registers_topics_while_there_is_no_master() -> None:
    table = RouteTable()
    assert register(table, member(broker_id=2, acting_master=True), topics("t", "u")) == Registered()
    assert table.route("t").queues[0].permission == 4
    register(table, member(broker_id=3, port=10931, acting_master=True), topics("t", "u", "v"))
    assert table.topics() == ["t", "u"]


def test_a_follower_before_version_5_never_registers_topics() -> None:
    table = RouteTable()
    register(table, member(broker_id=1, acting_master=None), topics("t", "u"))
    assert table.topics() == []


def test_the_same_address_under_another_id_moves() -> None:
    table = RouteTable()
    register(table, member(broker_id=1), topics("t", "u"))
    register(table, member(broker_id=0), topics("t", "u", version=2))
    assert table.brokers()[0].addresses == {0: "127.0.0.1:10911"}


def test_the_same_address_under_another_name_moves() -> None:
    table = RouteTable()
    register(table, member("b1"), topics("t", "u"))
    register(table, member("b2", cluster="c2"), topics("t", "u"))
    assert [(broker.name, broker.cluster) for broker in table.brokers()] == [("b2", "c2")]
    assert queue_counts(table, "t") == {"b2": 4}


def test_a_newer_term_keeps_its_broker_id() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u", term=5))
    register(table, member(port=10921), topics("t", "u", term=4))
    assert table.brokers()[0].addresses == {0: "127.0.0.1:10911"}
    register(table, member(port=10921), topics("t", "u", term=6))
    assert table.brokers()[0].addresses == {0: "127.0.0.1:10921"}
    assert table.version_of("127.0.0.1:10911") is None


def test_closing_the_registering_connection_removes_the_broker_at_once() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u"), connection="old")
    register(table, member(), topics("t", "u"), connection="new")
    assert table.drop_connection("old") == []
    assert [gone.member.broker for gone in table.drop_connection("new")] == ["b1"]
    assert table.brokers() == []
    assert table.topics() == []
    assert table.clusters() == []


def test_a_broker_set_lives_as_long_as_one_member() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u"), connection="master")
    register(table, member(broker_id=1, port=10921), topics("t", "u"), connection="follower")
    table.drop_connection("master")
    assert table.route("t").brokers[0].addresses == {1: "127.0.0.1:10921"}
    assert table.route("t").queues[0].permission == 6
    table.drop_connection("follower")
    assert table.topics() == []


def test_queues_lose_write_permission_when_an_acting_set_loses_its_master() -> None:
    table = RouteTable()
    register(table, member(acting_master=True), topics("t", "u"), connection="master")
    register(table, member(broker_id=1, port=10921, acting_master=True), topics("t", "u"), connection="follower")
    table.drop_connection("master")
    assert table.route("t").queues[0].permission == 4
    register(table, member(acting_master=True), topics("t", "u"), connection="master")
    assert table.route("t").queues[0].permission == 6


def test_silent_brokers_expire() -> None:
    table = RouteTable()
    register(table, member("b1"), topics("t", "u"), connection="c", now=0)
    register(table, member("b2", port=10921), topics("t", "u"), now=0)
    assert table.touch("127.0.0.1:10921", now=100)
    assert table.expire(now=120) == []
    assert [(gone.member.broker, gone.connection) for gone in table.expire(now=120.1)] == [("b1", "c")]
    assert queue_counts(table, "t") == {"b2": 4}
    assert not table.touch("127.0.0.1:10911", now=121)


def test_unregister_removes_only_who_asks() -> None:
    table = RouteTable()
    register(table, member(), topics("t", "u"))
    assert not table.unregister("127.0.0.1:10911", broker="other")
    assert not table.unregister("127.0.0.1:1", broker="b1")
    assert table.unregister("127.0.0.1:10911", broker="b1")
    assert table.brokers() == []


def test_topics_of_a_cluster() -> None:
    table = RouteTable()
    register(table, member("b1", cluster="c1"), topics("t", "u"))
    register(table, member("b2", port=10921, cluster="c2"), topics("t", "v"))
    assert table.topics_of_cluster("c1") == ["t", "u"]
    assert table.topics_of_cluster("c2") == ["t", "v"]
    assert table.clusters() == ["c1", "c2"]


def test_delete_topic_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    register(table, member("b1", cluster="c1"), topics("t", "u"))
    register(table, member("b2", port=10921, cluster="c2"), topics("t", "u"))
    table.delete_topic("t", cluster="c1")
    assert queue_counts(table, "t") == {"b2": 4}
    table.delete_topic("t", cluster="c2")
    table.delete_topic("u")
    table.delete_topic("never was")
    assert table.topics() == []


def test_wipe_and_add_write_permission() -> None:
    table = RouteTable()
    register(table, member("b1"), topics("t", "u", perm=7))
    register(table, member("b2", port=10921), topics("t", "u"))
    assert table.wipe_write_permission("b1") == 2
    assert [queues.permission for queues in table.route("t").queues] == [5, 6]
    assert table.add_write_permission("b1") == 2
    assert [queues.permission for queues in table.route("t").queues] == [6, 6]
    assert table.wipe_write_permission("nobody") == 0


def test_register_topic_for_known_brokers_only() -> None:
    table = RouteTable()
    register(table, member("b1"), topics("t", "u"))
    table.register_topic("new", [TopicQueues("b1", 1, 1, 6), TopicQueues("stranger", 1, 1, 6)])
    assert queue_counts(table, "new") == {"b1": 1}


def test_empty_and_endless_names_are_refused() -> None:
    table = RouteTable()
    with pytest.raises(Refused, match="must not be empty"):
        register(table, member(""), topics("t", "u"))
    with pytest.raises(Refused, match="characters"):
        register(table, member(), topics("t", "u" * 10_000))


def test_the_table_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "TOPICS_MAX", 2)
    monkeypatch.setattr(routes_module, "BROKERS_MAX", 1)
    table = RouteTable()
    with pytest.raises(Refused, match="more than 2 topics"):
        register(table, member(), topics("t", "u", "v"))
    register(table, member(), topics("t", "u"))
    with pytest.raises(Refused, match="limit"):
        register(table, member("b2", port=10921), topics("t", "u"))
    with pytest.raises(Refused, match="limit"):
        table.register_topic("v", [TopicQueues("b1", 1, 1, 6)])

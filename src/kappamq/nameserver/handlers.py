"""Requests of a name server: one method for each code, one table that finds it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final

from kappamq.clock import Clock
from kappamq.errors import ConfigError, KappaError, NotFound, NotPermitted, Refused, RemoteProtocolError
from kappamq.model import fastjson
from kappamq.model.config import DataVersion
from kappamq.nameserver.kv import ORDER_NAMESPACE, KeyValues
from kappamq.nameserver.routes import Member, RouteTable
from kappamq.settings import parse_properties
from kappamq.wire import bodies
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import code_of
from kappamq.wire.headers import (
    AddWriteReply,
    AddWriteRequest,
    BrokerHeartbeatRequest,
    BrokerMembersRequest,
    DataVersionReply,
    DataVersionRequest,
    DeleteKvRequest,
    DeleteTopicRouteRequest,
    GetKvReply,
    GetKvRequest,
    ListKvRequest,
    PutKvRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
    RegisterTopicRequest,
    RouteRequest,
    TopicsOfClusterRequest,
    UnregisterBrokerRequest,
    WipeWriteReply,
    WipeWriteRequest,
    decode_fields,
    encode_fields,
)
from kappamq.wire.registration import decode_registration

STANDARD_JSON_VERSION: Final = 401
"""Clients from 4.9.4 on read a route with quoted keys; older ones, and Go, take the text apart by hand."""

BROKER_TIMEOUT_SECONDS_MAX: Final = 3600.0
"""A broker cannot ask to be remembered for longer than this without a sign of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What administrators may change while the name server runs, under RocketMQ's names."""

    order_messages: bool = False
    """Routes carry the fixed queues of ordered topics."""
    return_order_config: bool = True
    """Registering brokers are told which topics are ordered."""
    list_topics: bool = True
    """Anybody may list all topics."""


_SWITCH_NAMES: Final = {
    "orderMessageEnable": "order_messages",
    "returnOrderTopicConfigToBroker": "return_order_config",
    "enableAllTopicList": "list_topics",
}

Method = Callable[[Command, Hashable], Command]


class Handlers:
    """Answers to everything a name server is asked. `facts` are shown, and not changed, by GET_NAMESRV_CONFIG."""

    def __init__(
        self,
        routes: RouteTable,
        key_values: KeyValues,
        *,
        clock: Clock,
        broker_timeout_seconds: float,
        facts: dict[str, str] | None = None,
    ) -> None:
        self._routes = routes
        self._key_values = key_values
        self._clock = clock
        self._broker_timeout_seconds = broker_timeout_seconds
        self._facts = facts or {}
        self._switches = Switches()
        self._methods: dict[int, Method] = {
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._broker_members,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._no_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._no_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._no_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }

    @property
    def codes(self) -> frozenset[int]:
        """Request codes that are understood."""
        return frozenset(self._methods)

    def answer(self, request: Command, connection: Hashable) -> Command:
        """Reply to a request; errors become codes. The caller drops the reply to a one-way request."""
        method = self._methods.get(request.code)
        if method is None:
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        try:
            return method(request, connection)
        except KappaError as fault:
            return request.reply(code_of(fault), str(fault))

    # ── Brokers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _register_broker(self, request: Command, connection: Hashable) -> Command:
        header = decode_fields(request.fields, RegisterBrokerRequest)
        table = decode_registration(request.body, compressed=header.compressed, expected_crc=header.body_crc)
        member = Member(
            cluster=header.cluster,
            broker=header.broker,
            broker_id=header.broker_id,
            address=header.address,
            replication_address=header.replication_address,
            acting_master=header.acting_master,
        )
        registered = self._routes.register(
            member,
            table,
            connection=connection,
            now=self._clock.monotonic(),
            timeout_seconds=self._timeout_seconds(header.timeout_ms),
        )
        reply = RegisterBrokerReply(
            replication_address=registered.replication_address, master_address=registered.master_address
        )
        ordered = self._key_values.namespace(ORDER_NAMESPACE) if self._switches.return_order_config else {}
        return request.reply(fields=encode_fields(reply), body=bodies.encode_table(ordered) if ordered else b"")

    def _timeout_seconds(self, asked_ms: int | None) -> float:
        if asked_ms is None or asked_ms <= 0:
            return self._broker_timeout_seconds
        return min(asked_ms / 1000, BROKER_TIMEOUT_SECONDS_MAX)

    def _unregister_broker(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, UnregisterBrokerRequest)
        self._routes.unregister(header.address, broker=header.broker)
        return request.reply()

    def _query_data_version(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, DataVersionRequest)
        asked = bodies.convert(bodies.decode_object(request.body), DataVersion)
        known = self._routes.version_of(header.address)
        self._routes.touch(header.address, now=self._clock.monotonic())
        reply = DataVersionReply(changed=known != asked)
        return request.reply(fields=encode_fields(reply), body=bodies.encode_object(known) if known else b"")

    def _broker_heartbeat(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, BrokerHeartbeatRequest)
        self._routes.touch(header.address, now=self._clock.monotonic())
        return request.reply()

    def _broker_members(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, BrokerMembersRequest)
        members = self._routes.members_of(header.broker_name)
        addresses = members.addresses if members is not None and members.cluster == header.cluster_name else {}
        group = {"brokerAddrs": addresses, "brokerName": header.broker_name, "cluster": header.cluster_name}
        return request.reply(body=bodies.encode_object({"brokerMemberGroup": group}))

    # ── Routes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _route(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, RouteRequest)
        route = self._routes.route(header.topic)
        if self._switches.order_messages:
            route = replace(route, order_conf=self._key_values.namespace(ORDER_NAMESPACE).get(header.topic))
        standard = request.version >= STANDARD_JSON_VERSION or bool(header.accept_standard_json_only)
        return request.reply(body=bodies.encode_route(route, standard=standard))

    def _cluster(self, request: Command, _: Hashable) -> Command:
        return request.reply(body=bodies.encode_cluster(self._routes.brokers()))

    def _topic_list(self, request: Command, _: Hashable) -> Command:
        if not self._switches.list_topics:
            raise Refused("disable: listing all topics is switched off (enableAllTopicList)")
        return request.reply(body=bodies.encode_topic_list(self._routes.topics()))

    def _topics_of_cluster(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, TopicsOfClusterRequest)
        return request.reply(body=bodies.encode_topic_list(self._routes.topics_of_cluster(header.cluster)))

    def _system_topics(self, request: Command, _: Hashable) -> Command:
        """Cluster and broker names: each is a topic too, and tools must not list them as users' topics."""
        brokers = self._routes.brokers()
        names = [*self._routes.clusters(), *(broker.name for broker in brokers)]
        one = next((address for broker in brokers for address in broker.addresses.values()), None)
        return request.reply(body=bodies.encode_topic_list(names, broker_address=one))

    def _no_topics(self, request: Command, _: Hashable) -> Command:
        """Units (several independent sites in one cluster) do not exist here."""
        return request.reply(body=bodies.encode_topic_list(()))

    def _delete_topic(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, DeleteTopicRouteRequest)
        self._routes.delete_topic(header.topic, cluster=header.cluster_name or None)
        return request.reply()

    def _register_topic(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, RegisterTopicRequest)
        self._routes.register_topic(header.topic, bodies.decode_route(request.body).queues)
        return request.reply()

    def _wipe_write(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, WipeWriteRequest)
        count = self._routes.wipe_write_permission(header.broker_name)
        return request.reply(fields=encode_fields(WipeWriteReply(wipe_topic_count=count)))

    def _add_write(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, AddWriteRequest)
        count = self._routes.add_write_permission(header.broker_name)
        return request.reply(fields=encode_fields(AddWriteReply(add_topic_count=count)))

    # ── Key-value settings and our own ──────────────────────────────────────────────────────────────────────────────

    def _put_kv(self, request: Command, _: Hashable) -> Command:
        try:
            header = decode_fields(request.fields, PutKvRequest)
        except RemoteProtocolError:
            raise Refused("namespace, key or value is null: give all three") from None
        self._key_values.put(header.namespace, header.key, header.value)
        return request.reply()

    def _get_kv(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, GetKvRequest)
        value = self._key_values.get(header.namespace, header.key)
        return request.reply(fields=encode_fields(GetKvReply(value=value)))

    def _delete_kv(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, DeleteKvRequest)
        self._key_values.delete(header.namespace, header.key)
        return request.reply()

    def _list_kv(self, request: Command, _: Hashable) -> Command:
        header = decode_fields(request.fields, ListKvRequest)
        table = self._key_values.namespace(header.namespace)
        if not table:
            raise NotFound(f"No config item, Namespace: {header.namespace}")
        return request.reply(body=bodies.encode_table(table))

    def _get_config(self, request: Command, _: Hashable) -> Command:
        switches = {
            name: "true" if getattr(self._switches, field) else "false" for name, field in _SWITCH_NAMES.items()
        }
        lines = [f"{name}={value}\n" for name, value in sorted({**self._facts, **switches}.items())]
        return request.reply(body="".join(lines).encode())

    def _update_config(self, request: Command, _: Hashable) -> Command:
        try:
            given = parse_properties(request.body.decode())
        except UnicodeDecodeError:
            raise RemoteProtocolError("body is not UTF-8 text") from None
        changes: dict[str, bool] = {}
        for name, text in given.items():
            if name not in _SWITCH_NAMES:
                raise NotPermitted(
                    f"Can not update config in black list: {name}. Changeable: {', '.join(_SWITCH_NAMES)}"
                )
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{name} is {fastjson.dumps(text)}: write true or false")
            changes[_SWITCH_NAMES[name]] = text.lower() == "true"
        self._switches = replace(self._switches, **changes)
        return request.reply()

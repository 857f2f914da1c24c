"""A name server on a real socket: answers, one-way silence, brokers that vanish, orderly stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kappamq.clock import ManualClock
from kappamq.errors import ConfigError, ConnectionLost, TopicNotFound
from kappamq.model.config import TopicConfig
from kappamq.nameserver.app import NameServer, NameServerSettings
from kappamq.net.dialer import Dialer
from kappamq.wire.bodies import decode_route, decode_topic_list
from kappamq.wire.command import ONE_WAY_FLAG, Command
from kappamq.wire.frame import FrameDecoder, encode_frame
from kappamq.wire.headers import GetKvRequest, PutKvRequest, RegisterBrokerRequest, RouteRequest, TopicListRequest
from kappamq.wire.registration import BrokerTopics, encode_registration
from tests.interop.rocketmq import free_port_triple

TIMEOUT_MS = 30_000.0


@asynccontextmanager
async def running(
    settings: NameServerSettings | None = None, clock: ManualClock | None = None
) -> AsyncIterator[tuple[NameServer, Dialer]]:
    settings = settings or NameServerSettings(listen_port=0)
    async with asyncio.timeout(60), NameServer(settings, clock=clock) as server, Dialer() as dialer:
        yield server, dialer


async def register(dialer: Dialer, server: NameServer) -> None:
    request = RegisterBrokerRequest(broker="b1", address="127.0.0.1:10911", cluster="c1", broker_id=0)
    topics = {name: TopicConfig(topic_name=name) for name in ("t", "u")}
    body = encode_registration(BrokerTopics(topics=topics))
    await dialer.call(server.address, request.command(body=body), timeout_ms=TIMEOUT_MS)


async def topics(dialer: Dialer, server: NameServer) -> list[str]:
    reply = await dialer.call(server.address, TopicListRequest().command(), timeout_ms=TIMEOUT_MS)
    return decode_topic_list(reply.body)


def test_a_broker_registers_and_a_client_finds_it() -> None:
    async def scenario() -> None:
        async with running() as (server, dialer):
            await register(dialer, server)
            reply = await dialer.call(server.address, RouteRequest(topic="t").command(), timeout_ms=TIMEOUT_MS)
            assert decode_route(reply.body).brokers[0].master == "127.0.0.1:10911"
            with pytest.raises(TopicNotFound):
                await dialer.call(server.address, RouteRequest(topic="nope").command(), timeout_ms=TIMEOUT_MS)

    asyncio.run(scenario())


def test_a_broker_is_removed_when_its_connection_closes() -> None:
    async def scenario() -> None:
        async with running() as (server, dialer):
            async with Dialer() as broker:
                await register(broker, server)
                assert await topics(dialer, server) == ["t", "u"]
            while await topics(dialer, server):
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_silent_broker_expires_and_its_connection_is_closed() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        settings = NameServerSettings(listen_port=0, scan_seconds=0.01)
        async with running(settings, clock) as (server, dialer), Dialer() as broker:
            await register(broker, server)
            connection = await broker.connect(server.address)
            clock.advance(ms=120_001)
            await connection.wait_closed()
            assert await topics(dialer, server) == []

    asyncio.run(scenario())


def test_one_way_requests_are_never_answered() -> None:
    async def scenario() -> None:
        async with running() as (server, _):
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            for code in (105, 999):
                writer.write(encode_frame(Command(code=code, request_id=1, flag=ONE_WAY_FLAG)))
            writer.write(encode_frame(Command(code=206, request_id=2)))
            decoder = FrameDecoder()
            replies: list[Command] = []
            while not replies:
                replies += decoder.feed(await reader.read(65536))
            assert [reply.request_id for reply in replies] == [2]
            writer.close()
            await writer.wait_closed()

    asyncio.run(scenario())


def test_a_bug_in_a_handler_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ManualClock):
        def monotonic(self) -> float:
            raise RuntimeError("clock broke")

    async def scenario() -> None:
        async with running(NameServerSettings(listen_port=0), Broken()) as (server, dialer):
            request = RegisterBrokerRequest(broker="b1", address="127.0.0.1:10911", cluster="c1", broker_id=0)
            body = encode_registration(BrokerTopics())
            reply = await dialer.call_raw(server.address, request.command(body=body), timeout_ms=TIMEOUT_MS)
            assert (reply.code, reply.remark) == (1, "internal error: see the log of the name server")
            assert await topics(dialer, server) == []

    asyncio.run(scenario())
    assert "clock broke" in caplog.text


def test_stop_ends_wait_and_the_port_is_free_again() -> None:
    async def scenario() -> None:
        # Not a port that the kernel hands out: nobody may be given it in between.
        async with running(NameServerSettings(listen_port=free_port_triple())) as (server, dialer):
            connection = await dialer.connect(server.address)
            server.stop()
            await server.wait()
            port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConnectionLost):
            await connection.call(TopicListRequest().command(), timeout_ms=TIMEOUT_MS)
        async with running(NameServerSettings(listen_port=port)) as (again, _):
            assert again.address == server.address

    asyncio.run(scenario())


def test_a_taken_port_is_a_config_error() -> None:
    async def scenario() -> None:
        async with running() as (server, _):
            port = int(server.address.rpartition(":")[2])
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
                async with NameServer(NameServerSettings(listen_port=port)):
                    pass

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "", "broker.example.com"])
def test_an_open_address_needs_insecure(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        NameServerSettings(listen_host=host)
    assert NameServerSettings(listen_host=host, insecure=True).listen_host == host


@pytest.mark.parametrize("change", [{"listen_port": 70000}, {"scan_seconds": 0}, {"connections_max": 0}])
def test_settings_are_checked(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        NameServerSettings(**change)  # type: ignore[arg-type]


def test_key_values_are_kept(tmp_path: Path) -> None:
    settings = NameServerSettings(listen_port=0, kv_path=tmp_path / "kvConfig.json")

    async def put() -> None:
        async with running(settings) as (server, dialer):
            request = PutKvRequest(namespace="ns", key="k", value="v")
            await dialer.call(server.address, request.command(), timeout_ms=TIMEOUT_MS)

    async def get() -> None:
        async with running(settings) as (server, dialer):
            reply = await dialer.call(
                server.address, GetKvRequest(namespace="ns", key="k").command(), timeout_ms=TIMEOUT_MS
            )
            assert reply.fields == {"value": "v"}

    asyncio.run(put())
    asyncio.run(get())

"""Composition root of the broker: builds, starts, stops; holds no rule."""

import asyncio
import logging
from dataclasses import replace
from types import TracebackType
from typing import Final

from kappamq.broker.appender import Appender
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.config_store import ConfigFile
from kappamq.broker.delays import Delays
from kappamq.broker.deliveries import Progress, waiting_since
from kappamq.broker.groups import Groups
from kappamq.broker.handlers.broker_admin import BrokerAdminHandlers
from kappamq.broker.handlers.clients import ClientHandlers
from kappamq.broker.handlers.consumer_control import ConsumerControlHandlers
from kappamq.broker.handlers.group_admin import GroupAdminHandlers
from kappamq.broker.handlers.lookup import LookupHandlers
from kappamq.broker.handlers.offsets import OffsetHandlers
from kappamq.broker.handlers.progress import ProgressHandlers
from kappamq.broker.handlers.pull import PullHandlers, PullRules
from kappamq.broker.handlers.recall import RecallHandlers, RecallRules
from kappamq.broker.handlers.reply import ReplyHandlers
from kappamq.broker.handlers.send import SendHandlers, SendRules
from kappamq.broker.handlers.send_back import SendBackHandlers, SendBackRules
from kappamq.broker.handlers.topic_admin import TopicAdminHandlers
from kappamq.broker.handlers.transactions import TransactionHandlers, ask_producer
from kappamq.broker.locks import QueueLocks
from kappamq.broker.members import ConsumerGroup, Members
from kappamq.broker.placing import PlacingRules
from kappamq.broker.registration import Registration
from kappamq.broker.router import Router
from kappamq.broker.runtime_settings import RuntimeSettings
from kappamq.broker.settings import BrokerSettings, parse_delay_levels
from kappamq.broker.statistics import Statistics
from kappamq.broker.timers import Timers
from kappamq.broker.topics import BuiltInTopics, Topics
from kappamq.broker.transactions import TransactionRules, Transactions
from kappamq.broker.upkeep import checkpoint_forever, retain_forever, save_offsets_forever, tick_forever
from kappamq.clock import Clock, SystemClock
from kappamq.errors import ConfigError, KappaError
from kappamq.model.ids import pack_host
from kappamq.model.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.model.subscription import MessageModel
from kappamq.net.connection import Connection
from kappamq.net.server import Server
from kappamq.store.dispatch import Arrival
from kappamq.store.store import Store
from kappamq.wire.headers import ConsumerIdsChanged, RegisterBrokerRequest

log = logging.getLogger(__name__)

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OPERATION_TOPIC})
"""Topics whose arrivals concern the broker's own services."""
REGISTER_WAIT_SECONDS: Final = 3.0
TOLD_WAIT_SECONDS: Final = 2.0
"""How long a change of topics waits for the name servers to know it: less than a tool waits for its answer."""
_PORT_TRIES: Final = 20


class Broker:
    """A running broker. Use as an async context manager; `address` is known inside it."""

    def __init__(self, settings: BrokerSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        self._run: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._runner: asyncio.TaskGroup | None = None
        self.address = ""
        """`host:port` that clients are given."""

    async def __aenter__(self) -> "Broker":
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._run = loop.create_task(self._serve(), name=f"broker-{self._settings.name}")
        await asyncio.wait([self._ready, self._run], return_when=asyncio.FIRST_COMPLETED)
        if self._run.done():
            await self._run
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._run is not None:
            await self._run

    async def wait(self) -> None:
        """Return when the broker has stopped; raise what made it stop."""
        assert self._run is not None
        await asyncio.shield(self._run)

    def stop(self) -> None:
        """Begin an orderly stop."""
        self._stopping.set()

    async def _serve(self) -> None:
        """Build bottom-up, serve, stop top-down."""
        settings = self._settings
        delays = parse_delay_levels(settings.delay_levels)
        store_settings = replace(
            settings.store,
            visible="flushed" if settings.flush == "durable" else "written",
            message_bytes_max=settings.message_bytes_max,
            delay_levels_ms=delays,
        )
        store = await asyncio.to_thread(Store.open, settings.data, store_settings, clock=self._clock)
        log.info("store open %s", store.recovery)
        try:
            await self._serve_store(store, delays_ms=delays)
        finally:
            await asyncio.to_thread(store.close)

    async def _serve_store(self, store: Store, *, delays_ms: tuple[int, ...]) -> None:
        settings, clock = self._settings, self._clock
        config = settings.data / "config"
        topics_file = ConfigFile(config / "topics.json", lambda: topics.as_file())
        groups_file = ConfigFile(config / "subscriptionGroup.json", lambda: groups.as_file())
        offsets_file = ConfigFile(config / "consumerOffset.json", lambda: offsets.as_file())

        def topics_changed() -> None:
            topics_file.changed()
            registration.topics_changed()

        topics = Topics(
            BuiltInTopics(
                cluster=settings.cluster,
                broker=settings.name,
                template_queues=settings.template_queues,
                auto_create=settings.auto_create_topics,
                delay_levels=len(delays_ms),
                trace_topic=settings.trace_topic if settings.trace_topic_enabled else None,
            ),
            clock=clock,
            on_change=topics_changed,
        )
        groups = Groups(auto_create=settings.auto_create_groups, clock=clock, on_change=groups_file.changed)
        offsets = CommittedOffsets(clock=clock)
        registration = Registration(
            nameservers=settings.nameservers,
            identity=self._identity,
            topics=topics,
            permission=lambda: runtime.current.permission,
            every_seconds=settings.register_seconds,
        )
        runtime = RuntimeSettings(settings, clock=clock)
        topics.load(topics_file.load(), store.queues())
        groups.load(groups_file.load())
        offsets.load(offsets_file.load())
        members = Members(
            clock=clock,
            timeout_seconds=settings.client_timeout_seconds,
            on_change=lambda group: _notify_members(group, groups),
        )
        locks = QueueLocks(clock=clock, lease_seconds=settings.lock_lease_seconds)
        statistics = Statistics(clock=clock, cluster=settings.cluster, is_system_topic=topics.is_system)
        checkpointing = asyncio.Lock()

        def arrived(arrivals: list[Arrival]) -> None:
            pulls.parked.wake(arrivals)
            waiting = [arrival for arrival in arrivals if arrival.topic in WAITING_TOPICS]
            if waiting:
                delays.arrived(waiting)
                transactions.arrived(waiting)
                timers.arrived(waiting)

        appender = Appender(
            store,
            clock=clock,
            durable=settings.flush == "durable",
            on_arrivals=arrived,
            unacknowledged_max=settings.unacknowledged_max,
            flush_timeout_seconds=settings.flush_timeout_seconds,
        )

        placing = PlacingRules(
            delay_levels=len(delays_ms),
            timer_enabled=settings.timer_enabled,
            timer_max_delay_seconds=settings.timer_max_delay_seconds,
        )
        gate = asyncio.Lock()
        delivered = await asyncio.to_thread(waiting_since, store, config)
        delays = Delays(
            store,
            store_records=appender.store,
            delays_ms=delays_ms,
            clock=clock,
            gate=gate,
            file=config / "delayOffset.json",
        )
        delays.load(delivered.get(SCHEDULE_TOPIC, []))
        timers = await asyncio.to_thread(
            Timers,
            store,
            store_records=appender.store,
            clock=clock,
            gate=gate,
            root=settings.data,
            retention_hours=settings.store.retention_hours,
        )
        await asyncio.to_thread(timers.load, delivered.get(TIMER_TOPIC, []))
        progress = Progress(store, config=config, gate=gate, parts=[delays, timers])
        transaction_rules = TransactionRules(
            timeout_ms=settings.transaction_timeout_ms,
            check_interval_ms=settings.transaction_check_interval_ms,
            check_max=settings.transaction_check_max,
            store_host=pack_host(settings.address_host, settings.listen_port),
            placing=placing,
        )
        transactions = Transactions(
            store,
            store_records=appender.store,
            offsets=offsets,
            clock=clock,
            rules=transaction_rules,
            ask=lambda half, message: ask_producer(members, half, message, broker=settings.name),
            topics=topics,
        )
        await asyncio.to_thread(transactions.load, delivered.get(HALF_TOPIC, []))

        def lost(connection: Connection) -> None:
            pulls.parked.drop(connection)
            members.lost(connection)

        async with asyncio.TaskGroup() as tasks:
            pulls = PullHandlers(
                topics=topics,
                groups=groups,
                members=members,
                offsets=offsets,
                store=store,
                statistics=statistics,
                rules=_pull_rules(settings),
                clock=clock,
                parked_max=settings.parked_pulls_max,
                tasks=tasks,
            )
            router = Router(tasks=tasks)
            server = Server(router, limits=settings.limits, on_lost=lost, on_read=appender.write)
            async with server:
                port = await self._listen(server)
                self.address = f"{settings.address_host}:{port}"
                store_host = pack_host(settings.address_host, port)
                transaction_rules = replace(transaction_rules, store_host=store_host)
                transactions.use(transaction_rules)
                send_rules = SendRules(
                    store_host=store_host,
                    broker=settings.name,
                    cluster=settings.cluster,
                    region=settings.region,
                    trace_on=settings.trace_on,
                    message_bytes_max=settings.message_bytes_max,
                    permission=settings.permission,
                    placing=placing,
                    reject_transactions=settings.reject_transactions,
                )
                send_back_rules = SendBackRules(store_host=store_host, permission=settings.permission, placing=placing)
                sends = SendHandlers(
                    topics=topics,
                    groups=groups,
                    locks=locks,
                    appender=appender,
                    statistics=statistics,
                    rules=send_rules,
                    clock=clock,
                    check_transactions=transactions.check_room,
                )
                send_backs = SendBackHandlers(
                    topics=topics,
                    groups=groups,
                    store=store,
                    appender=appender,
                    statistics=statistics,
                    rules=send_back_rules,
                    clock=clock,
                )
                clients = ClientHandlers(
                    topics=topics, groups=groups, members=members, locks=locks, sql_filter=settings.sql_filter
                )

                def settings_changed(before: BrokerSettings, after: BrokerSettings) -> None:
                    pulls.use(_pull_rules(after))
                    sends.use(replace(send_rules, permission=after.permission, trace_on=after.trace_on))
                    send_backs.use(replace(send_back_rules, permission=after.permission))
                    transactions.use(
                        replace(
                            transaction_rules,
                            timeout_ms=after.transaction_timeout_ms,
                            check_interval_ms=after.transaction_check_interval_ms,
                            check_max=after.transaction_check_max,
                        )
                    )
                    clients.sql_filter = after.sql_filter
                    groups.auto_create = after.auto_create_groups
                    store.settings = replace(store.settings, retention_hours=after.store.retention_hours)
                    if after.auto_create_topics != before.auto_create_topics:
                        topics.allow_creation(after.auto_create_topics)
                    if after.permission != before.permission:
                        topics.bump()

                runtime.listen(settings_changed)
                router.serve(
                    sends.table(),
                    pulls.table(),
                    OffsetHandlers(
                        topics=topics, groups=groups, offsets=offsets, store=store, hot_bytes=settings.hot_bytes
                    ).table(),
                    clients.table(),
                    LookupHandlers(store=store).table(),
                    TransactionHandlers(
                        transactions=transactions,
                        store=store,
                        appender=appender,
                        clock=clock,
                    ).table(),
                    ReplyHandlers(
                        topics=topics,
                        members=members,
                        appender=appender,
                        statistics=statistics,
                        store_host=store_host,
                        permission=settings.permission,
                        clock=clock,
                    ).table(),
                    send_backs.table(),
                    RecallHandlers(
                        topics=topics,
                        appender=appender,
                        rules=RecallRules(
                            enabled=settings.recall_enabled,
                            broker=settings.name,
                            store_host=store_host,
                            placing=placing,
                        ),
                        clock=clock,
                    ).table(),
                    TopicAdminHandlers(
                        broker=settings.name,
                        topics=topics,
                        offsets=offsets,
                        members=members,
                        statistics=statistics,
                        store=store,
                        wait_told=lambda: registration.wait_told(timeout_seconds=TOLD_WAIT_SECONDS),
                        checkpointing=checkpointing,
                    ).table(),
                    GroupAdminHandlers(
                        topics=topics, groups=groups, offsets=offsets, members=members, statistics=statistics
                    ).table(),
                    ProgressHandlers(
                        broker=settings.name,
                        address=self.address,
                        topics=topics,
                        groups=groups,
                        offsets=offsets,
                        members=members,
                        statistics=statistics,
                        store=store,
                        clock=clock,
                    ).table(),
                    ConsumerControlHandlers(
                        broker=settings.name,
                        topics=topics,
                        groups=groups,
                        offsets=offsets,
                        members=members,
                        parked=pulls.parked,
                        store=store,
                        settings=runtime,
                        clock=clock,
                    ).table(),
                    BrokerAdminHandlers(
                        port=port,
                        settings=runtime,
                        statistics=statistics,
                        store=store,
                        appender=appender,
                        delay_table=delays.as_file,
                        clock=clock,
                    ).table(),
                )
                appender.start()
                await transactions.repair()
                await progress.save()
                services = [
                    tasks.create_task(service, name=name)
                    for name, service in (
                        ("disk", appender.wait_failed()),
                        (
                            "tick",
                            tick_forever(
                                appender=appender,
                                parked=pulls.parked,
                                members=members,
                                statistics=statistics,
                                max_offset=store.max_offset,
                            ),
                        ),
                        ("checkpoint", checkpoint_forever(store, checkpointing)),
                        ("retention", retain_forever(store, every_seconds=settings.retention_seconds)),
                        ("topics-file", topics_file.keep_saved()),
                        ("groups-file", groups_file.keep_saved()),
                        (
                            "offsets-file",
                            save_offsets_forever(
                                offsets_file,
                                is_dirty=lambda: offsets.is_dirty,
                                every_seconds=settings.save_offsets_seconds,
                            ),
                        ),
                    )
                ]
                deliveries = [
                    tasks.create_task(service, name=name)
                    for name, service in (
                        ("delays", delays.run_forever()),
                        ("timers", timers.run_forever()),
                        ("transactions", transactions.run_forever()),
                        ("progress", progress.save_forever()),
                    )
                ]
                registration.start(tasks)
                await registration.wait_registered(timeout_seconds=REGISTER_WAIT_SECONDS)
                log.info("broker ready name=%s address=%s flush=%s", settings.name, self.address, settings.flush)
                assert self._ready is not None
                self._ready.set_result(None)
                await self._stopping.wait()
                await registration.stop()
                pulls.parked.release_all()
                async with gate:  # No delivery is cut off between the log and its progress.
                    for service in deliveries:
                        service.cancel()
                await appender.stop()
                await progress.save()
                timers.close()
                transactions.note_progress()
            for service in services:
                service.cancel()
        await topics_file.save_if_changed()
        await groups_file.save_if_changed()
        await offsets_file.save()

    async def _listen(self, server: Server) -> int:
        """Listen on the port of the settings and, where possible, two below it."""
        settings = self._settings
        if settings.listen_port:
            port = await server.listen(settings.listen_host, settings.listen_port)
            await self._listen_second(server, port)
            return port
        for _ in range(_PORT_TRIES):
            port = await server.listen(settings.listen_host, 0)
            if not settings.second_port or await self._listen_second(server, port):
                return port
            await server.stop_listening()
        raise ConfigError(f"no two free ports were found on {settings.listen_host}: name one with --listen HOST:PORT")

    async def _listen_second(self, server: Server, port: int) -> bool:
        # RocketMQ: slaves fetch the topic table from the port two below, and old clients may dial it.
        if not self._settings.second_port:
            return True
        try:
            await server.listen(self._settings.listen_host, port - 2)
        except ConfigError as fault:
            if self._settings.listen_port:
                log.warning("second port not available: clients that dial it will fail fault=%s", fault)
            return False
        return True

    def _identity(self) -> RegisterBrokerRequest:
        settings = self._settings
        host, _, port = self.address.rpartition(":")
        return RegisterBrokerRequest(
            broker=settings.name,
            address=self.address,
            cluster=settings.cluster,
            broker_id=settings.broker_id,
            replication_address=f"{host}:{int(port) + 1}",
            acting_master=False,
        )


def _pull_rules(settings: BrokerSettings) -> PullRules:
    return PullRules(
        permission=settings.permission,
        count_max=settings.pull_count_max,
        bytes_max=settings.pull_bytes_max,
        cold_bytes_max=settings.cold_pull_bytes_max,
        long_polling=settings.long_polling,
        short_polling_ms=settings.short_polling_ms,
        sql_filter=settings.sql_filter,
        filter_retries=settings.filter_retries,
    )


def _notify_members(group: ConsumerGroup, groups: Groups) -> None:
    """Tell the members of a group that it changed, so that they share the queues anew."""
    config = groups.find(group.name)
    if group.message_model is MessageModel.BROADCASTING:
        return
    if config is not None and not config.notify_consumer_ids_changed_enable:
        return
    for member in list(group.members.values()):
        try:
            member.connection.send(ConsumerIdsChanged(consumer_group=group.name).command())
        except KappaError:
            continue  # It is going away; its own loss will be noticed.

"""The parts of one broker, built bottom-up in the order of the methods. Only `app.py` sees this object.

No part gets to see it: each is handed just what its signature names.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kappamq.broker.appender import Appender
from kappamq.broker.cold_reads import ColdReads
from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.broker.config_store import ConfigFile
from kappamq.broker.copy_runs import CopyRuns
from kappamq.broker.delays import Delays
from kappamq.broker.deliveries import Progress, waiting_since
from kappamq.broker.fast_lane import FastLane
from kappamq.broker.fast_pulls import FastPulls
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
from kappamq.broker.indexing import Indexing
from kappamq.broker.locks import QueueLocks
from kappamq.broker.loop_lag import LoopLag
from kappamq.broker.members import Members, notify_members
from kappamq.broker.placing import PlacingRules
from kappamq.broker.registration import Registration
from kappamq.broker.router import Handler
from kappamq.broker.runtime_settings import RuntimeSettings
from kappamq.broker.settings import BrokerSettings
from kappamq.broker.statistics import Statistics
from kappamq.broker.timers import Timers
from kappamq.broker.topics import BuiltInTopics, Topics
from kappamq.broker.transactions import TransactionRules, Transactions
from kappamq.broker.upkeep import (
    checkpoint_forever,
    retain_forever,
    save_offsets_forever,
    tick_forever,
    write_entries_forever,
)
from kappamq.clock import Clock
from kappamq.model.ids import pack_host
from kappamq.model.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from kappamq.net.connection import Connection
from kappamq.store.dispatch import Arrival
from kappamq.store.store import Store
from kappamq.store.syncing import make_syncer
from kappamq.wire.headers import RegisterBrokerRequest

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OPERATION_TOPIC})
"""Topics whose arrivals concern the broker's own services."""
TOLD_WAIT_SECONDS: Final = 2.0
"""How long a change of topics waits for the name servers to know it: less than a tool waits for its answer."""


class Assembly:
    """Tables first, then what delivers messages, then handlers, then the tasks that keep it all going."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        *,
        clock: Clock,
        delays_ms: tuple[int, ...],
        identity: Callable[[], RegisterBrokerRequest],
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.delays_ms = delays_ms
        self.config = settings.data / "config"
        self.gate = asyncio.Lock()
        """Held while a delivery is between the log and its progress."""
        self._checkpointing = asyncio.Lock()
        self.indexing = Indexing(store)
        self.placing = PlacingRules(
            delay_levels=len(delays_ms),
            timer_enabled=settings.timer_enabled,
            timer_max_delay_seconds=settings.timer_max_delay_seconds,
        )
        self.lag = LoopLag()
        self.unique_ids = bytearray(os.urandom(8) + bytes(8))
        """The next unique id for a message that was sent without one."""
        self._build_tables(identity)
        self.appender = Appender(
            store,
            clock=clock,
            durable=settings.flush == "durable",
            on_arrivals=self._arrived,
            unacknowledged_max=settings.unacknowledged_max,
            flush_timeout_seconds=settings.flush_timeout_seconds,
            on_run=lambda batch: self.pulls.parked.wake_run(batch),
            syncer=make_syncer(),
        )

    # ── Tables ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _build_tables(self, identity: Callable[[], RegisterBrokerRequest]) -> None:
        settings, clock = self.settings, self.clock
        self.topics_file = ConfigFile(
            self.config / "topics.json", lambda: self.topics.as_file(), table="topicConfigTable"
        )
        self.groups_file = ConfigFile(
            self.config / "subscriptionGroup.json", lambda: self.groups.as_file(), table="subscriptionGroupTable"
        )
        self.offsets_file = ConfigFile(self.config / "consumerOffset.json", lambda: self.offsets.as_file())
        self.topics = Topics(
            BuiltInTopics(
                cluster=settings.cluster,
                broker=settings.name,
                template_queues=settings.template_queues,
                auto_create=settings.auto_create_topics,
                delay_levels=len(self.delays_ms),
                trace_topic=settings.trace_topic if settings.trace_topic_enabled else None,
            ),
            clock=clock,
            on_change=self._topics_changed,
        )
        self.groups = Groups(auto_create=settings.auto_create_groups, clock=clock, on_change=self.groups_file.changed)
        self.offsets = CommittedOffsets(clock=clock)
        self.runtime = RuntimeSettings(settings, clock=clock)
        self.registration = Registration(
            nameservers=settings.nameservers,
            identity=identity,
            topics=self.topics,
            permission=lambda: self.runtime.current.permission,
            every_seconds=settings.register_seconds,
        )
        self.topics.load(self.topics_file.load(), self.store.queues())
        self.groups.load(self.groups_file.load())
        self.offsets.load(self.offsets_file.load())
        self.members = Members(
            clock=clock,
            timeout_seconds=settings.client_timeout_seconds,
            on_change=lambda group: notify_members(group, self.groups.find(group.name)),
        )
        self.locks = QueueLocks(clock=clock, lease_seconds=settings.lock_lease_seconds)
        self.locks_file = ConfigFile(self.config / "kappamqLocks.json", self.locks.as_file)
        self.locks.load(self.locks_file.load())
        self.statistics = Statistics(clock=clock, cluster=settings.cluster, is_system_topic=self.topics.is_system)

    def _topics_changed(self) -> None:
        self.topics_file.changed()
        self.registration.topics_changed()

    async def _wait_told(self) -> None:
        await self.registration.wait_told(timeout_seconds=TOLD_WAIT_SECONDS)

    async def _topics_settled(self) -> None:
        await self.topics_file.saved()
        await self._wait_told()

    # ── Delivery of messages that wait ──────────────────────────────────────────────────────────────────────────────

    async def load_waiting(self) -> None:
        """Build what delivers delayed, timed and transactional messages; reads files, so off the loop."""
        settings, store, clock = self.settings, self.store, self.clock
        delivered = await asyncio.to_thread(waiting_since, store, self.config)
        copies = CopyRuns(self.appender, body_bytes_max=store.settings.message_bytes_max)
        self.delays = Delays(
            store,
            store_records=copies.store,
            delays_ms=self.delays_ms,
            clock=clock,
            gate=self.gate,
            file=self.config / "delayOffset.json",
        )
        self.delays.load(delivered.get(SCHEDULE_TOPIC, []))
        self.timers = await asyncio.to_thread(
            Timers,
            store,
            store_records=copies.store,
            clock=clock,
            gate=self.gate,
            root=settings.data,
            retention_hours=settings.store.retention_hours,
        )
        await asyncio.to_thread(self.timers.load, delivered.get(TIMER_TOPIC, []))
        self.progress = Progress(store, config=self.config, gate=self.gate, parts=[self.delays, self.timers])
        self.transactions = Transactions(
            store,
            store_records=self.appender.store,
            offsets=self.offsets,
            clock=clock,
            rules=self._transaction_rules(settings, settings.listen_port),
            ask=lambda half, message: ask_producer(self.members, half, message, broker=settings.name),
            topics=self.topics,
        )
        await asyncio.to_thread(self.transactions.load, delivered.get(HALF_TOPIC, []))

    def _transaction_rules(self, settings: BrokerSettings, port: int) -> TransactionRules:
        return TransactionRules(
            timeout_ms=settings.transaction_timeout_ms,
            check_interval_ms=settings.transaction_check_interval_ms,
            check_max=settings.transaction_check_max,
            store_host=pack_host(settings.address_host, port),
            placing=self.placing,
        )

    def _arrived(self, arrivals: list[Arrival]) -> None:
        self.pulls.parked.wake(arrivals)
        waiting = [arrival for arrival in arrivals if arrival.topic in WAITING_TOPICS]
        if waiting:
            self.delays.arrived(waiting)
            self.transactions.arrived(waiting)
            self.timers.arrived(waiting)

    # ── Handlers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def build_pulls(self, tasks: asyncio.TaskGroup) -> None:
        """Pulls come first: a lost connection must be able to drop the parked ones."""
        cold = ColdReads(self.store)
        self.store.hot_reads.on_cold_read = cold.may_read
        self.pulls = PullHandlers(
            topics=self.topics,
            groups=self.groups,
            members=self.members,
            offsets=self.offsets,
            store=self.store,
            cold=cold,
            statistics=self.statistics,
            rules=_pull_rules(self.settings),
            clock=self.clock,
            parked_max=self.settings.parked_pulls_max,
            tasks=tasks,
        )
        self.lane = FastLane(
            topics=self.topics,
            appender=self.appender,
            statistics=self.statistics,
            segment_bytes=self.settings.store.segment_bytes,
            unique_ids=self.unique_ids,
            pulls=FastPulls(
                cold=cold,
                handlers=self.pulls,
                topics=self.topics,
                groups=self.groups,
                members=self.members,
                offsets=self.offsets,
                store=self.store,
                statistics=self.statistics,
            ),
        )

    def lost(self, connection: Connection) -> None:
        """A client is gone."""
        self.pulls.parked.drop(connection)
        self.members.lost(connection)

    def handlers(self, port: int) -> list[Mapping[int, Handler]]:
        """Everything that answers requests, now that our own address is known."""
        store_host = pack_host(self.settings.address_host, port)
        self.transactions.use(self._transaction_rules(self.settings, port))
        self._build_sends(store_host)
        self.clients = ClientHandlers(
            topics=self.topics,
            groups=self.groups,
            members=self.members,
            locks=self.locks,
            locks_file=self.locks_file,
            sql_filter=self.settings.sql_filter,
            wait_told=self._wait_told,
        )
        self.runtime.listen(lambda before, after: self._settings_changed(before, after, port))
        return [
            self.sends.table(),
            self.send_backs.table(),
            self.pulls.table(),
            self.clients.table(),
            OffsetHandlers(
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                store=self.store,
                hot_bytes=self.settings.hot_bytes,
            ).table(),
            LookupHandlers(store=self.store, indexing=self.indexing).table(),
            *self._kind_handlers(store_host),
            *self._admin_handlers(port),
        ]

    def _build_sends(self, store_host: bytes) -> None:
        settings = self.settings
        self._send_rules = SendRules(
            store_host=store_host,
            broker=settings.name,
            cluster=settings.cluster,
            region=settings.region,
            trace_on=settings.trace_on,
            message_bytes_max=settings.message_bytes_max,
            permission=settings.permission,
            placing=self.placing,
            reject_transactions=settings.reject_transactions,
        )
        self._send_back_rules = SendBackRules(
            store_host=store_host, permission=settings.permission, placing=self.placing
        )
        self.sends = SendHandlers(
            topics=self.topics,
            groups=self.groups,
            locks=self.locks,
            appender=self.appender,
            statistics=self.statistics,
            rules=self._send_rules,
            clock=self.clock,
            check_transactions=self.transactions.check_room,
            wait_told=self._wait_told,
            unique_ids=self.unique_ids,
        )
        self.lane.use(self._send_rules)
        self.send_backs = SendBackHandlers(
            topics=self.topics,
            groups=self.groups,
            store=self.store,
            appender=self.appender,
            statistics=self.statistics,
            rules=self._send_back_rules,
            clock=self.clock,
            wait_told=self._wait_told,
        )

    def _kind_handlers(self, store_host: bytes) -> list[Mapping[int, Handler]]:
        """Requests of the message kinds: transactions, request-reply, recall."""
        return [
            TransactionHandlers(
                transactions=self.transactions, store=self.store, appender=self.appender, clock=self.clock
            ).table(),
            ReplyHandlers(
                topics=self.topics,
                members=self.members,
                appender=self.appender,
                statistics=self.statistics,
                store_host=store_host,
                permission=self.settings.permission,
                clock=self.clock,
            ).table(),
            RecallHandlers(
                topics=self.topics,
                appender=self.appender,
                rules=RecallRules(
                    enabled=self.settings.recall_enabled,
                    broker=self.settings.name,
                    store_host=store_host,
                    placing=self.placing,
                ),
                clock=self.clock,
            ).table(),
        ]

    def _admin_handlers(self, port: int) -> list[Mapping[int, Handler]]:
        """Requests of operators and their tools."""
        name = self.settings.name
        return [
            TopicAdminHandlers(
                broker=name,
                topics=self.topics,
                offsets=self.offsets,
                members=self.members,
                statistics=self.statistics,
                store=self.store,
                settled=self._topics_settled,
                checkpointing=self._checkpointing,
            ).table(),
            GroupAdminHandlers(
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                members=self.members,
                statistics=self.statistics,
                saved=self.groups_file.saved,
            ).table(),
            ProgressHandlers(
                broker=name,
                address=f"{self.settings.address_host}:{port}",
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                members=self.members,
                statistics=self.statistics,
                store=self.store,
                clock=self.clock,
            ).table(),
            ConsumerControlHandlers(
                broker=name,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                members=self.members,
                parked=self.pulls.parked,
                store=self.store,
                settings=self.runtime,
                clock=self.clock,
            ).table(),
            BrokerAdminHandlers(
                port=port,
                settings=self.runtime,
                statistics=self.statistics,
                store=self.store,
                appender=self.appender,
                delay_table=self.delays.as_file,
                lag=self.lag,
                indexing=self.indexing.lock,
                clock=self.clock,
            ).table(),
        ]

    def _settings_changed(self, before: BrokerSettings, after: BrokerSettings, port: int) -> None:
        """Hand settings that may change at run time to those who use them."""
        self.pulls.use(_pull_rules(after))
        send_rules = replace(
            self._send_rules,
            permission=after.permission,
            trace_on=after.trace_on,
            message_bytes_max=after.message_bytes_max,
        )
        self.sends.use(send_rules)
        self.lane.use(send_rules)
        self.send_backs.use(replace(self._send_back_rules, permission=after.permission))
        self.transactions.use(self._transaction_rules(after, port))
        self.clients.sql_filter = after.sql_filter
        self.groups.auto_create = after.auto_create_groups
        self.store.settings = replace(self.store.settings, retention_hours=after.store.retention_hours)
        if after.auto_create_topics != before.auto_create_topics:
            self.topics.allow_creation(after.auto_create_topics)
        if after.permission != before.permission:
            self.topics.bump()

    # ── Tasks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def start_upkeep(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Everything that runs at a steady pace, until cancelled."""
        services = {
            "disk": self.appender.wait_failed(),
            "lag": self.lag.sample_forever(),
            "tick": tick_forever(
                appender=self.appender,
                parked=self.pulls.parked,
                members=self.members,
                statistics=self.statistics,
                max_offset=self.store.max_offset,
            ),
            "checkpoint": checkpoint_forever(self.store, self._checkpointing),
            "entries": write_entries_forever(self.store),
            "index": self.indexing.run_forever(),
            "retention": retain_forever(self.store, self.indexing.lock, every_seconds=self.settings.retention_seconds),
            "topics-file": self.topics_file.keep_saved(),
            "groups-file": self.groups_file.keep_saved(),
            "locks-file": self.locks_file.keep_saved(),
            "offsets-file": save_offsets_forever(
                self.offsets_file,
                is_dirty=lambda: self.offsets.is_dirty,
                every_seconds=self.settings.save_offsets_seconds,
            ),
        }
        return [tasks.create_task(service, name=name) for name, service in services.items()]

    def start_deliveries(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Everything that stores messages by itself, until cancelled under the gate."""
        services = {
            "delays": self.delays.run_forever(),
            "timers": self.timers.run_forever(),
            "transactions": self.transactions.run_forever(),
            "progress": self.progress.save_forever(),
        }
        return [tasks.create_task(service, name=name) for name, service in services.items()]

    async def save_tables(self) -> None:
        """Save what changed since the last time; at the end."""
        for file in (self.topics_file, self.groups_file, self.locks_file):
            await file.save_if_changed()
        await self.offsets_file.save()


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
        slave_read=settings.slave_read,
        hot_bytes=settings.hot_bytes,
    )

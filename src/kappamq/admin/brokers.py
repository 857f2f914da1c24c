"""Brokers: overview, figures, settings, write permission."""

import asyncio
from collections.abc import Mapping
from typing import Final

from kappamq.admin.reach import Reach
from kappamq.admin.values import BrokerView, ProducerConnection, Traffic
from kappamq.errors import KappaError, NotFound
from kappamq.model.route import BrokerAddresses
from kappamq.settings import parse_properties
from kappamq.wire import bodies
from kappamq.wire.codes import RequestCode
from kappamq.wire.command import Command
from kappamq.wire.headers import AddWriteReply, AddWriteRequest, WipeWriteReply, WipeWriteRequest, decode_fields

OVERVIEW_TIMEOUT_MS: Final = 3_000


class Brokers:
    """Operations on brokers; an `address` is `host:port` of one process, a `name` that of a broker set."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def overview(self, cluster: str | None = None) -> list[BrokerView]:
        """Every broker process with its load; one that does not answer is shown with the reason."""
        brokers = await self._reach.brokers(cluster)
        views = [
            self._view(broker, broker_id, address)
            for broker in brokers
            for broker_id, address in sorted(broker.addresses.items())
        ]
        return list(await asyncio.gather(*views))

    async def _view(self, broker: BrokerAddresses, broker_id: int, address: str) -> BrokerView:
        try:
            figures = await self.figures(address)
        except KappaError as fault:
            return BrokerView(
                cluster=broker.cluster, name=broker.name, broker_id=broker_id, address=address, fault=str(fault)
            )
        return BrokerView(
            cluster=broker.cluster,
            name=broker.name,
            broker_id=broker_id,
            address=address,
            version=figures.get("brokerVersionDesc", ""),
            received=_traffic(figures, "putTps", "msgPutTotal"),
            delivered=_traffic(figures, "getTransferredTps", "msgGetTotal"),
            disk_ratio=_first_number(figures.get("commitLogDiskRatio", "-1")),
            earliest_at_ms=int(_first_number(figures.get("earliestMessageTimeStamp", "-1"))),
        )

    async def figures(self, address: str) -> dict[str, str]:
        """Everything a broker counts, under RocketMQ's names."""
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
        reply = await self._reach.ask(address, command, timeout_ms=OVERVIEW_TIMEOUT_MS)
        return bodies.decode_table(reply.body)

    async def settings(self, address: str) -> dict[str, str]:
        """Settings of a running broker, under RocketMQ's names."""
        reply = await self._reach.ask(address, Command(code=RequestCode.GET_BROKER_CONFIG))
        return parse_properties(reply.body.decode(errors="replace"))

    async def change_settings(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker. Raises `Refused` for one that cannot be changed."""
        text = "".join(f"{name}={value}\n" for name, value in changes.items())
        await self._reach.ask(address, Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()))

    async def producers(self, address: str) -> list[ProducerConnection]:
        """Clients that send to a broker."""
        reply = await self._reach.ask(address, Command(code=RequestCode.GET_ALL_PRODUCER_INFO))
        data = bodies.decode_object(reply.body).get("data") or {}
        return [
            ProducerConnection(
                group=str(group),
                client_id=str(item.get("clientId") or ""),
                address=str(item.get("remoteIP") or ""),
                language=str(item.get("language") or ""),
                version=int(item.get("version") or 0),
            )
            for group, items in data.items()
            for item in items
        ]

    async def stop_writes(self, name: str) -> int:
        """Let no producer choose this broker any more, at every name server; returns its number of topics."""
        replies = await self._reach.tell_name_servers(WipeWriteRequest(broker_name=name))
        return self._known(name, max(decode_fields(reply.fields, WipeWriteReply).wipe_topic_count for reply in replies))

    async def allow_writes(self, name: str) -> int:
        """Let producers choose this broker again; returns its number of topics."""
        replies = await self._reach.tell_name_servers(AddWriteRequest(broker_name=name))
        return self._known(name, max(decode_fields(reply.fields, AddWriteReply).add_topic_count for reply in replies))

    def _known(self, name: str, topics: int) -> int:
        if not topics:
            raise NotFound(f"broker {name!r} holds no topic at any name server: check its name with `kappamq cluster`")
        return topics


def _traffic(figures: Mapping[str, str], rate: str, total: str) -> Traffic:
    yesterday, morning, now = (
        int(_first_number(figures.get(total + moment, "0")))
        for moment in ("YesterdayMorning", "TodayMorning", "TodayNow")
    )
    # RocketMQ: 4.9 spells the name of one rate with a single r.
    text = figures.get(rate) or figures.get(rate.replace("rr", "r"), "")
    return Traffic(per_second=_first_number(text or "0"), today=now - morning, yesterday=morning - yesterday)


def _first_number(text: str) -> float:
    """First of the numbers in a figure; 0 for one that has no value yet."""
    words = text.split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0

"""`kappamq cluster`: the brokers and their load."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from kappamq.cli.options import DEFAULT_NAMESERVER, AsJson, ClusterName, NameServers, administer
from kappamq.cli.output import moment, print_json, print_table

if TYPE_CHECKING:
    from kappamq.admin.admin import Admin
    from kappamq.admin.values import BrokerView


def cluster(cluster: ClusterName = None, as_json: AsJson = False, nameserver: NameServers = DEFAULT_NAMESERVER) -> None:
    """Show the brokers of the cluster and what they do."""

    async def action(admin: "Admin") -> "list[BrokerView]":
        return await admin.brokers.overview(cluster)

    brokers = administer(nameserver, action)
    if as_json:
        print_json([asdict(each) for each in brokers])
        return
    print_table(
        ("cluster", "broker", "id", "address", "version", "in/s", "out/s", "in today", "out today", "disk", "oldest"),
        (_row(each) for each in brokers),
    )
    for each in brokers:
        if each.fault is not None:
            print(f"{each.name} at {each.address} does not answer: {each.fault}")


def _row(broker: "BrokerView") -> tuple[object, ...]:
    place = (broker.cluster, broker.name, broker.broker_id, broker.address)
    if broker.fault is not None:
        return (*place, *(None for _ in range(7)))
    return (
        *place,
        broker.version,
        broker.received.per_second,
        broker.delivered.per_second,
        broker.received.today,
        broker.delivered.today,
        f"{broker.disk_ratio:.0%}" if broker.disk_ratio >= 0 else None,
        moment(broker.earliest_at_ms),
    )

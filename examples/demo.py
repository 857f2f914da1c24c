"""`make demo`: a cluster in this process, orders sent and consumed, then the same topic as a Spark table.

Ends by itself. `--no-spark` leaves the last part out.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import kappamq
from kappamq.testing import ClusterAddresses, start_cluster

PRODUCTS = ("espresso", "flat white", "cortado", "tea")
ORDERS = 2000
CONSOLE = Console()


def main() -> int:
    """Run all steps in a directory that goes away."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kappamq-demo-") as workdir, start_cluster(brokers=2) as cluster:
        took_ms = (time.perf_counter() - started) * 1000
        CONSOLE.rule("KappaMQ demo")
        CONSOLE.print(f"A name server ({cluster.nameserver}) and two brokers were ready after {took_ms:.0f} ms.")
        send_orders(cluster)
        consume_orders(cluster)
        find_one(cluster)
        if "--no-spark" not in sys.argv:
            run_pipeline(cluster, Path(workdir))
    CONSOLE.rule(f"done after {time.perf_counter() - started:.1f} s, everything stopped")
    return 0


def send_orders(cluster: ClusterAddresses) -> None:
    """Every send is answered after its record is on disk."""
    rng = random.Random(7)
    started = time.perf_counter()
    with kappamq.Producer(cluster.nameserver, group="shop") as producer:
        pending = []
        for number in range(ORDERS):
            product = rng.choice(PRODUCTS)
            body = f'{{"order":{number},"product":"{product}","amount":{rng.randint(1, 9)}}}'.encode()
            pending.append(producer.send_soon(kappamq.Message("orders", body, tags=product, keys=f"order-{number}")))
        for receipt in pending:
            receipt.result(timeout=30)
    took = time.perf_counter() - started
    CONSOLE.print(f"Sent {ORDERS} orders, each on disk before its receipt: {ORDERS / took:,.0f} per second.")


def consume_orders(cluster: ClusterAddresses) -> None:
    """A group reads the topic and commits its progress."""
    counts = dict.fromkeys(PRODUCTS, 0)
    queues: dict[tuple[str, int], int] = {}
    with kappamq.LitePullConsumer(cluster.nameserver, group="kitchen", topics=["orders"]) as consumer:
        for number, message in enumerate(consumer, start=1):
            counts[message.tags or "?"] += 1
            key = (message.broker, message.queue_id)
            assert message.queue_offset >= queues.get(key, 0), "order within a queue holds"
            queues[key] = message.queue_offset
            if number == ORDERS:
                break
    table = Table(title=f"Consumed {ORDERS} orders from {len(queues)} queues on 2 brokers")
    table.add_column("product")
    table.add_column("orders", justify="right")
    for product, count in counts.items():
        table.add_row(product, str(count))
    CONSOLE.print(table)


def find_one(cluster: ClusterAddresses) -> None:
    """Keys are indexed."""
    with kappamq.Cluster(cluster.nameserver) as client:
        found = client.query_messages("orders", "order-42")
    CONSOLE.print(f"Found by key 'order-42': {found[0].body.decode()} with id {found[0].message_id}")


def run_pipeline(cluster: ClusterAddresses, workdir: Path) -> None:
    """The topic as a stream of Spark, aggregated into Parquet."""
    CONSOLE.print("Starting Spark (a few seconds) …")
    sys.path.insert(0, str(Path(__file__).parent))
    import orders_pipeline

    orders_pipeline.run(cluster.nameserver, workdir)


if __name__ == "__main__":
    sys.exit(main())

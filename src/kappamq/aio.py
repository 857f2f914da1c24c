"""The asyncio client.

async with kappamq.aio.Producer("127.0.0.1:9876", group="shop") as producer:
    await producer.send(kappamq.Message("orders", b"hello"))
"""

from kappamq.client.aio.cluster import Cluster, PullStatus, RawPull
from kappamq.client.aio.lite_pull_consumer import LitePullConsumer
from kappamq.client.aio.producer import Producer
from kappamq.client.aio.pull_consumer import PullConsumer, Pulled
from kappamq.client.aio.push_consumer import PushConsumer
from kappamq.client.aio.transactions import Decision, Transaction, TransactionReceipt

__all__ = [
    "Cluster",
    "Decision",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PullStatus",
    "Pulled",
    "PushConsumer",
    "RawPull",
    "Transaction",
    "TransactionReceipt",
]

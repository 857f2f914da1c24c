"""KappaMQ: a durable message queue that speaks Apache RocketMQ's protocol. This is its blocking client.

    with kappamq.Producer("127.0.0.1:9876", group="shop") as producer:
        producer.send(kappamq.Message("orders", b"hello"))

The same names for asyncio are in `kappamq.aio`. Names load when they are used: importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kappamq import aio as aio
    from kappamq.client.aio.cluster import PullStatus, RawPull
    from kappamq.client.aio.pull_consumer import Pulled
    from kappamq.client.aio.transactions import Decision, Transaction, TransactionReceipt
    from kappamq.client.blocking import Cluster, LitePullConsumer, Producer, PullConsumer, PushConsumer
    from kappamq.client.compression import Compression
    from kappamq.client.core.balancing import (
        Average,
        AverageByCircle,
        Configured,
        ConsistentHash,
        MachineRoom,
        MachineRoomNearby,
    )
    from kappamq.client.core.handling import Progress, RetryLater
    from kappamq.client.core.process_queue import CacheLimits
    from kappamq.client.core.receipts import SendReceipt, SendStatus
    from kappamq.client.core.starting import StartFrom
    from kappamq.client.settings import (
        ClusterSettings,
        ConsumerSettings,
        LitePullSettings,
        ProducerSettings,
        PushSettings,
    )
    from kappamq.errors import KappaError
    from kappamq.model.message import Message, Queue
    from kappamq.model.message import StoredMessage as ReceivedMessage
    from kappamq.model.subscription import MessageModel

_HOMES: Final = {
    "Average": "kappamq.client.core.balancing",
    "AverageByCircle": "kappamq.client.core.balancing",
    "CacheLimits": "kappamq.client.core.process_queue",
    "Cluster": "kappamq.client.blocking",
    "ClusterSettings": "kappamq.client.settings",
    "Compression": "kappamq.client.compression",
    "Configured": "kappamq.client.core.balancing",
    "ConsistentHash": "kappamq.client.core.balancing",
    "ConsumerSettings": "kappamq.client.settings",
    "Decision": "kappamq.client.aio.transactions",
    "KappaError": "kappamq.errors",
    "LitePullConsumer": "kappamq.client.blocking",
    "LitePullSettings": "kappamq.client.settings",
    "MachineRoom": "kappamq.client.core.balancing",
    "MachineRoomNearby": "kappamq.client.core.balancing",
    "Message": "kappamq.model.message",
    "MessageModel": "kappamq.model.subscription",
    "Producer": "kappamq.client.blocking",
    "ProducerSettings": "kappamq.client.settings",
    "Progress": "kappamq.client.core.handling",
    "PullConsumer": "kappamq.client.blocking",
    "PullStatus": "kappamq.client.aio.cluster",
    "Pulled": "kappamq.client.aio.pull_consumer",
    "PushConsumer": "kappamq.client.blocking",
    "PushSettings": "kappamq.client.settings",
    "Queue": "kappamq.model.message",
    "RawPull": "kappamq.client.aio.cluster",
    "ReceivedMessage": "kappamq.model.message",
    "RetryLater": "kappamq.client.core.handling",
    "SendReceipt": "kappamq.client.core.receipts",
    "SendStatus": "kappamq.client.core.receipts",
    "StartFrom": "kappamq.client.core.starting",
    "Transaction": "kappamq.client.aio.transactions",
    "TransactionReceipt": "kappamq.client.aio.transactions",
}
_OTHER_NAMES: Final = {"ReceivedMessage": "StoredMessage"}

__all__ = [
    "Average",
    "AverageByCircle",
    "CacheLimits",
    "Cluster",
    "ClusterSettings",
    "Compression",
    "Configured",
    "ConsistentHash",
    "ConsumerSettings",
    "Decision",
    "KappaError",
    "LitePullConsumer",
    "LitePullSettings",
    "MachineRoom",
    "MachineRoomNearby",
    "Message",
    "MessageModel",
    "Producer",
    "ProducerSettings",
    "Progress",
    "PullConsumer",
    "PullStatus",
    "Pulled",
    "PushConsumer",
    "PushSettings",
    "Queue",
    "RawPull",
    "ReceivedMessage",
    "RetryLater",
    "SendReceipt",
    "SendStatus",
    "StartFrom",
    "Transaction",
    "TransactionReceipt",
    "__version__",
    "aio",
]


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("kappamq.aio")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kappamq' has no attribute {name!r}")
    value = getattr(import_module(home), _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

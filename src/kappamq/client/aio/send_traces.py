"""What a producer that is traced says about its messages."""

from kappamq.client.aio.cluster import Cluster
from kappamq.client.aio.tracing import Tracer
from kappamq.client.aio.transactions import Decision
from kappamq.client.core.preparing import Prepared
from kappamq.client.core.receipts import SendReceipt
from kappamq.client.core.tracing import REGION, Decided, MessageKind, is_traced, published
from kappamq.model.message import Message, StoredMessage
from kappamq.model.properties import Name


class SendTraces:
    """Traces of sends and of decided transactions; does nothing without a tracer."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self.tracer: Tracer | None = None

    def sent(self, prepared: Prepared, receipt: SendReceipt, *, cost_ms: int) -> None:
        """A message was stored, or sent one way."""
        if self.tracer is None:
            return
        records = published(
            prepared,
            receipt,
            group=self._group,
            store_host=self._cluster.routes.addresses.master_of(receipt.queue.broker) or "",
            started_at_ms=self._cluster.clock.now_ms() - cost_ms,
            cost_ms=cost_ms,
        )
        self.tracer.add(prepared.topic, records)

    def checked(self, message: StoredMessage, decision: Decision, store_host: str) -> None:
        """A broker asked about a transaction, and the checker has answered."""
        if is_traced(message):
            self._add_decision(
                decision,
                topic=message.topic,
                message_id=message.message_id,
                region=message.properties.get(Name.REGION, REGION),
                tags=message.tags,
                keys=message.properties.get(Name.KEYS),
                store_host=store_host,
                transaction_id=message.message_id,
                is_from_check=True,
            )

    def decided(self, message: Message, receipt: SendReceipt, decision: Decision, store_host: str) -> None:
        """A transaction was ended by whoever began it."""
        if receipt.is_traced:
            self._add_decision(
                decision,
                topic=message.topic,
                message_id=receipt.message_id,
                region=receipt.region or REGION,
                tags=message.tags,
                keys=message.keys_text or None,
                store_host=store_host,
                transaction_id=receipt.transaction_id or receipt.message_id,
                is_from_check=False,
            )

    def _add_decision(
        self,
        decision: Decision,
        *,
        topic: str,
        message_id: str,
        region: str,
        tags: str | None,
        keys: str | None,
        store_host: str,
        transaction_id: str,
        is_from_check: bool,
    ) -> None:
        if self.tracer is None:
            return
        record = Decided(
            at_ms=self._cluster.clock.now_ms(),
            region=region,
            group=self._group,
            topic=topic,
            message_id=message_id,
            tags=tags,
            keys=keys,
            store_host=store_host,
            kind=MessageKind.DECIDED,
            transaction_id=transaction_id,
            state=decision.state_name,
            is_from_check=is_from_check,
        )
        self.tracer.add(topic, [record])

"""Stored messages: by id and by key."""

from typing import Final

from kappamq.admin.reach import Reach
from kappamq.errors import NotFound, UsageError
from kappamq.model.ids import parse_offset_id
from kappamq.model.message import StoredMessage

FOUND_MAX: Final = 64


class Messages:
    """Looking at single messages."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def show(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """A message by its offset id or its unique id; only the first says where it is, the second needs the topic.

        Raises `NotFound`, and `UsageError` for a unique id without a topic.
        """
        address = _address_in(message_id)
        if address is not None and address in await self._addresses():
            return await self._reach.cluster.view_message(message_id)
        if topic is None:
            raise UsageError(f"{message_id} does not name a broker of this cluster: add --topic to search by unique id")
        found = await self._reach.cluster.query_messages(topic, message_id, count_max=1, by_unique_id=True)
        if not found:
            raise NotFound(f"topic {topic!r} has no message {message_id}: check the id, or it has expired")
        return found[0]

    async def find(
        self, topic: str, key: str, *, count_max: int = FOUND_MAX, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[StoredMessage]:
        """Messages of a topic that carry a key, oldest first. Raises `TopicNotFound`."""
        return await self._reach.cluster.query_messages(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )

    async def _addresses(self) -> set[str]:
        brokers = await self._reach.brokers()
        return {address for broker in brokers for address in broker.addresses.values()}


def _address_in(message_id: str) -> str | None:
    """Broker address if the id could be an offset id: both kinds have 32 digits for IPv4."""
    try:
        return parse_offset_id(message_id)[0]
    except (UsageError, ValueError):
        return None

"""Finding single messages: by log offset, by key, by unique id."""

import asyncio
from collections.abc import Mapping
from typing import Final

from kappamq.broker.indexing import Indexing
from kappamq.broker.router import Handler
from kappamq.errors import Refused, StorageError, UsageError
from kappamq.net.connection import Connection
from kappamq.store.store import Store
from kappamq.wire.codes import RequestCode, ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.headers import (
    QueryMessageReply,
    QueryMessageRequest,
    ViewMessageRequest,
    decode_fields,
    encode_fields,
)

QUERY_COUNT_MAX: Final = 64
UNIQUE_QUERY_COUNT: Final = 32


class LookupHandlers:
    """Requests 12 and 33. Both may touch the disk anywhere, so they run in a thread."""

    def __init__(self, *, store: Store, indexing: Indexing) -> None:
        self._store = store
        self._indexing = indexing

    def table(self) -> Mapping[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    async def query(self, _: Connection, request: Command) -> Command:
        query = decode_fields(request.fields, QueryMessageRequest)
        if query.count_max < 1 and not query.by_unique_id:
            raise UsageError(f"maxNum is {query.count_max}: ask for 1 to {QUERY_COUNT_MAX} messages")
        limit = UNIQUE_QUERY_COUNT if query.by_unique_id else min(query.count_max, QUERY_COUNT_MAX)
        if self._store.is_index_behind:
            await self._indexing.catch_up()
        found = await asyncio.to_thread(
            self._store.query, query.topic, query.key, limit=limit, begin_ms=query.begin_ms, end_ms=query.end_ms
        )
        fields = encode_fields(QueryMessageReply(indexed_until_ms=found.indexed_at_ms, indexed_until=found.indexed_to))
        if not found.records:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", fields=fields
            )
        return request.reply(fields=fields, body=b"".join(found.records))

    async def view(self, _: Connection, request: Command) -> Command:
        view = decode_fields(request.fields, ViewMessageRequest)
        try:
            record = await asyncio.to_thread(self._store.read, view.log_offset)
        except StorageError as fault:
            raise Refused(
                f"can not find message by the offset, {view.log_offset}: {fault}", code=ResponseCode.SYSTEM_ERROR
            ) from None
        return request.reply(body=record)
